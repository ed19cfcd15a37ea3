"""Child processes: start one in its own group, exchange bytes with it, end it and all that it started.

These modules do not know the MCP protocol: they exchange only bytes and lines.
"""
