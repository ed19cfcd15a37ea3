"""Boxes: what a program that grue starts may read, write, execute and connect to, and how that is enforced.

`box.py` has the description that a user writes; `places.py` turns it into files and folders; `kernel.py` and
`seccomp.py` have Linux enforce it; `gate.py` limits connections to listed hosts; `launch.py` starts a program
in its box. `refusals.py` says what a box refused, `learning.py` proposes one, `seatbelt.py` is for macOS.
"""
