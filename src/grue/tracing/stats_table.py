"""Print an episode's statistics: a summary of a few lines, and the tables of `grue trace stats`."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from grue.runtime.safe_text import printable
from grue.tracing.columns import cells, cut, pad
from grue.tracing.facts import EpisodeEnded, counted, said_by
from grue.tracing.show import headline
from grue.tracing.stats import Durations, EpisodeStats, ServerStats, TimePhase

_BOLD = "1"
_LONGEST_DETAIL = 500
_NARROWEST_NAME = 8
_BAR = 24
_LABEL = 12
_PHASES: dict[TimePhase, str] = {
    "model": "model",
    "tools": "tools",
    "startup": "server start-up",
    "teardown": "teardown",
    "host": "host and game",
    "other": "other",
}
_TOOL_HEADINGS = ("", "calls", "err", "late", "lost", "skip", "rej", "deny", "p50", "p95", "max", "")
_DENIED = _TOOL_HEADINGS.index("deny")
_SERVER_HEADINGS = ("", "starts", "failed", "retries", "deaths", "p50", "max", "endings")
_SLOW_HEADINGS = ("", "took", "outcome", "requests", "calls", "mostly")
Row = Sequence[str]


def render(stats: EpisodeStats, *, width: int | None = None, colour: bool = False) -> Iterator[str]:
    """Yield the lines of the headline, the summary and the tables."""
    # If `width` is `None`, no line is wrapped or cut, but the tables shorten long names as for 80 columns.
    room = 80 if width is None else width

    def shown(line: str, code: str = "") -> str:
        line = line.rstrip() if width is None else cut(line.rstrip(), width)
        return f"\x1b[{code}m{line}\x1b[0m" if colour and code else line

    yield shown(headline(stats.episode, stats.started_at), _BOLD)
    for line in (*summary(stats, width), *_wrapped(_more(stats), width)):
        yield shown(line)
    for title, headings, rows in (
        (f"Time: {duration(stats.wall_s)}", (), _phase_rows(stats)),
        ("Tools", (), _tool_table(stats)),
        ("Servers", _SERVER_HEADINGS, _server_rows(stats)),
        ("Slowest turns", _SLOW_HEADINGS, _slow_rows(stats)),
    ):
        if rows:
            yield ""
            yield shown(title, _BOLD)
            yield from map(shown, _grid([headings, *rows] if headings else rows, room))


def summary(stats: EpisodeStats, width: int | None = None) -> tuple[str, ...]:
    """Return a summary of an episode in a few lines, wrapped at `width` unless `width` is `None`."""
    usage, model, turns = stats.model.usage, stats.model, stats.turns
    again = _listed(
        {"tried again": model.retries, "cut short": model.cut_replies, "dropped": model.dropped_replies}, " ("
    )
    tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
    cost = f", {usage.cost_usd:.4f} USD" if usage.cost_usd is not None else ""
    settled = {
        "returned": sum(tool.returned for tool in stats.tools),
        "returned an error": sum(tool.errors for tool in stats.tools),
        "timed out": sum(tool.timed_out for tool in stats.tools),
        "lost with the server": sum(tool.lost for tool in stats.tools),
    }
    calls = sum(tool.calls for tool in stats.tools)
    # Calls that were interrupted, or that still run.
    settled["without a result"] = max(0, calls - sum(settled.values()))
    unsent = {
        "skipped": sum(tool.skipped for tool in stats.tools),
        "rejected": sum(tool.rejected for tool in stats.tools),
        "denied": sum(tool.denied for tool in stats.tools),
    }
    cut = f"; cut before the model read it: {model.cut_results}" if model.cut_results else ""
    parked = f"; {counted(turns.parkings, 'parking')}" if turns.parkings else ""
    lines = (
        _labelled("turns", f"{turns.started}{_listed(turns.outcomes)}{parked}"),
        _labelled("requests", f"{model.requests}{again and f'{again})'}: {tokens}{cost}"),
        _labelled("tool calls", f"{calls}{_listed(settled)}{_listed(unsent, '; never sent: ')}{cut}"),
        _labelled("ended", _ending(stats)),
    )
    return tuple(_wrapped(lines, width))


def duration(seconds: float) -> str:
    """Return a duration as text, such as `12.5 ms` or `3.20 s`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"


def _more(stats: EpisodeStats) -> Iterator[str]:
    usage = stats.model.usage
    if usage.cached_tokens or usage.reasoning_tokens:
        yield _labelled(
            "of these", f"{usage.cached_tokens} in cached, {usage.reasoning_tokens} out reasoning"
        )
    yield _labelled("iterations", f"{stats.turns.iterations}")
    yield _labelled("turn time", _spread(stats.turns.duration))
    yield _labelled("reply time", _spread(stats.model.duration))
    if stats.resumptions:
        yield _labelled("resumed", "once" if stats.resumptions == 1 else f"{stats.resumptions} times")
    beside = f", {size(stats.payload_bytes)} of payloads beside it" if stats.payload_bytes else ""
    lacks = f"; {counted(stats.missing, 'message')} missing between these" if stats.missing else ""
    lacks += "; its last line was cut short" if stats.cut_short else ""
    yield _labelled(
        "trace", f"{counted(stats.messages, 'message')}, {size(stats.trace_bytes)}{beside}{lacks}"
    )


