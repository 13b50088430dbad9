"""Training: tasks, losses over them, and one loop over steps."""
