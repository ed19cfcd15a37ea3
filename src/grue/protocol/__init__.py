"""The decisions of grue as pure code: state machines, wire formats, limits and text.

Modules here do no I/O, read no clock, use no randomness and do not log.
"""
