"""A conversation lives in a database: each request loads it, asks once, and stores it again.

SQLite stands for any database; a row is the file of a conversation, which has all that the endpoint needs.
"""

import os
import sqlite3
import tempfile
from pathlib import Path

from grue import Conversation, LlmSettings, Runner

database = sqlite3.connect("talks.db")
database.execute("CREATE TABLE IF NOT EXISTS talks (user TEXT PRIMARY KEY, talk BLOB)")


def ask(user: str, text: str) -> str:
    """Continue the conversation of a user."""
    llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
    row = database.execute("SELECT talk FROM talks WHERE user = ?", (user,)).fetchone()
    with tempfile.TemporaryDirectory() as folder, Runner(llm=llm) as runner:
        file = Path(folder, "talk.jsonl")
        if row:
            file.write_bytes(row[0])
            talk = Conversation.load(file, runner)
        else:
            talk = runner.conversation("You help with the garden. Be brief.", path=file)
        with talk:
            answer = talk.ask(text).response
        with database:
            database.execute("REPLACE INTO talks VALUES (?, ?)", (user, file.read_bytes()))
    return answer


print(ask("ann", "What grows in the shade?"))
print(ask("ann", "And which of these stays small?"))
