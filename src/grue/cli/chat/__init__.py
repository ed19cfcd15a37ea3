"""`grue chat`: a conversation with an agent at the terminal, or line by line in a pipe.

`program.py` is the loop that reads, asks and prints. `talk.py` is the conversation in its run folder, without
a terminal. `commands.py` has the slash commands. `asking.py` passes a turn's questions to the main thread,
and `person.py` asks them. `lines.py` turns events into lines, and `screen.py` prints them. `prompting.py`
reads the user's input with editing and completion; in a pipe, the `LineReader` of `person.py` reads it.
"""
