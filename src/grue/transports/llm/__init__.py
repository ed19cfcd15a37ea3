"""The HTTP side of the LLM actor: an endpoint with its connections, and a single exchange."""
