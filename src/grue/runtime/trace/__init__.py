"""Record a trace, write its file, and read it."""
