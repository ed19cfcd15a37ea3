"""The version of grue."""

__version__ = "0.2.0"
