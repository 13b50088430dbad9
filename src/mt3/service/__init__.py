"""The HTTP service and its page: `mt3 serve`. Its packages are the extra `serve`."""

DEFAULT_MODEL = "cifar10-mt3"  # what is served where none is named
