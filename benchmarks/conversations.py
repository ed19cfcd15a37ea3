"""What a turn of a long conversation costs, early and late in it."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from measuring import Bar, Effort, Section, figure, ratio
from scaling import NEAR_LINEAR, InProcessModel, echo

from grue import (
    FunctionTools,
    LlmSettings,
    Recorder,
    Runner,
    TraceWriter,
    TurnOutcome,
    TurnRequest,
)
from grue.transports.llm.endpoint import LlmEndpoint

AROUND = 10
"""How many turns, up to the one that is named, are measured as that one."""

CALL = {"id": "same", "type": "function", "function": {"name": "tools.echo", "arguments": '{"text":"x"}'}}


class OneTurn(NamedTuple):
    """The cost of one turn."""

    cpu_ms: float
    trace_bytes: int
    saved_bytes: int
    sent_bytes: int


def call_then_answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the reply of a model that calls one tool and then answers."""
    calls = asked["messages"][-1]["role"] == "user"
    message: dict[str, Any] = {"role": "assistant", "content": None if calls else "done"}
    return {"choices": [{"message": message | ({"tool_calls": [CALL]} if calls else {})}]}


def last_message(body: bytes) -> dict[str, Any]:
    """Decode only the last message of a request.

    Decoding all messages would burden the processor's caches and the garbage collector more, the longer the
    conversation is. That would count as grue's own cost.
    """
    start = body.rfind(b'{"role":')
    message, _ = json.JSONDecoder().raw_decode(body[start:].decode())
    return {"messages": [message]}


class Talker:
    """Runs turns with one tool call each, in a saved conversation, and writes a trace."""

    def __init__(self, folder: Path) -> None:
        self.trace, self.saved = folder / "trace.jsonl", folder / "talk.jsonl"
        self.model = InProcessModel(call_then_answer, last_message)
        self.recorder = Recorder()
        self.writer = TraceWriter(self.trace, episode="benchmark")
        self.recorder.add(self.writer)
        settings = LlmSettings(base_url="http://127.0.0.1/v1", model="caller")
        self.runner = Runner(
            llm=LlmEndpoint(settings, transport=self.model),
            servers={"tools": FunctionTools({"echo": echo})},
            recorder=self.recorder,
        )
        self.talk = self.runner.conversation("You play.", path=self.saved)

    def ask(self) -> OneTurn:
        """Run the next turn of the conversation."""
        return self._measured(lambda: self.talk.ask("You are in a room."))

    def run(self) -> OneTurn:
        """Run a turn that uses no conversation."""
        request = TurnRequest[str](system="You play.", user="You are in a room.")
        return self._measured(lambda: self.runner.run_turn(request))

    def _measured(self, turn: Callable[[], TurnOutcome[str]]) -> OneTurn:
        model, begun = self.model, time.process_time()
        sizes = self._sizes()
        others = model.cpu_s
        outcome = turn()
        cpu_s = time.process_time() - begun - (model.cpu_s - others)
        if len(outcome.tool_calls) != 1:
            raise RuntimeError(f"{len(outcome.tool_calls)} tool calls instead of one")
        self.writer.flush()
        traced, saved, sent = (after - before for before, after in zip(sizes, self._sizes(), strict=True))
        return OneTurn(cpu_s * 1e3, traced, saved, sent)

    def _sizes(self) -> tuple[int, int, int]:
        return self.trace.stat().st_size, self.saved.stat().st_size, self.model.sent_bytes


def conversation_section(effort: Effort) -> Section:
    """Show that a turn costs the same late in a conversation as early in it (docs/performance.md)."""
    early_at, late_at = effort.talk
    with tempfile.TemporaryDirectory() as folder:
        talker = Talker(Path(folder))
        talker.run()
        alone = [talker.run() for _ in range(AROUND)]
        turns = [talker.ask() for _ in range(late_at)]
        talker.talk.close()
        talker.writer.close()
    early, late = turns[early_at - AROUND : early_at], turns[-AROUND:]
    cpu = {label: [turn.cpu_ms for turn in some] for label, some in (("early", early), ("late", late))}
    last, first = late[-1], early[-1]
    return Section(
        "talk",
        f"A conversation of {late_at} turns, a function tool each",
        f"Measured: this process's CPU for turns {early_at - AROUND + 1}-{early_at} and"
        f" {late_at - AROUND + 1}-{late_at}, with a trace and a saved file, the model in the same process"
        " with its own work taken out. Bytes sent are shown apart: a request holds the whole conversation.",
        [
            figure("CPU, a turn without a conversation", "ms", [turn.cpu_ms for turn in alone]),
            figure(f"CPU, turn {early_at}", "ms", cpu["early"]),
            figure(f"CPU, turn {late_at}", "ms", cpu["late"]),
        ],
        [
            Bar(
                "long conversation: CPU of a late turn, as a ratio to an early one's",
                ratio(cpu["late"], cpu["early"]),
                NEAR_LINEAR,
                "x",
            ),
            Bar(
                "long conversation: trace bytes of a late turn, as a ratio to an early one's",
                last.trace_bytes / first.trace_bytes,
                1.05,
                "x",
            ),
            Bar(
                "long conversation: bytes that a late turn adds to its file, as a ratio to an early one's",
                last.saved_bytes / first.saved_bytes,
                1.05,
                "x",
            ),
        ],
        {
            f"trace, turn {early_at} .. {late_at}": f"{first.trace_bytes} .. {last.trace_bytes} bytes",
            f"saved, turn {early_at} .. {late_at}": f"{first.saved_bytes} .. {last.saved_bytes} bytes",
            f"sent, turn {early_at} .. {late_at}": f"{first.sent_bytes} .. {last.sent_bytes} bytes",
        },
    )
