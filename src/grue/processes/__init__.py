"""Child processes: start one in its own group, exchange bytes with it, end it and all that it started.

It knows nothing of MCP. Servers (`mcp_transport/`) and the shell tool (`tool_sessions/`) run on it.
"""
