"""The wire formats of LLM endpoints: pure code that encodes requests and decodes replies."""
