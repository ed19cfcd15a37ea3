"""The HTTP side of the LLM actor: an endpoint, a single exchange, and batches of requests."""
