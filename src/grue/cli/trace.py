"""The commands of `grue trace`, except `query` and `to-test`."""

import itertools
import json
import shutil
import sys
import threading
import webbrowser
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from grue.cli.live_terminal import Terminal
from grue.cli.saying import GRUE, say, say_page, shown_argument, shown_path
from grue.errors import MCPConfigError, TraceError
from grue.runtime.files import os_cause
from grue.runtime.safe_text import printable
from grue.tracing import diff as differences
from grue.tracing import replay as replaying
from grue.tracing import show as table
from grue.tracing import stats_table
from grue.tracing.changes import Changes, parted
from grue.tracing.columns import cut
from grue.tracing.counts import EpisodeTally, count_episode
from grue.tracing.diagram import WIDTH, mermaid, plain
from grue.tracing.facts import counted
from grue.tracing.filters import EVERYTHING, Filter, turn_of_line
from grue.tracing.live_server import LiveFeed, serving
from grue.tracing.message_words import kind_of_line
from grue.tracing.page_file import refuse_foreign
from grue.tracing.prompt_cache import CachedPrompt, CacheReport, cache_report, told
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader, open_episode, trace_schema
from grue.tracing.turn_slices import split_turns
from grue.tracing.viewer import write_comparison, write_html

_UNKNOWN_WIDTH = 100
_MOST_NAMES, _NAME_CHARS = 30, 60


def show(
    file: Path, filters: Mapping[str, Any], *, whole: bool, follow: bool, as_json: bool, width: int | None
) -> bool:
    """Print a trace; return `False` if no message matches the filters, except if the trace is followed."""
    episode = open_episode(file)
    wanted = Filter.of(**filters, facts=set(map(kind_of_line, episode.lines())) if filters["kinds"] else ())
    if not follow and wanted != EVERYTHING and not any(map(wanted.wants_line, episode.lines())):
        fits = "reports a failure or a problem" if wanted == Filter(failures=True) else "fits"
        say(f"grue: No message of {shown_path(episode.path)} {fits}. {_what_there_is(episode)}", err=True)
        return False
    envelopes: Iterable[EpisodeEnvelope]
    if follow:
        # Only the end of the episode or a Ctrl-C stops `follow`.
        envelopes = filter(wanted.wants, episode.follow(lambda: False))
    else:
        envelopes = (line.envelope() for line in filter(wanted.wants_line, episode.lines()))
    colour = Terminal(sys.stdout).colour
    if as_json:
        lines: Iterable[str] = map(table.json_line, envelopes)
    elif whole:
        lines = table.render_whole(envelopes, colour=colour)
    elif follow:
        lines = table.render_live(episode.header, envelopes, width=table_width(width), colour=colour)
    else:
        lines = _table(episode, wanted, table_width(width))
    print_lines(lines, at_once=follow)
    if not follow:
        for turns in wanted.turns:
            _say_if_repeated(episode, turns)
    return True


def _say_if_repeated(episode: EpisodeReader, turns: range) -> None:
    # A turn that was resumed has several `RunTurn`, and each call of `Runner.map` counts its turns from 1.
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
    between = f", of turn {named[0]}" if named else ""
    if named[1:]:
        between = f", of the turns {named[0]} to {named[-1]}"
    which = f"It has the messages {first} to {last}{between}."
    return f"{which}\nActors: {_some(actors)}.\nKinds of messages: {_some(kinds)}."


def _some(counts: Counter[str]) -> str:
    names = sorted(printable(name, _NAME_CHARS) for name, _ in counts.most_common(_MOST_NAMES) if name)
    more = f" and {len(counts) - _MOST_NAMES} more" if len(counts) > _MOST_NAMES else ""
    return ", ".join(names) + more


def shown_lines(file: Path, turn: str) -> Iterable[str]:
    """Yield one turn of a trace as a table without colours; at a terminal, lines are cut to its width."""
    return table.render(open_episode(file), Filter.of(turns=(turn,)), width=table_width(None), colour=False)


