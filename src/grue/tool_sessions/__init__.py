"""The interface between session actors and tool servers, function tools, and the pool of open sessions.

This package must not import `grue.transports.mcp`, because function tools work without the MCP client.
"""
