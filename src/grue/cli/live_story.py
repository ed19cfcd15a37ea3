"""The story of an episode: its turns, moves and tool calls in printable lines for people."""

import json
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from grue import messages as m
from grue.hosts.zork.facts import Decided, EpisodeStarted, McpInitialized, Observed
from grue.runtime.safe_text import printable
from grue.tracing.columns import cells
from grue.tracing.facts import EpisodeResumed, Severity, counted
from grue.tracing.message_words import COLOURS, DIM, GREEN, RED, YELLOW, problem_in, severity_of
from grue.tracing.stats_table import duration

BOLD, CYAN = "1", "36"

_TEXT_CHARS = 300
_NAME_CHARS = 60
_SECOND_COLUMN = "\0"  # stands for the second column of a wide character; no printable text contains it
_OPEN_END = re.compile(r"(?<=\w)\n")


class Line(Struct, frozen=True):
    """A paragraph of the story, in printable characters."""

    text: str
    style: str = ""  # ANSI attributes of `text`, such as "2" for dim
    hanging: str = ""  # the indentation of all rows but the first
    lead: str = ""  # printed before `text`, with `lead_style`
    lead_style: str = ""

    def rows(self, width: int, *, colour: bool) -> Iterator[str]:
        """Yield the paragraph in rows of at most `width` columns."""
        for number, row in enumerate(_wrapped(self.lead + self.text, width, self.hanging)):
            if not colour:
                yield row
            elif self.lead and number == 0 and row.startswith(self.lead):
                yield painted(self.lead, self.lead_style) + painted(row[len(self.lead) :], self.style)
            else:
                yield painted(row, self.style)


def _wrapped(text: str, width: int, hanging: str) -> list[str]:
    if cells(text) <= len(text):
        return textwrap.wrap(text, width, subsequent_indent=hanging) or [""]
    # `textwrap` counts characters, but a wide character fills two columns: insert a placeholder after it. A
    # row that ends between character and placeholder is one column wider than counted: hence `width - 1`.
    spaced = "".join(char + _SECOND_COLUMN * (cells(char) - 1) for char in text)
    rows = textwrap.wrap(spaced, width - 1, subsequent_indent=hanging)
    return [row.replace(_SECOND_COLUMN, "") for row in rows]


def painted(text: str, style: str) -> str:
    """Return `text` between escape sequences that set and reset `style`; without a style, `text` itself."""
    return f"\x1b[{style}m{text}\x1b[0m" if style and text else text


def call_text(call: m.ToolCalled) -> str:
    """Return a call's argument `thought`, or else all arguments as JSON, as one printable line."""
    thought = call.arguments.get("thought")
    text = thought if isinstance(thought, str) else json.dumps(call.arguments, ensure_ascii=False)
    return printable(text, _TEXT_CHARS)


def tool_name(call: m.ToolCalled) -> str:
    """Return the printable name `SERVER.TOOL` of the called tool."""
    return printable(f"{call.server}.{call.tool}", _NAME_CHARS)


