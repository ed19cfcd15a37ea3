"""Run turns: single turns, conversations, batches, forks, and tool calls outside turns."""
