"""Sessions with tool servers. Function tools need no MCP client: never import `grue.transports.mcp`."""
