"""Sessions with tool servers: the interface that session actors use, function tools, and the session pool.

This package must not import `grue.transports.mcp`, because function tools work without the MCP client.
"""
