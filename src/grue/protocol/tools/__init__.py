"""Rules about tools: names, calls, results, locks, policies."""
