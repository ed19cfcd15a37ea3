"""Actors, mailboxes, the supervisor, the sync edge and the trace. It imports nothing about LLMs or MCP."""
