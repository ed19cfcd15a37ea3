"""How turns are run: the actors of a turn, what outlives it, handles and batches."""
