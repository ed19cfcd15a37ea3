"""Actors, event loops, child processes, secrets and the trace. Nothing here may import LLM or MCP code."""
