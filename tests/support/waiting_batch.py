"""A program that asks by batches and may be killed anywhere, and the endpoint that knows what it was asked.

As a program: `python waiting_batch.py BASE_URL WIRE FOLDER TURNS`. Each turn calls a tool that has an effect,
a line in the file `effects` beside the folder, and then answers with what the tool has said.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from grue import FunctionTools, LlmSettings, Runner, TurnRequest
from grue.policies import Batching
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.prices import Price
from grue.testing.llm_replies import LlmReply, text_reply, tool_calls_reply
from grue.testing.llm_server import LlmRequest

QUICK = RetryPolicy(initial_delay_s=0.01, max_delay_s=0.02, jitter_factor=0.0)
WIRES = tuple(name for name, each in FORMATS.items() if each.batches is not None)


def batching(folder: Path, **more: Any) -> Batching:
    """Return a batching that looks often."""
    return Batching(**{"folder": str(folder), "first_look_s": 0.01, "look_every_s": 0.02, **more})


def settings(base_url: str, wire: Any = None, **more: Any) -> LlmSettings:
    """Return the settings of a model that costs 2 USD for a million tokens."""
    prices = {"m": Price(input=2.0, output=2.0)}
    given = {"model": "m", "api_key": "key", "retry": QUICK, "prices": prices, **more}
    return LlmSettings(base_url=base_url, wire=wire, **given)


def counting(request: LlmRequest) -> LlmReply:
    """Call the tool with the turn's text, and then answer with what it has said."""
    said = [each for each in request.messages if each["role"] == "tool"]
    if said:
        return text_reply(f"heard {said[-1]['content']}")
    user = next(each for each in request.messages if each["role"] == "user")
    text = user["content"] if isinstance(user["content"], str) else user["content"][0]["text"]
    return tool_calls_reply(("f.note", {"text": text}))


def requests(turns: int) -> list[TurnRequest[str]]:
    """Return the requests of a batch; every second text is the same."""
    return [TurnRequest(user=f"turn {number // 2}") for number in range(turns)]


def noting(effects: Path, killed_at: Path | None = None) -> FunctionTools:
    """Return the tool. It kills its process once, after its effect, if the file `killed_at` is there."""

    def note(text: str) -> str:
        """Note a text."""
        with effects.open("a") as file:
            file.write(f"{text}\n")
        if killed_at is not None and killed_at.exists():
            killed_at.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    return FunctionTools({"note": note})


def main(base_url: str, wire: str, folder: str, turns: str) -> None:
    """Run the batch to its end, and print the answers as JSON."""
    beside = Path(folder).parent
    tools = noting(beside / "effects", beside / "kill-in-tool")
    with Runner(llm=settings(base_url, wire), servers={"f": tools}) as runner:
        items = list(runner.map(requests(int(turns)), batch=batching(Path(folder)), concurrency=2))
    print(json.dumps([item.outcome.response if item.outcome else str(item.error) for item in items]))


if __name__ == "__main__":
    main(*sys.argv[1:])
