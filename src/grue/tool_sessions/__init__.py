"""Sessions with tool servers. No import of `grue.transports.mcp` here: function tools need no MCP client."""
