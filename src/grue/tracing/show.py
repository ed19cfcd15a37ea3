"""Print a trace as a table for people, or as JSON Lines for programs: `grue trace show FILE`.

Only one message is in memory at a time. For a table of a trace that is not followed, the file is read twice,
first for the widths of the columns.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import compress
from typing import Self

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.runtime.safe_text import printable
from grue.runtime.trace.format import TraceHeader, TraceLine
from grue.runtime.trace.reader import RecordedLine
from grue.runtime.trace.recorder import trace_line
from grue.tracing.columns import cells, cut, pad
from grue.tracing.facts import EpisodeResumed, counted
from grue.tracing.filters import EVERYTHING, Filter, turn_of_line
from grue.tracing.message_words import COLOURS, DIM, YELLOW, kind_of, kind_of_line, severity_of, summarize
from grue.tracing.reading import EpisodeBody, EpisodeEnvelope, EpisodeReader
from grue.tracing.turn_slices import turn_of

UNCUT_LIMIT = 500  # most characters of a message's text in the table
_LONGEST_ROUTE = 40
_BOLD = "1"


class _Column(Struct, frozen=True):
    heading: str
    live_width: int  # width in a live table, where the widest cell is not known beforehand
    dropped: int = 0  # place in the order in which a narrow table leaves columns out; 0: it stays
    right: bool = False


_COLUMNS = (
    _Column("seq", 5, right=True),
    _Column("time", 8, dropped=3, right=True),
    _Column("turn", 4, dropped=1, right=True),
    _Column("cause", 5, dropped=2, right=True),
    _Column("from → to", 16),
    _Column("message", 18),
)
_GAP = 2
_SUMMARY_SHARE = 0.42  # columns are left out until the summary has this share of the terminal's width


class _Layout(Struct, frozen=True):
    """The widths of the columns. Lines are cut to the terminal's `width`; with `None` they are not cut."""

    widths: tuple[int, ...]
    width: int | None
    colour: bool
    columns: tuple[_Column, ...]

    @classmethod
    def of(cls, widths: Iterable[int], width: int | None, colour: bool) -> Self:
        shown = dict(zip(_COLUMNS, widths, strict=True))
        widths = tuple(shown.values())
        for column in sorted((each for each in _COLUMNS if each.dropped), key=lambda each: each.dropped):
            if width is None or width - sum(shown.values()) - _GAP * len(shown) >= width * _SUMMARY_SHARE:
                break
            del shown[column]
        return cls(widths, width, colour, tuple(shown))

    def fit(self, line: str, colour: str) -> str:
        if self.width is not None:
            line = cut(line, self.width)
        return f"\x1b[{colour}m{line}\x1b[0m" if self.colour and colour else line

    def aligned(self, row: Iterable[str], summary: str) -> str:
        placed = [
            cell.rjust(width) if column.right else _padded(cell, width)
            for column, width, cell in zip(_COLUMNS, self.widths, row, strict=True)
            if column in self.columns
        ]
        return (" " * _GAP).join([*placed, summary]).rstrip()

    def headings(self) -> str:
        return self.fit(self.aligned((column.heading for column in _COLUMNS), ""), DIM)

    def rows(self, envelopes: Iterable[EpisodeEnvelope]) -> Iterator[str]:
        # The messages of turns that run at the same time alternate. The column `turn` tells them apart.
        turn, open_turns = 0, set[int]()
        has_column = any(column.heading == "turn" for column in self.columns)
        for envelope in envelopes:
            if turn_of(envelope) != turn:
                turn = turn_of(envelope)
                if not (has_column and (turn in open_turns or (open_turns and not turn))):
                    yield ""
                    yield self.fit(f"── {f'Turn {turn}' if turn else 'Outside turns'} ──", _BOLD)
            match envelope.body:
                case m.RunTurn():
                    open_turns.add(turn)
                case m.TurnCompleted() | m.TurnFailed() | m.TurnParked():
                    open_turns.discard(turn)
                case EpisodeResumed():
                    open_turns.clear()
            yield self.fit(
                self.aligned(_cells(envelope, turn, kind_of(envelope.body)), _summary(envelope)),
                COLOURS[severity_of(envelope.body)],
            )


