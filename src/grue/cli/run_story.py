"""The story of a skill agent's run, in lines and as JSON: its turns, its steps, what it tells the user."""

import json
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.cli.live_story import BOLD, CYAN, Line, Story, complaint
from grue.engine.action_facts import ActionsPlanned, StepEnded
from grue.engine.actions import StepExecutionResult
from grue.hosting import McpServersConnected
from grue.hosts.skill_agent.facts import FACTS, RunEnded, RunStarted
from grue.runtime.safe_text import printable
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeResumed, EventFact, Fact
from grue.tracing.message_words import DIM, GREEN
from grue.tracing.stats_table import duration

_TEXT_CHARS = 300
_PRINTED: tuple[type[Fact], ...] = (*FACTS, RunStarted, EpisodeResumed, RunEnded)


class RunStory(Story):
    """Turn the messages of a run into lines.

    Args:
        beside_status: A status line shows what is under way.
    """

    def __init__(self, *, beside_status: bool = False) -> None:
        super().__init__(beside_status=beside_status)
        self._printers: dict[type[Struct], Callable[[Any], Iterator[Line]]] = {
            RunStarted: self._run_started,
            EpisodeResumed: self._resumed,
            McpServersConnected: self._connected,
            ActionsPlanned: self._planned,
            StepEnded: self._step_ended,
            m.ServerNoted: self._noted,
        }

    def lines(self, body: Struct) -> Iterator[Line]:
        """Return the lines for a message; most messages have none."""
        printer = self._printers.get(type(body))
        if printer is not None:
            return printer(body)
        if isinstance(body, EventFact) and body.level != "info":
            return iter((complaint(body.summary()),))
        return super().lines(body)

    def _run_started(self, body: RunStarted) -> Iterator[Line]:
        yield Line(printable(body.task, _TEXT_CHARS), BOLD)
        yield Line(printable(f"model {body.model}"), DIM)
        if body.scripted:
            yield Line("The model is a script that comes with grue. No LLM is used.", DIM)

    def _connected(self, body: McpServersConnected) -> Iterator[Line]:
        yield Line(printable(body.summary(), _TEXT_CHARS), DIM)

    def _planned(self, body: ActionsPlanned) -> Iterator[Line]:
        yield Line("")
        yield Line(f"Turn {body.turn}", BOLD)
        if body.thought:
            yield Line(f"  {printable(body.thought, _TEXT_CHARS)}", DIM, "  ")

    def _step_ended(self, body: StepEnded) -> Iterator[Line]:
        result = body.result
        if result.action == "respond" and result.status == "completed":
            yield Line(f"  {printable(result.output, _TEXT_CHARS)}", "", "  ")
        elif result.action == "finish" and result.status == "completed":
            yield Line(f"> {printable(result.output, _TEXT_CHARS)}", GREEN, "  ")
        else:
            yield _step_line(result)
        if result.status != "completed":
            yield complaint(result.error or result.status)


def _step_line(result: StepExecutionResult) -> Line:
    name = printable(f"{result.action} {result.target}".rstrip(), 80)
    said = printable(" ".join(result.output.split()), _TEXT_CHARS)
    lasted = f" ({duration(result.duration_s)})" if result.duration_s >= 0.1 else ""
    return Line(f"{lasted}{': ' if said else ''}{said}", DIM, "    ", f"  {name}", CYAN)


class RunLines:
    """Print a run as JSON, one object a line: each event of the host, and the result at the end.

    Args:
        out: Where to print.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Print the events of an envelope."""
        del line
        body = envelope.body
        if isinstance(body, _PRINTED):
            for event in body.log_lines():
                self.write({"type": event.event, "turn": envelope.turn, **event.fields})

    def write(self, entry: dict[str, object]) -> None:
        """Print one object."""
        self._out.write(f"{json.dumps(msgspec.to_builtins(entry))}\n")
        self._out.flush()
