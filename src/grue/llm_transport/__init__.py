"""How the LLM actor reaches its endpoint: connections, one exchange over HTTP."""
