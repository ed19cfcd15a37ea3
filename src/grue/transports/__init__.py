"""Connections to the outside: MCP servers, and the endpoints of models."""
