"""The classifier, how it is called with other parameters, and how it is kept on disk."""
