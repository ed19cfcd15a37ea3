"""Run turns (single turns, conversations, batches, forks), and make tool calls outside turns."""