def stats(file: Path, *, as_json: bool, width: int | None = None) -> None:
    """Print an episode in numbers, as tables or as one JSON object."""
    counted = count_episode(open_episode(file))
    if as_json:
        print_lines([table.printable_json(msgspec.json.encode(counted))])
    else:
        print_lines(stats_table.render(counted, width=table_width(width), colour=Terminal(sys.stdout).colour))


def _table(episode: EpisodeReader, wanted: Filter, width: int | None) -> Iterator[str]:
    tally = EpisodeTally() if wanted == EVERYTHING else None
    watch = None if tally is None else tally.take
    yield from table.render(episode, wanted, width=width, colour=Terminal(sys.stdout).colour, watch=watch)
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
    """Return the width that a table may have: `width`, or else the terminal's; `None`: any."""
    if width is None and sys.stdout.isatty():
        return shutil.get_terminal_size((_UNKNOWN_WIDTH, 24)).columns
    return width


_HEADINGS = ("turn", "request", "message", "tokens", "bytes", "repeats", "cached", "again")


def cache(file: Path, *, as_json: bool, width: int | None = None) -> None:
    """Print the `cache_report` of a trace, as a table or as one JSON object."""
    reader = open_episode(file)
    report = cache_report(reader.header.episode, reader)
    as_table = render(report, table_width(width))
    print_lines([table.printable_json(msgspec.json.encode(report))] if as_json else as_table)


