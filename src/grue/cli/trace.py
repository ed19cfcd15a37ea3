"""`grue trace show` and `grue trace stats`: print a trace, or its statistics."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from grue.tracing import show as table
from grue.tracing import stats_table
from grue.tracing.counts import EpisodeTally, count_episode
from grue.tracing.filters import EVERYTHING, Filter
from grue.tracing.message_words import kind_of_line
from grue.tracing.reading import EpisodeReader, open_episode

_UNKNOWN_WIDTH = 100


class ShowOptions(Struct, frozen=True, kw_only=True):
    """The options of `grue trace show`; an empty filter lets everything through."""

    file: Path
    turns: Sequence[str] = ()
    messages: Sequence[str] = ()
    actors: Sequence[str] = ()
    kinds: Sequence[str] = ()
    texts: Sequence[str] = ()
    failures: bool = False
    whole: bool = False
    follow: bool = False
    as_json: bool = False
    width: int | None = None


def show(options: ShowOptions) -> None:
    """Print a trace as a table, or as JSON Lines; cut to the terminal's width, whole in a pipe.

    If a finished episode is shown without filters, a summary follows.

    Raises:
        MCPConfigError: A filter cannot be read.
        TraceError: The trace cannot be read.
    """
    episode = open_episode(options.file)
    wanted = Filter.of(
        turns=options.turns,
        messages=options.messages,
        actors=options.actors,
        kinds=options.kinds,
        texts=options.texts,
        failures=options.failures,
        facts=set(map(kind_of_line, episode.lines())) if options.kinds else (),
    )
    lines = _live_lines(episode, wanted, options) if options.follow else _lines(episode, wanted, options)
    _print(lines, at_once=options.follow)


def shown_lines(file: Path, turn: str) -> Iterable[str]:
    """Yield one turn of a trace as a table without colours, cut to the terminal's width.

    Raises:
        TraceError: The trace cannot be read.
    """
    wanted = Filter.of(turns=(turn,))
    return table.render(open_episode(file), wanted, width=_width(None), colour=False)


def stats(file: Path, *, as_json: bool, width: int | None = None) -> None:
    """Print an episode in numbers, as tables or as one JSON object.

    Raises:
        TraceError: The trace cannot be read.
    """
    counted = count_episode(open_episode(file))
    if as_json:
        _print([table.printable_json(msgspec.json.encode(counted))])
    else:
        _print(stats_table.render(counted, width=_width(width), colour=_colour()))


def _lines(episode: EpisodeReader, wanted: Filter, options: ShowOptions) -> Iterable[str]:
    if options.as_json:
        wanted_lines = filter(wanted.wants_line, episode.lines())
        yield from (table.json_line(line.envelope()) for line in wanted_lines)
        return
    if options.whole:
        wanted_lines = filter(wanted.wants_line, episode.lines())
        yield from table.render_whole((line.envelope() for line in wanted_lines), colour=_colour())
        return
    width = _width(options.width)
    tally = EpisodeTally() if wanted == EVERYTHING else None
    watch = None if tally is None else tally.take
    yield from table.render(episode, wanted, width=width, colour=_colour(), watch=watch)
    if tally is not None:
        yield ""
        yield from stats_table.summary(tally.stats(episode), width)


def _live_lines(episode: EpisodeReader, wanted: Filter, options: ShowOptions) -> Iterable[str]:
    # Only the end of the episode ends this loop; Ctrl-C arrives as an exception.
    envelopes = filter(wanted.wants, episode.follow(lambda: False))
    if options.as_json:
        return map(table.json_line, envelopes)
    if options.whole:
        return table.render_whole(envelopes, colour=_colour())
    return table.render_live(episode.header, envelopes, width=_width(options.width), colour=_colour())


def _print(lines: Iterable[str], *, at_once: bool = False) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
        if at_once:
            sys.stdout.flush()
    # Flush here, so that a closed pipe is noticed while the error can still be reported.
    sys.stdout.flush()


def _width(width: int | None) -> int | None:
    if width is None and sys.stdout.isatty():
        return shutil.get_terminal_size((_UNKNOWN_WIDTH, 24)).columns
    return width


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
