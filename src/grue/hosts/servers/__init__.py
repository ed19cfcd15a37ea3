"""MCP servers that come with grue; each is a program of its own."""