def _phase_rows(stats: EpisodeStats) -> list[Row]:
    if not stats.wall_s:
        return []
    shares = [(_PHASES[phase], took, took / stats.wall_s) for phase, took in stats.phases.by_phase.items()]
    return [(name, duration(took), f"{share:.1%}", "█" * round(share * _BAR)) for name, took, share in shares]


def _tool_table(stats: EpisodeStats) -> list[Row]:
    rows: list[Row] = [
        (
            printable(tool.tool, 80),
            *map(str, (tool.calls, tool.errors, tool.timed_out, tool.lost)),
            *map(str, (tool.skipped, tool.rejected, tool.denied)),
            *_percentiles(tool.duration),
            "",
        )
        for tool in stats.tools
    ]
    table = [_TOOL_HEADINGS, *rows] if rows else []
    if any(tool.denied for tool in stats.tools):
        return table
    return [(*row[:_DENIED], *row[_DENIED + 1 :]) for row in table]  # few episodes need this column


def _server_rows(stats: EpisodeStats) -> list[Row]:
    return [
        (
            printable(server.server, 80),
            *map(str, (server.starts, server.failed_starts, server.retries, server.deaths)),
            *map(duration, (server.startup.p50_s, server.startup.max_s)),
            _endings(server),
        )
        for server in stats.servers
    ]


def _endings(server: ServerStats) -> str:
    parts = [f"{count} {ending}" for ending, count in server.endings.items() if ending != "none"]
    if server.spares:
        parts.append(f"{server.spares} opened ahead")
    if server.spares_lost:
        parts.append(f"{server.spares_lost} lost before use")
    return ", ".join([*parts, "disabled"] if server.disabled else parts)


def _slow_rows(stats: EpisodeStats) -> list[Row]:
    return [
        (
            f"turn {turn.turn}",
            duration(turn.duration_s),
            turn.outcome,
            *map(str, (turn.requests, turn.tool_calls)),
            f"{_PHASES[turn.phases.longest]} {duration(turn.phases.by_phase[turn.phases.longest])}",
        )
        for turn in stats.slowest_turns
    ]


def _grid(rows: Sequence[Row], room: int) -> Iterator[str]:
    """Yield a line for each row. The first and the last column are aligned left, all others right."""
    widths = [max(map(cells, column)) for column in zip(*rows, strict=True)]
    others = sum(widths[1:]) + 2 * len(widths)
    widths[0] = min(widths[0], max(_NARROWEST_NAME, room - others))
    for name, *middle, last in rows:
        aligned = [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        yield "  ".join([f"  {pad(cut(name, widths[0]), widths[0])}", *aligned, last])


def _percentiles(durations: Durations) -> tuple[str, str, str]:
    if not durations.count:
        return ("", "", "")
    return (duration(durations.p50_s), duration(durations.p95_s), duration(durations.max_s))


def _spread(durations: Durations) -> str:
    if not durations.count:
        return "none measured"
    return "p50 {}, p95 {}, max {}".format(*_percentiles(durations))


def _listed(counts: Mapping[str, int], opening: str = ": ") -> str:
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{opening}{text}" if text else ""


def _ending(stats: EpisodeStats) -> str:
    after = f"after {duration(stats.wall_s)}" if stats.messages else "at once"
    if stats.ending is not None:
        end, won = stats.ending, said_by(stats.ending, EpisodeEnded.result)
        result = f", {printable(won, _LONGEST_DETAIL)}" if won else ""
        texts = (end.reason, end.detail.replace("\n", " "))
        reason, detail = (printable(text, _LONGEST_DETAIL) for text in texts)
        return f"{reason}{result}, {after}: {detail}"
    if stats.hosted:
        return f"{after}; its host recorded no end: it was killed, or is still running"
    if stats.turns.open:
        return f"{after}, in the middle of a turn: it was cancelled, its program was killed, or it still runs"
    return after if stats.messages else f"{after}; nothing was recorded"


def _labelled(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _wrapped(lines: Iterable[str], width: int | None) -> Iterator[str]:
    for line in lines:
        if width is None:
            yield line
            continue
        for part in textwrap.wrap(line, width, subsequent_indent=" " * _LABEL):
            yield cut(part, width)


def size(count: int) -> str:
    """Return a number of bytes as text, such as `1.5 kB`."""
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
