"""What is minimised without labels: an objective knows its heads, its views and its loss."""
