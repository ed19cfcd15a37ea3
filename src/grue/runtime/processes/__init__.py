"""Child processes: start one in its own group, exchange bytes with it, end it and all that it started.

It contains no MCP. Servers (`transports/mcp/`) and the shell tool (`tool_sessions/`) run on it.
"""
