"""Conversations and their files, turns that are read from a trace, and the resumption of a turn."""
