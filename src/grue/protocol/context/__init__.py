"""What was said, and what still fits into the context window."""
