"""What `grue play` prints while an episode runs: observers of its trace.

A terminal gets colours, a pipe gets the same lines without, `--json` one object a line. What the game, the
model and the tools say is untrusted and is made printable before it is shown.
"""

import json
import textwrap
from collections.abc import Callable
from typing import Any, TextIO

from msgspec import Struct, structs

from grue.facts import Decided, EpisodeEnded, EpisodeStarted, McpInitialized, Observed
from grue.messages import (
    CompletionRetried,
    ConnectFailed,
    FinalForced,
    McpDisabled,
    RepairRequested,
    ServerDied,
    ServerNoted,
    ToolCalled,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnCompleted,
)
from grue.protocol.safe_text import printable
from grue.runtime.trace import Envelope

_WIDEST = 96
_THOUGHT_CHARS = 300
_BOLD, _DIM, _RED, _GREEN, _YELLOW, _CYAN = "1", "2", "31", "32", "33", "36"


class LiveView:
    """Print each turn as it happens: place, thoughts and tool calls, command, answer, score.

    Args:
        out: Where to print.
        colour: With ANSI colours.
        width: Columns.
    """

    def __init__(self, out: TextIO, *, colour: bool, width: int) -> None:
        self._out = out
        self._colour = colour
        self._width = max(40, min(width, _WIDEST))
        self._turn = 0
        self._score: int | None = None
        self._tellers: dict[type[Struct], Callable[[Any], None]] = {
            EpisodeStarted: self._episode,
            Observed: self._observed,
            Decided: self._decided,
            ToolCalled: self._tool,
            ToolReturned: self._tool_error,
            ServerNoted: self._progress,
        }

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Print what an envelope tells a person who watches."""
        del line
        body = envelope.body
        if type(body) in self._tellers:
            self._tellers[type(body)](body)
        else:
            trouble = _trouble(body)
            if trouble:
                self._lines(f"  ! {printable(trouble, _THOUGHT_CHARS)}", _YELLOW, "    ")
        self._out.flush()

    def _episode(self, body: EpisodeStarted) -> None:
        self._lines(printable(body.game), _BOLD)
        tools = f"tools from {', '.join(body.servers)}" if body.servers else "no tools"
        self._lines(printable(f"model {body.model} · {tools} · seed {body.seed}"), _DIM)
        if body.scripted:
            self._lines("The model is a script that comes with grue; no LLM is asked.", _DIM)

    def _observed(self, body: Observed) -> None:
        for paragraph in body.text.strip().split("\n"):
            self._lines(printable(paragraph), "" if self._turn else _DIM)
        if self._turn and body.score is not None and self._score is not None:
            gained = body.score - self._score
            if gained:
                self._lines(f"{gained:+d} points", _GREEN if gained > 0 else _RED)
        if body.turn != self._turn:
            self._turn, self._score = body.turn, body.score
            place = f" · {body.location}" if body.location is not None else ""
            most = f"/{body.max_score}" if body.max_score is not None else ""
            score = f" · {body.score}{most} points" if body.score is not None else ""
            self._out.write("\n")
            self._lines(printable(f"Turn {body.turn}{place}{score}"), _BOLD)

    def _tool(self, body: ToolCalled) -> None:
        said = body.arguments.get("thought")
        if not isinstance(said, str):
            said = json.dumps(body.arguments, ensure_ascii=False)
        name = printable(f"{body.server}.{body.tool}", 60)
        self._lines(f"  {name}: {printable(said, _THOUGHT_CHARS)}", _CYAN, "    ")

    def _tool_error(self, body: ToolReturned) -> None:
        if body.result.is_error:
            self._lines(f"  ! {printable(body.result.error_message or '', _THOUGHT_CHARS)}", _YELLOW, "    ")

    def _progress(self, body: ServerNoted) -> None:
        if body.kind == "progress":
            self._lines(f"    … {printable(body.text, _THOUGHT_CHARS)}", _DIM, "      ")

    def _decided(self, body: Decided) -> None:
        if body.reasoning:
            self._lines(f"  {printable(body.reasoning, _THOUGHT_CHARS)}", _DIM, "  ")
        if body.kind != "answered":
            self._lines(f"  ({body.kind}: {printable(body.reason, _THOUGHT_CHARS)})", _YELLOW, "  ")
        self._lines(f"> {printable(body.action)}", _GREEN)

    def _lines(self, text: str, code: str, hanging: str = "") -> None:
        for line in textwrap.wrap(text, self._width, subsequent_indent=hanging) or [""]:
            shown = f"\x1b[{code}m{line}\x1b[0m" if self._colour and code else line
            self._out.write(f"{shown}\n")


def _trouble(body: object) -> str:
    """Return what went wrong, for the messages that say so; empty for all others."""
    match body:
        case McpInitialized(server=server, ignored=ignored, warnings=warnings):
            only = [f"only {server} is used; ignored: {', '.join(ignored)}"] if ignored else []
            return " ".join([*only, *warnings])
        case ConnectFailed(server=server, attempt=attempt, failure=failure, then="retry"):
            return f"{server} did not connect (attempt {attempt}: {failure.cause}); trying once more"
        case McpDisabled(server=server, reason=reason, newly=True):
            return f"{server} is disabled for the rest of the episode: {reason}"
        case ToolTimedOut(timeout_s=timeout_s):
            return f"no answer within {timeout_s:g} s"
        case ServerDied(server=server, failure=failure):
            return f"{server} died: {failure.cause}"
        case ToolSkipped(reason=reason):
            return reason
        case ToolRejected(error=error):
            return error
        case FinalForced(reason=reason):
            return f"asked for the final answer ({reason.replace('_', ' ')})"
        case RepairRequested(reason=reason):
            return f"asked once more, because {reason}"
        case CompletionRetried(attempt=attempt, delay_s=delay_s, failure=failure):
            return f"the model did not answer ({failure.message}); attempt {attempt + 1} in {delay_s:.1f} s"
        case _:
            return ""


class JsonLines:
    """Print the episode as JSON, one object a line: `episode`, then each `turn` with its `reply`, then `end`.

    Args:
        out: Where to print.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._turn: dict[str, object] = {}

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Print what is complete with this envelope."""
        del line
        match envelope.body:
            case EpisodeStarted() as started:
                self._print({"type": "episode", **structs.asdict(started)})
            case Observed() as seen:
                self._finish_turn(seen)
                self._turn = {
                    "type": "turn",
                    "turn": seen.turn,
                    "location": seen.location,
                    "score": seen.score,
                }
            case TurnCompleted() as end:
                self._turn["tool_calls"] = [
                    {"name": call.name, "arguments": call.arguments, "settlement": call.settlement}
                    for call in end.tool_calls
                ]
            case Decided() as decided:
                self._turn |= {
                    "action": decided.action,
                    "reasoning": decided.reasoning,
                    "kind": decided.kind,
                    "reason": decided.reason,
                }
            case EpisodeEnded() as ended:
                self._print({"type": "end", **structs.asdict(ended)})

    def _finish_turn(self, after: Observed) -> None:
        if "action" in self._turn:
            self._print({**self._turn, "reply": after.text, "score_after": after.score})

    def _print(self, entry: dict[str, object]) -> None:
        self._out.write(f"{json.dumps(entry)}\n")
        self._out.flush()
