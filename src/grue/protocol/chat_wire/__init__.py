"""Requests and replies of each kind of LLM endpoint, as data in, data out."""
