"""Child processes: start one in its own group, exchange bytes with it, end it and all that it started.

Nothing here is about MCP. `transports/mcp/` uses this package to start MCP servers, and `tool_sessions/` to
run the commands of the shell tool.
"""
