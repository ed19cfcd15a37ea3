"""MCP servers: start or reach one, speak MCP with it through the official SDK, and end it."""
