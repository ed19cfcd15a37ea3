"""Actors, mailboxes, the supervisor, the sync edge and the trace. Nothing here may import LLM or MCP code."""
