"""Actors, mailboxes, the supervisor, the sync edge and the trace; knows nothing of LLMs or MCP."""
