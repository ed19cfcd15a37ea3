"""Programs that drive agents, each small and built on the public API."""
