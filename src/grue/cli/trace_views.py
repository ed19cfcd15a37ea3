"""The commands `grue trace diagram`, `diff`, `html`, `serve` and `schema`."""

import itertools
import json
import shutil
import sys
import threading
import webbrowser
from pathlib import Path

import typer

from grue.cli.saying import say, say_page, shown_path
from grue.errors import TraceError
from grue.tracing.diagram import WIDTH, mermaid, plain
from grue.tracing.diff import changed_answers, render
from grue.tracing.diff import diff as diff_traces
from grue.tracing.live_server import LiveFeed, serving
from grue.tracing.page_file import refuse_foreign
from grue.tracing.reading import open_episode, trace_schema
from grue.tracing.turn_slices import split_turns
from grue.tracing.viewer import write_comparison, write_html


def diagram(file: Path, *, turn: int | None = None, as_mermaid: bool = False) -> None:
    """Print a sequence diagram of one turn or all."""
    drawn = False
    slices = (each for each in split_turns(open_episode(file)) if turn in (None, each.turn))
    envelopes = itertools.chain.from_iterable(each.envelopes for each in slices)
    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    for line in mermaid(envelopes) if as_mermaid else plain(envelopes, width=width):
        say(line)
        drawn = True
    if turn is not None and not drawn:
        raise TraceError(f"{file} has no turn {turn}.")


def diff(left: Path, right: Path, *, every: bool = False) -> bool:
    """Print how two traces differ (`every`: all differences in full), and return whether they are equal."""
    readers = open_episode(left), open_episode(right)
    divergences = diff_traces(*readers)
    first = [*itertools.islice(divergences, 1)]
    found = render(itertools.chain(first, divergences), every=every)
    for line in itertools.chain(found, changed_answers(*readers)):
        say(line)
    for name, reader in zip("AB", readers, strict=True):
        if reader.cut_short:
            say(f"The last line of {name} was cut short: it is being written, or its writer was killed.")
    return not first


def html(file: Path, out: Path | None, open_browser: bool) -> None:
    """Write an HTML page of a trace, by default beside it; print its path, and open it if asked."""
    page = out or open_episode(file).path.with_suffix(".html")
    if out is None:
        refuse_foreign(page, "page")
    write_html(file, page)
    say_page(page, open_browser)


def comparison(left: Path, right: Path, out: Path | None, open_browser: bool) -> None:
    """Write an HTML page of two traces side by side, and print from which turn on they differ, if any."""
    page = out or open_episode(right).path.with_name("comparison.html")
    if out is None:
        refuse_foreign(page, "compare")
    turn = write_comparison(left, right, page)
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
