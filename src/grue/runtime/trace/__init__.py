"""The trace: recording, its file, reading it."""
