"""The interface between session actors and tool servers, function tools, and the pool of open sessions.

It must not import `grue.transports.mcp`: function tools work without the MCP client.
"""
