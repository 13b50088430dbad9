"""The package's version, as installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("mt3")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"
