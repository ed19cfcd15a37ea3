"""Run turns: wiring, one turn and its actors, the episode between turns, handles and batches."""
