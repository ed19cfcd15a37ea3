"""Parts for testing agents, shipped to users."""
