"""Tool calls and requests outside of turns."""
