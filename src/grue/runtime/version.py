"""The version of grue."""

__version__ = "0.1.0"
