"""Boxes: what a program that grue starts may read, write, execute and connect to, and how that is enforced.

The modules here know nothing of MCP, turns or models. `box.py` is what a user describes; `places.py` turns
that into folders; `kernel.py` and `seccomp.py` speak to Linux; `launch.py` starts a program in its box.
"""
