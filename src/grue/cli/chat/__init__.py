"""`grue chat`: a conversation with an agent at the terminal, or line by line in a pipe.

`program.py` is the loop that reads, asks and prints; `talk.py` is the conversation, without a terminal.
"""
