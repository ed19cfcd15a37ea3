"""Sessions with tool servers. This package imports no MCP client, because function tools need none."""
