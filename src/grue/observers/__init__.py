"""Read the trace as it is written."""
