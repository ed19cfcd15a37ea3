"""Show, count, draw, compare and replay traces."""