class Story:
    """Converts the messages of a trace into lines for people.

    `beside_status`: a status line shows running tool calls, so a call is printed when it has ended.
    Otherwise a call is printed when it begins, and servers' progress messages are printed too.
    """

    def __init__(self, *, beside_status: bool = False) -> None:
        self._beside_status = beside_status
        self._under_way: dict[m.CallId, m.ToolCalled] = {}
        self._turn = 0
        self._score: int | None = None
        self._told: set[Struct] = set()
        self._printers: dict[type[Struct], Callable[[Any], Iterator[Line]]] = {
            EpisodeStarted: self._started,
            EpisodeResumed: self._resumed,
            McpInitialized: self._configured,
            Observed: self._observed,
            Decided: self._decided,
            m.ToolCalled: self._called,
            m.ToolReturned: self._returned,
            m.ToolTimedOut: self._settled,
            m.ServerDied: self._settled,
            m.ServerNoted: self._noted,
            m.ToolDrifted: self._once,
            m.ToolsUnseen: self._once,
            m.TurnCompleted: self._turn_over,
            m.TurnFailed: self._turn_over,
        }

    def lines(self, body: Struct) -> Iterator[Line]:
        """Return the lines for a message; most messages have none."""
        printer = self._printers.get(type(body))
        return printer(body) if printer else _problem(body)

    def _started(self, body: EpisodeStarted) -> Iterator[Line]:
        yield Line(printable(body.game), BOLD)
        tools = f"tools from {', '.join(body.servers)}" if body.servers else "no tools"
        yield Line(printable(f"model {body.model} · {tools} · seed {body.seed}"), DIM)
        if body.scripted:
            yield Line("The model is a script that comes with grue. No LLM is used.", DIM)

    def _resumed(self, body: EpisodeResumed) -> Iterator[Line]:
        yield Line(printable(f"Resuming {body.episode_id} after {counted(body.turns, 'turn')}."), DIM)
        for change in body.changes:
            yield Line(printable(f"{change.text}."), YELLOW)

    def _configured(self, body: McpInitialized) -> Iterator[Line]:
        if body.problem():
            yield complaint(body.problem())

    def _observed(self, body: Observed) -> Iterator[Line]:
        for paragraph in body.text.strip().split("\n"):
            yield Line(printable(paragraph), "" if self._turn else DIM)
        if self._turn and body.score is not None and self._score is not None:
            gained = body.score - self._score
            if gained:
                yield Line(f"{gained:+d} points", GREEN if gained > 0 else RED)
        if body.turn != self._turn:
            self._turn, self._score = body.turn, body.score
            place = f" · {body.location}" if body.location is not None else ""
            most = f"/{body.max_score}" if body.max_score is not None else ""
            score = f" · {body.score}{most} points" if body.score is not None else ""
            yield Line("")
            yield Line(printable(f"Turn {body.turn}{place}{score}"), BOLD)

    def _called(self, body: m.ToolCalled) -> Iterator[Line]:
        if self._beside_status:
            self._under_way[body.call_id] = body
        else:
            yield _tool_line(body, "")

    def _returned(self, body: m.ToolReturned) -> Iterator[Line]:
        yield from self._done(body.call_id, body.duration_s)
        if body.result.is_error:
            yield complaint(body.result.error_message or "")

    def _settled(self, body: m.ToolTimedOut | m.ServerDied) -> Iterator[Line]:
        yield from self._done(body.call_id, body.duration_s)
        yield from _problem(body)

    def _done(self, call_id: m.CallId, duration_s: float) -> Iterator[Line]:
        call = self._under_way.pop(call_id, None)
        if call is not None:
            yield _tool_line(call, f" ({duration(duration_s)})")

    def _turn_over(self, _body: m.TurnCompleted | m.TurnFailed) -> Iterator[Line]:
        for call in self._under_way.values():
            yield _tool_line(call, " (given up)")
        self._under_way.clear()

    def _noted(self, body: m.ServerNoted) -> Iterator[Line]:
        if body.kind != "progress":  # progress is not a problem, and would fill `_told`
            yield from self._once(body)
        elif not self._beside_status:
            yield Line(f"    … {printable(body.text, _TEXT_CHARS)}", DIM, "      ")

    def _once(self, body: Struct) -> Iterator[Line]:
        # A server's problem is recorded anew in each turn, but shown once.
        if body not in self._told:
            self._told.add(body)
            yield from _problem(body)

    def _decided(self, body: Decided) -> Iterator[Line]:
        if body.reasoning:
            yield Line(f"  {printable(body.reasoning, _TEXT_CHARS)}", DIM, "  ")
        if body.kind != "answered":
            yield Line(f"  ({body.kind}: {printable(body.reason, _TEXT_CHARS)})", YELLOW, "  ")
        yield Line(f"> {printable(body.action)}", GREEN)


def _tool_line(call: m.ToolCalled, lasted: str) -> Line:
    return Line(f"{lasted}: {call_text(call)}", DIM, "    ", f"  {tool_name(call)}", CYAN)


def complaint(text: str, severity: Severity = "warn") -> Line:
    """Return the line for a problem. The text may be untrusted."""
    return Line(f"  ! {printable(in_one_line(text), _TEXT_CHARS)}", COLOURS[severity], "    ")


def in_one_line(text: str) -> str:
    """Return the lines of an error as one line. A line break after a word becomes a full stop and a space."""
    return _OPEN_END.sub(". ", text).replace("\n", " ")


def _problem(body: Struct) -> Iterator[Line]:
    text = problem_in(body)
    if text:
        yield complaint(text, severity_of(body))
