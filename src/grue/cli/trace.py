"""`grue trace show` and `grue trace stats`: print a trace, or its statistics."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from grue.cli.saying import GRUE, say, shown_argument, shown_path
from grue.runtime.safe_text import printable
from grue.tracing import show as table
from grue.tracing import stats_table
from grue.tracing.counts import EpisodeTally, count_episode
from grue.tracing.filters import EVERYTHING, Filter, turn_of_line
from grue.tracing.message_words import kind_of_line
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader, open_episode

_UNKNOWN_WIDTH = 100
_MOST_NAMES, _NAME_CHARS = 30, 60


class ShowOptions(Struct, frozen=True, kw_only=True):
    """The options of `grue trace show`. An empty filter matches every message."""

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


def show(options: ShowOptions) -> bool:
    """Print a trace as a table or as JSON Lines; return `False` if no message matches the filters."""
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
    if not options.follow and wanted != EVERYTHING and not any(map(wanted.wants_line, episode.lines())):
        fits = "reports a failure or a problem" if wanted == Filter(failures=True) else "fits"
        say(f"grue: No message of {shown_path(episode.path)} {fits}. {_what_there_is(episode)}", err=True)
        return False
    print_lines(_lines(episode, wanted, options), at_once=options.follow)
    if not options.follow:
        for turns in wanted.turns:
            _say_if_repeated(episode, turns)
    return True


def _say_if_repeated(episode: EpisodeReader, turns: range) -> None:
    # Several turns have the number that the user asked for if a parked turn was resumed, or if `Runner.map`
    # was called several times, because each call counts its turns from 1.
    begun, last = [], 0
    for line in episode.lines() if len(turns) == 1 and turns.start else ():
        last = line.line.seq
        if turn_of_line(line) == turns.start and kind_of_line(line) == "RunTurn":
            begun.append(last)
    if len(begun) < 2:
        return
    *others, latest = begun
    only = f"{shown_argument(episode.path)} --turn {turns.start} --message {latest}-{last}"
    say(
        f"grue: Turn {turns.start} begins {len(begun)} times here, at messages"
        f" {', '.join(map(str, others))} and {latest}: each map counts its turns from 1, and a turn that goes"
        f" on later begins again. To see the last alone: {GRUE} trace show {only}",
        err=True,
    )


def _what_there_is(episode: EpisodeReader) -> str:
    first = last = 0
    turns: set[int] = set()
    actors: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for line in episode.lines():
        first, last = first or line.line.seq, line.line.seq
        turns.add(turn_of_line(line))
        actors.update({line.line.sender, line.line.receiver})
        kinds[kind_of_line(line)] += 1
    if not last:
        return "It has no messages."
    named = sorted(turns - {0})
    between = (
        f", of the turns {named[0]} to {named[-1]}" if named[1:] else f", of turn {named[0]}" if named else ""
    )
    return (
        f"It has the messages {first} to {last}{between}.\n"
        f"Actors: {_some(actors)}.\nKinds of messages: {_some(kinds)}."
    )


def _some(counts: Counter[str]) -> str:
    names = sorted(printable(name, _NAME_CHARS) for name, _ in counts.most_common(_MOST_NAMES) if name)
    more = f" and {len(counts) - _MOST_NAMES} more" if len(counts) > _MOST_NAMES else ""
    return ", ".join(names) + more


def shown_lines(file: Path, turn: str) -> Iterable[str]:
    """Yield one turn of a trace as a table without colours, cut to the terminal's width."""
    wanted = Filter.of(turns=(turn,))
    return table.render(open_episode(file), wanted, width=table_width(None), colour=False)


def stats(file: Path, *, as_json: bool, width: int | None = None) -> None:
    """Print an episode in numbers, as tables or as one JSON object."""
    counted = count_episode(open_episode(file))
    if as_json:
        print_lines([table.printable_json(msgspec.json.encode(counted))])
    else:
        print_lines(stats_table.render(counted, width=table_width(width), colour=_colour()))


def _lines(episode: EpisodeReader, wanted: Filter, options: ShowOptions) -> Iterable[str]:
    envelopes: Iterable[EpisodeEnvelope]
    if options.follow:
        # Only the end of the episode or a Ctrl-C stops `follow`.
        envelopes = filter(wanted.wants, episode.follow(lambda: False))
    else:
        envelopes = (line.envelope() for line in filter(wanted.wants_line, episode.lines()))
    if options.as_json:
        return map(table.json_line, envelopes)
    if options.whole:
        return table.render_whole(envelopes, colour=_colour())
    width = table_width(options.width)
    if options.follow:
        return table.render_live(episode.header, envelopes, width=width, colour=_colour())
    return _table(episode, wanted, width)


def _table(episode: EpisodeReader, wanted: Filter, width: int | None) -> Iterator[str]:
    tally = EpisodeTally() if wanted == EVERYTHING else None
    watch = None if tally is None else tally.take
    yield from table.render(episode, wanted, width=width, colour=_colour(), watch=watch)
    if tally is not None:
        yield ""
        yield from stats_table.summary(tally.stats(episode), width)


def print_lines(lines: Iterable[str], *, at_once: bool = False) -> None:
    """Print lines, in which the caller has replaced control characters. `at_once`: flush after each line."""
    for line in lines:
        sys.stdout.write(f"{line}\n")
        if at_once:
            sys.stdout.flush()
    # A closed pipe raises BrokenPipeError now, and not at exit, where nobody handles it.
    sys.stdout.flush()


def table_width(width: int | None) -> int | None:
    """Return how many columns a table may have: `width`, or else the terminal's; `None`: any number."""
    if width is None and sys.stdout.isatty():
        return shutil.get_terminal_size((_UNKNOWN_WIDTH, 24)).columns
    return width


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