def render(
    episode: EpisodeReader,
    wanted: Filter = EVERYTHING,
    *,
    width: int | None = None,
    colour: bool = False,
    watch: Callable[[EpisodeEnvelope], object] | None = None,
) -> Iterator[str]:
    """Yield the lines of the table, each cut to `width` columns of the terminal; `None`: not cut."""
    # `watch` is called with each message that is shown. Raises `TraceError` if the file cannot be read.
    widths = [cells(column.heading) for column in _COLUMNS]
    found = bytearray()
    for line in episode.lines():
        found.append(wanted.wants_line(line))
        if found[-1]:
            row = _cells(line.line, turn_of_line(line), kind_of_line(line))
            widths = [*map(max, widths, map(cells, row))]
    count, shown = len(found), sum(found)
    layout = _Layout.of(widths, width, colour)
    header = episode.header
    of = "" if shown == count else f"{shown} of "
    yield layout.fit(f"{headline(header.episode, header.started_at)}, {of}{counted(count, 'message')}", _BOLD)
    yield layout.headings()
    yield from layout.rows(_seen(compress(episode.lines(), found), watch))
    if episode.missing:
        lost = counted(episode.missing, "message")
        yield ""
        yield layout.fit(f"The file lacks {lost}: see where the numbers in the column `seq` jump.", YELLOW)
    if episode.cut_short:
        yield ""
        yield layout.fit(
            "The last line of the file was cut short: it is being written, or its writer was killed.", YELLOW
        )


def _seen(
    lines: Iterable[RecordedLine[EpisodeBody]], watch: Callable[[EpisodeEnvelope], object] | None
) -> Iterator[EpisodeEnvelope]:
    for line in lines:
        envelope = line.envelope()
        if watch is not None:
            watch(envelope)
        yield envelope


def render_live(
    header: TraceHeader,
    envelopes: Iterable[EpisodeEnvelope],
    *,
    width: int | None = None,
    colour: bool = False,
) -> Iterator[str]:
    """Yield the lines of the table as messages arrive. `width`: as for `render`."""
    layout = _Layout.of((column.live_width for column in _COLUMNS), width, colour)
    yield layout.fit(headline(header.episode, header.started_at), _BOLD)
    yield layout.headings()
    yield from layout.rows(envelopes)


def render_whole(envelopes: Iterable[EpisodeEnvelope], *, colour: bool = False) -> Iterator[str]:
    """Yield messages in full: a line for each field, and for each line of a text that has several."""
    layout = _Layout.of((column.live_width for column in _COLUMNS), None, colour)
    for envelope in envelopes:
        cells = _cells(envelope, turn_of(envelope), kind_of(envelope.body))
        turn = f"turn {cells[2]}, " if turn_of(envelope) else ""
        cause = f", caused by {cells[3]}" if cells[3] else ""
        redacted = "; a secret was removed" if envelope.redacted else ""
        copied = "; copied" if envelope.copied else ""
        yield layout.fit(
            f"{cells[0]}  {cells[5]}  {turn}{cells[4]}, after {cells[1]} s{cause}{redacted}{copied}", _BOLD
        )
        body = msgspec.to_builtins(envelope.body)
        body.pop("type", None)
        yield from _fields(body, "  ")
        yield ""


def _fields(value: object, indent: str) -> Iterator[str]:
    if isinstance(value, dict):
        pairs = [(f"{indent}{printable(str(name))}:", inner) for name, inner in value.items()]
    else:
        assert isinstance(value, list | tuple), "only what holds values is taken apart"
        pairs = [(f"{indent}-", inner) for inner in value]
    for label, inner in pairs:
        if isinstance(inner, dict | list | tuple) and inner:
            yield label
            yield from _fields(inner, f"{indent}  ")
        elif isinstance(inner, str) and "\n" in inner:
            yield label
            yield from (f"{indent}  {printable(line)}" for line in inner.split("\n"))
        else:
            shown = inner if isinstance(inner, str) else msgspec.json.encode(inner).decode()
            yield f"{label} {printable(shown)}"


def json_line(envelope: EpisodeEnvelope) -> str:
    """Return a message as a trace line that is safe to print. Its body is in the line, even if it is long."""
    return printable_json(msgspec.json.encode(trace_line(envelope, msgspec.json.encode(envelope.body))))


def printable_json(written: bytes) -> str:
    """Return JSON with unprintable characters written as JSON escapes."""
    text = written.decode()
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


# Cached, because a trace has few names in many messages, and measuring non-ASCII text is slow.
_padded = functools.lru_cache(maxsize=512)(pad)


@functools.lru_cache(maxsize=512)
def _route(sender: str, receiver: str) -> str:
    return printable(f"{sender} → {receiver}", _LONGEST_ROUTE)


def _cells(head: EpisodeEnvelope | TraceLine, turn: int, kind: str) -> tuple[str, ...]:
    cause = "" if head.cause is None else str(head.cause)
    return str(head.seq), f"{head.t:.3f}", str(turn), cause, _route(head.sender, head.receiver), kind


def _summary(envelope: EpisodeEnvelope) -> str:
    redacted = " (a secret was removed)" if envelope.redacted else ""
    copied = "(copied) " if envelope.copied else ""
    return printable(f"{copied}{summarize(envelope.body)}{redacted}", UNCUT_LIMIT)


def headline(episode: str, started_at: float) -> str:
    """Return an episode's name and start time as printable text."""
    try:
        began = f"{datetime.fromtimestamp(started_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        # A damaged trace may have any number as its start time.
        began = "at an unknown time"
    return f"Episode {printable(episode, 80)}, started {began}"
