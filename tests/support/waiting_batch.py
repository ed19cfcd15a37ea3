"""A program that sends its requests in provider batches and may be killed at any time; and a scripted model.

Run it as `python waiting_batch.py BASE_URL WIRE FOLDER TURNS`. Each turn calls a tool that appends a line to
the file `effects` beside FOLDER. Then the model answers with the tool's result.
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
    """Return a `Batching` that asks the provider for results often."""
    return Batching(**{"folder": str(folder), "first_look_s": 0.01, "look_every_s": 0.02, **more})


def settings(base_url: str, wire: Any = None, **more: Any) -> LlmSettings:
    """Return settings with a model that costs 2 USD per million tokens."""
    prices = {"m": Price(input=2.0, output=2.0)}
    given = {"model": "m", "api_key": "key", "retry": QUICK, "prices": prices, **more}
    return LlmSettings(base_url=base_url, wire=wire, **given)


def counting(request: LlmRequest) -> LlmReply:
    """Reply with a call of the tool with the user's text, and after that with the tool's result."""
    said = [each for each in request.messages if each["role"] == "tool"]
    if said:
        return text_reply(f"heard {said[-1]['content']}")
    user = next(each for each in request.messages if each["role"] == "user")
    text = user["content"] if isinstance(user["content"], str) else user["content"][0]["text"]
    return tool_calls_reply(("f.note", {"text": text}))


def requests(turns: int) -> list[TurnRequest[str]]:
    """Return requests for `turns` turns. Each text is used for two turns."""
    return [TurnRequest(user=f"turn {number // 2}") for number in range(turns)]


def noting(effects: Path, killed_at: Path | None = None) -> FunctionTools:
    """Return the tool. If the file `killed_at` exists, it deletes this file and kills its process once."""

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
    """Run all turns, and print the answers as JSON."""
    beside = Path(folder).parent
    tools = noting(beside / "effects", beside / "kill-in-tool")
    with Runner(llm=settings(base_url, wire), servers={"f": tools}) as runner:
        items = list(runner.map(requests(int(turns)), batch=batching(Path(folder)), concurrency=2))
    print(json.dumps([item.outcome.response if item.outcome else str(item.error) for item in items]))


if __name__ == "__main__":
    main(*sys.argv[1:])
