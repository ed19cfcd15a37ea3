"""Show, count, draw, compare and replay traces. `observers/` reads a trace while it is written."""