def render(report: CacheReport, width: int | None = None) -> Iterator[str]:
    """Yield the report's lines: a row for each request, the differences between prompts, and the sums."""
    yield printable(f"Prompts of {report.episode}", 200)
    rows = [_HEADINGS, *map(_row, report.prompts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        line = "  ".join(cell.rjust(wide) for cell, wide in zip(row, widths, strict=True))
        yield line if width is None else cut(line, width)
    for prompt in report.prompts:
        if (broken := prompt.broken) is not None:
            words = told(prompt)
            yield from ("", f"{words[:1].upper()}{words[1:]}.")
            if broken.before or broken.now:
                yield from (f"  before: {broken.before}", f"  now:    {broken.now}")
    yield ""
    yield from _sums(report)


def _row(prompt: CachedPrompt) -> tuple[str, ...]:
    counted = prompt.input_tokens
    return (
        str(prompt.turn),
        str(prompt.request),
        str(prompt.seq),
        f"{counted:,}" if counted else "-",
        f"{prompt.prompt_bytes:,}" if prompt.whole else f"{prompt.prompt_bytes:,}+",
        f"{prompt.share:.0%}",
        f"{prompt.cached_tokens / counted:.0%}" if counted else "-",
        f"{prompt.broken.tokens:,}" if prompt.broken is not None else "",
    )


def _sums(report: CacheReport) -> Iterator[str]:
    totals = report.totals
    yield (
        f"{counted(totals.requests, 'request')}, {totals.input_tokens:,} tokens in prompts: about"
        f" {totals.repeated_tokens:,} were a repetition, {totals.cached_tokens:,} were billed as cached"
    )
    if totals.breaks:
        verb = "request breaks" if totals.breaks == 1 else "requests break"
        yield f"{totals.breaks} {verb} off: about {totals.paid_again:,} tokens were paid again"
    else:
        yield "No request breaks off"
    if any(not prompt.whole for prompt in report.prompts):
        yield "+: the trace does not hold what was said before; that part is neither counted nor compared"


def replay(file: Path, changes: Changes, turn: int | None = None) -> bool:
    """Replay one turn or all, and print the result; return whether all decisions are as recorded."""
    turns: list[replaying.TurnReplay] = list(replaying.replay(open_episode(file), changes, turn=turn))
    if turn is not None and not turns:
        raise TraceError(f"{file} has no turn {turn}.")
    for line in replaying.render(turns, changes):
        say(line)
    return all(replayed.divergence is None for replayed in turns)


def changes_from(
    settings: Sequence[str] = (),
    *,
    max_iterations: int | None = None,
    after_timeout: str | None = None,
    system: Path | None = None,
) -> Changes:
    """Return the changes for a replay. Each of `settings` is `KEY=VALUE`; `system` is a prompt's file."""
    given = (setting.partition("=") for setting in settings)
    values = {key.strip(): value_of(value) for key, _, value in given}
    named = {"max_tool_iterations": max_iterations, "after_timeout": after_timeout}
    values |= {key: value for key, value in named.items() if value is not None}
    try:
        policy, limits = parted(values)
        return Changes(policy=policy, limits=limits, system=None if system is None else text_of(system))
    except ValueError as error:
        raise MCPConfigError(f"The replay cannot use these changes: {error}.") from error


def value_of(text: str) -> object:
    """Parse a setting's value as JSON. If it is not JSON, return the text without its outer spaces."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text.strip()


def text_of(path: Path) -> str:
    """Return the text of a file; raise `MCPConfigError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = os_cause(error) if isinstance(error, OSError) else "it is not UTF-8"
        raise MCPConfigError(f"Cannot read {path}: {reason}.", path=str(path)) from error


def diagram(file: Path, *, turn: int | None = None, as_mermaid: bool = False) -> None:
    """Print a sequence diagram of one turn or all."""
    drawn = False
    slices = (each for each in split_turns(open_episode(file)) if turn in (None, each.turn))
    envelopes = itertools.chain.from_iterable(each.envelopes for each in slices)
    for line in mermaid(envelopes) if as_mermaid else plain(envelopes, width=table_width(None) or WIDTH):
        say(line)
        drawn = True
    if turn is not None and not drawn:
        raise TraceError(f"{file} has no turn {turn}.")


def diff(left: Path, right: Path, *, every: bool = False) -> bool:
    """Print how two traces differ (`every`: all differences in full), and return whether they are equal."""
    readers = open_episode(left), open_episode(right)
    divergences = differences.diff(*readers)
    first = [*itertools.islice(divergences, 1)]
    found = differences.render(itertools.chain(first, divergences), every=every)
    for line in itertools.chain(found, differences.changed_answers(*readers)):
        say(line)
    for name, reader in zip("AB", readers, strict=True):
        if reader.cut_short:
            say(f"The last line of {name} was cut short: it is being written, or its writer was killed.")
    return not first


def html(file: Path, other: Path | None, out: Path | None, open_browser: bool) -> None:
    """Write an HTML page of one or two traces, by default beside the last one, and print the page's path."""
    trace = open_episode(other or file).path
    page = out or (trace.with_suffix(".html") if other is None else trace.with_name("comparison.html"))
    if out is None:
        refuse_foreign(page, "page" if other is None else "compare")
    if other is None:
        write_html(file, page)
    else:
        turn = write_comparison(file, other, page)
        say(f"The traces differ from turn {turn} on." if turn else "The traces are identical.")
    say_page(page, open_browser)


def serve(file: Path, port: int, open_browser: bool) -> None:
    """Serve an HTML page that shows a trace and follows it as it grows, until Ctrl-C."""
    with LiveFeed(file) as feed, serving(feed, port) as server:
        try:
            say(f"{shown_path(feed.reader.path)} is at {server.url}")
            say("Only this machine can reach it. Ctrl-C ends it.", err=True)
            if open_browser and not webbrowser.open(server.url):
                say("There is no browser to show it; open the address yourself.", err=True)
            threading.Event().wait()
        except KeyboardInterrupt:
            say("Ended.", err=True)


def schema() -> None:
    """Print the JSON Schema of the trace format that this version writes."""
    typer.echo(json.dumps(trace_schema(), indent=2))
