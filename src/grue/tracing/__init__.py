"""Read the trace afterwards."""
