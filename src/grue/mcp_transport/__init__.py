"""How a session reaches its MCP server."""
