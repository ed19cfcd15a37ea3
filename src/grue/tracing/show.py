"""A trace as a table for people: `grue trace show FILE`.

Each message is one line: its number, its time since the start, its turn, the number of the message that
caused it, who sent it to whom, what it is, and what it says in short. Nothing in it can move a cursor:
untrusted text is made printable, and the only escape sequences are the colours asked for.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import Struct

from grue.facts import EpisodeEnded, EpisodeStarted
from grue.messages import (
    CompletionReceived,
    CompletionRetried,
    RequestCompletion,
    RunTurn,
    ServerDied,
    ToolCalled,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
    Usage,
)
from grue.protocol.safe_text import cells, cut, pad, printable
from grue.tracing.reading import EpisodeEnvelope, EpisodeTrace
from grue.tracing.telling import telling

UNCUT_LIMIT = 500
"""Longest text of a message where no width is given, in characters."""

_HEADINGS = ("seq", "time", "turn", "cause", "from → to", "message", "")
_RIGHT_ALIGNED = 4
_BOLD, _DIM, _RED, _YELLOW, _GREEN = "1", "2", "31", "33", "32"
_COLOURS = {
    **dict.fromkeys(
        ["TurnFailed", "StartupFailed", "CompletionFailed", "ActorFailed", "McpInitFailed"], _RED
    ),
    **dict.fromkeys(["ToolTimedOut", "ServerDied", "ToolRejected", "ToolSkipped", "ConnectFailed"], _YELLOW),
    **dict.fromkeys(["McpDisabled", "ReplyUnusable", "FinalForced", "RepairRequested", "FellBack"], _YELLOW),
    **dict.fromkeys(["CompletionRetried", "DeadlinePassed", "TurnInterrupted"], _YELLOW),
    **dict.fromkeys(["TurnCompleted", "Decided"], _GREEN),
}


class _Row(Struct, frozen=True):
    turn: int
    columns: tuple[str, ...]
    colour: str


def render(trace: EpisodeTrace, *, width: int | None = None, colour: bool = False) -> Iterator[str]:
    """Yield the lines of the table, each turn under a heading of its own.

    Args:
        trace: As `read_episode` returns it.
        width: Columns of the terminal, to which each line is cut; `None`: none is.
        colour: Colour the lines by escape sequences; leave it off for a pipe.
    """
    rows = [_row(envelope) for envelope in trace.envelopes]
    widths = [
        max(cells(cell) for cell in column)
        for column in zip(_HEADINGS[:-1], *(row.columns[:-1] for row in rows), strict=True)
    ]
    yield _fit(_title(trace), width, _BOLD if colour else "")
    yield _fit(_aligned(_HEADINGS, widths), width, _DIM if colour else "")
    turn = 0
    for row in rows:
        if row.turn != turn:
            turn = row.turn
            yield ""
            yield _fit(f"── {f'Turn {turn}' if turn else 'Outside turns'} ──", width, _BOLD if colour else "")
        yield _fit(_aligned(row.columns, widths), width, row.colour if colour else "")
    if trace.cut_short:
        yield ""
        yield _fit(
            "The last line of the file was cut short: its writer was killed while it wrote.",
            width,
            _YELLOW if colour else "",
        )


def _row(envelope: EpisodeEnvelope) -> _Row:
    body = envelope.body
    kind = type(body).__name__
    failed = isinstance(body, ToolReturned) and body.result.is_error
    redacted = " (a secret was removed)" if envelope.redacted else ""
    return _Row(
        turn=_turn(envelope),
        columns=(
            str(envelope.seq),
            f"{envelope.t:.3f}",
            str(_turn(envelope)),
            "" if envelope.cause is None else str(envelope.cause),
            printable(f"{envelope.sender} → {envelope.receiver}", 40),
            kind,
            printable(f"{telling(body)}{redacted}", UNCUT_LIMIT),
        ),
        colour=_YELLOW if failed else _COLOURS.get(kind, ""),
    )


def _turn(envelope: EpisodeEnvelope) -> int:
    # A host notes its facts between turns too; most of them say which turn they belong to.
    return envelope.turn or getattr(envelope.body, "turn", 0)


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    *columns, last = row
    aligned = [
        cell.rjust(width) if position < _RIGHT_ALIGNED else pad(cell, width)
        for position, (cell, width) in enumerate(zip(columns, widths, strict=True))
    ]
    return "  ".join([*aligned, last]).rstrip()


def _fit(line: str, width: int | None, colour: str) -> str:
    if width is not None:
        line = cut(line, width)
    return f"\x1b[{colour}m{line}\x1b[0m" if colour else line


def _title(trace: EpisodeTrace) -> str:
    started = datetime.fromtimestamp(trace.header.started_at, UTC)
    count = len(trace.envelopes)
    messages = f"{count} message{'' if count == 1 else 's'}"
    return (
        f"Episode {printable(trace.header.episode, 80)}, started {started:%Y-%m-%d %H:%M:%S} UTC, {messages}"
    )


def summary(trace: EpisodeTrace) -> tuple[str, ...]:
    """Return a few lines that sum an episode up: turns and outcomes, requests, tool calls, how it ended."""
    bodies = [envelope.body for envelope in trace.envelopes]
    counts = Counter(type(body) for body in bodies)
    usage = sum((body.usage for body in bodies if isinstance(body, CompletionReceived)), Usage())
    errors = sum(isinstance(body, ToolReturned) and body.result.is_error for body in bodies)
    kinds = Counter[str](body.kind for body in bodies if isinstance(body, TurnCompleted))
    outcomes = {**kinds, "failed": counts[TurnFailed]}
    settled = {
        "returned": counts[ToolReturned] - errors,
        "returned an error": errors,
        "timed out": counts[ToolTimedOut],
        "lost with the server": counts[ServerDied],
    }
    unsent = {"skipped": counts[ToolSkipped], "rejected": counts[ToolRejected]}
    again = f" ({counts[CompletionRetried]} tried again)" if counts[CompletionRetried] else ""
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
    cost = f", {usage.cost_usd:.4f} USD" if usage.cost_usd is not None else ""
    return (
        f"turns       {counts[RunTurn]}{_listed(outcomes)}",
        f"requests    {counts[RequestCompletion]}{again}: {tokens}{cost}",
        f"tool calls  {counts[ToolCalled]}{_listed(settled)}{_listed(unsent, '; never sent: ')}",
        f"ended       {_ending(trace)}",
    )


def _listed(counts: dict[str, int], opening: str = ": ") -> str:
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{opening}{told}" if told else ""


def _ending(trace: EpisodeTrace) -> str:
    after = f"after {trace.envelopes[-1].t:.1f} s" if trace.envelopes else "at once"
    for envelope in reversed(trace.envelopes):
        match envelope.body:
            case EpisodeEnded(reason=reason, detail=detail, score=score, max_score=max_score):
                of = "" if max_score is None else f" of {max_score}"
                points = "" if score is None else f", score {score}{of}"
                return f"{reason}{points}, {after}: {printable(detail, UNCUT_LIMIT)}"
            case EpisodeStarted():
                return f"not by its host: killed, or still playing, {after}"
            case _:
                continue
    return f"{after}; no host recorded an episode"
