"""Event loops and threads: how work gets into a loop, out of it, and is interrupted."""
