"""A conversation lives in a database: each call of `ask` loads it, asks once, and stores it again.

SQLite stands for any database. A row holds all that is needed to go on, as the text that `dumps` returns.
"""

import os
import sqlite3

from grue import Conversation, LlmSettings, Runner

database = sqlite3.connect("talks.db")
database.execute("CREATE TABLE IF NOT EXISTS talks (user TEXT PRIMARY KEY, talk TEXT)")


def ask(user: str, text: str) -> str:
    """Continue the conversation of a user."""
    llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
    row = database.execute("SELECT talk FROM talks WHERE user = ?", (user,)).fetchone()
    with Runner(llm=llm) as runner:
        if row:
            talk = Conversation.loads(row[0], runner)
        else:
            talk = runner.conversation("You help with the garden. Be brief.")
        answer = talk.ask(text).response
        with database:
            database.execute("REPLACE INTO talks VALUES (?, ?)", (user, talk.dumps()))
    return answer


print(ask("ann", "What grows in the shade?"))
print(ask("ann", "And which of these stays small?"))
