"""The history of a conversation, and what is removed so that it fits into the model's context window."""
