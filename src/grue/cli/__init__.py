"""The command `grue`."""
