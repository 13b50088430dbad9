"""Networks that map images to features, and layers that can be stacked."""
