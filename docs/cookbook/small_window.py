"""A conversation that grows longer than the model's window of 8,000 tokens.

grue first replaces old tool results by short stubs. If that is not enough, a summary replaces older turns.
The trace has each change.
"""

import os

from grue import ContextPolicy, FunctionTools, LlmSettings, Runner
from grue.hosting import read_episode
from grue.messages import RewriteHistory


def read_log(day: int) -> str:
    """Return the log of a day."""
    return f"Day {day}: the pump ran. " * 900


llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
window = ContextPolicy(window_tokens=8_000, reply_tokens=500)
logs = FunctionTools([read_log])
with Runner(llm=llm, servers={"logs": logs}, context=window, trace="runs") as runner:
    talk = runner.conversation("You look after a pump. Be brief.")
    for day in range(1, 5):
        print(talk.ask(f"Read the log of day {day}. Did the pump run?").response)

rewrites = [e for e in read_episode(str(runner.trace)).envelopes if isinstance(e.body, RewriteHistory)]
print(f"made room {len(rewrites)} times")
