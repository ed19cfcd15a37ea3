"""The trace of a wrong answer shows what the model read and said. A fork runs the turn with another prompt.

The fork takes tool results from the trace, and calls no tool. If it asks for a call that the trace does not
have, it ends with `ForkMissed`. `grue trace html RUN` shows a trace as a page.
"""

import os

from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.hosting import read_episode
from grue.messages import CompletionReceived, ToolReturned


def stock(article: str) -> int:
    """Return how many of an article are left."""
    return {"eggs": 12}.get(article, 0)


llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
with Runner(llm=llm, servers={"pantry": FunctionTools([stock])}, trace="runs") as runner:
    wrong = runner.run_turn(TurnRequest(system="Guess.", user="How many eggs are left?", answer=int))

for envelope in read_episode(str(runner.trace)).envelopes:
    match envelope.body:
        case CompletionReceived(content=content, tool_calls=calls):
            print(f"{envelope.seq}: the model said {content!r}, and called {[call.name for call in calls]}")
        case ToolReturned(result=result):
            print(f"{envelope.seq}: the tool returned {result.content!r}")

with Runner(llm=llm, trace="runs") as other:
    again = other.fork(str(runner.trace), system="Look it up with the tool.", answer=int, misses="fail")
print(f"{wrong.response} became {again.response}")
