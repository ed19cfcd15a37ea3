"""What a session needs of a tool server, and the servers that need no transport."""
