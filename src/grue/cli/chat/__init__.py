"""`grue chat`: a conversation with an agent at the terminal, or line by line in a pipe.

`program.py` reads, asks and prints, in a loop. `talk.py` is the conversation in its run folder, without a
terminal. `commands.py` has the commands. `asking.py` brings a turn's questions to the main thread, and
`person.py` asks them. `lines.py` has the words for what happens, and `screen.py` prints them. What the user
types is read by `prompting.py` with editing and completion, or else by the `LineReader` of `person.py`.
"""
