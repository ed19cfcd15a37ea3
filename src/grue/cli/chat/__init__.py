"""`grue chat`: `program.py` reads, asks and prints; `talk.py` is the conversation, without a terminal."""
