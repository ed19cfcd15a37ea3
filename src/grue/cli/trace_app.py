"""The subcommands of `grue trace` and their options; `trace.py` and the `trace_*.py` implement them."""

from pathlib import Path
from typing import Annotated

import typer

from grue.cli import take_interrupts
from grue.cli.plain_errors import Commands

trace_app = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Show, compare, replay or convert the trace of an episode."
)


@trace_app.callback()
def trace_root() -> None:
    """Load the facts that hosts define, before any subcommand reads a trace."""
    from grue.cli.hosts import load_hosts

    load_hosts()


TraceFile = Annotated[
    Path | None,
    typer.Argument(help="A trace.jsonl, or the run folder that holds it.", show_default="the latest"),
]


def chosen_trace(file: Path | None) -> Path:
    """Return the trace that the user named. Without one, return the latest, and print its path to stderr."""
    if file is not None:
        return file
    from grue.cli.runs import latest_trace
    from grue.cli.saying import say, shown_path

    latest = latest_trace()
    say(f"The latest: {shown_path(latest)}", err=True)
    return latest


_Width = Annotated[
    int | None, typer.Option(min=20, help="Columns of the output.", show_default="the terminal's")
]


@trace_app.command("show")
def trace_show(
    file: TraceFile = None,
    turn: Annotated[
        list[str] | None,
        typer.Option(metavar="N|N-M", help="Only these turns; 0: messages outside of turns."),
    ] = None,
    message: Annotated[
        list[str] | None, typer.Option(metavar="N|N-M", help="Only the messages with these numbers.")
    ] = None,
    actor: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only messages from or to this actor.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only messages of this kind; a part of its name is enough."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="WORDS", help="Only messages that contain this text in a field."),
    ] = None,
    failures: Annotated[
        bool, typer.Option("--failures", help="Only messages that report a failure or a problem.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Print all fields of each message, not just one line.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new messages until the episode ends or Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
    width: _Width = None,
) -> bool:
    """Show the messages of an episode, one line each; with --whole all their fields.

    The options from --turn to --failures are filters. A message has to match
    all filters that are given. A filter that is given several times matches if
    one of its values does. The exit status is 1 if no message is shown.
    """
    from grue.cli.trace import ShowOptions, show

    take_interrupts()
    options = ShowOptions(
        file=chosen_trace(file),
        turns=turn or (),
        messages=message or (),
        actors=actor or (),
        kinds=kind or (),
        texts=text or (),
        failures=failures,
        whole=whole,
        follow=follow,
        as_json=as_json,
        width=width,
    )
    return show(options)


@trace_app.command("stats")
def trace_stats(
    file: TraceFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    width: _Width = None,
) -> None:
    """Count turns, requests, tool calls and tokens, and show where the time went."""
    from grue.cli.trace import stats

    take_interrupts()
    stats(chosen_trace(file), as_json=as_json, width=width)


@trace_app.command("cache")
def trace_cache(
    file: TraceFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    width: _Width = None,
) -> None:
    """Show how much of each prompt a provider could read from its cache, and why not more.

    Compares each prompt with earlier ones, byte by byte, and names the first
    difference and the message that caused it. The column `repeats` shows how
    much of a prompt repeats an earlier one. The column `cached` shows how much
    of it the provider has read from its cache, as its reply says.
    """
    from grue.cli.trace_cache import cache

    take_interrupts()
    cache(chosen_trace(file), as_json=as_json, width=width)


_Turn = Annotated[int | None, typer.Option(min=1, help="Only this turn.", show_default="all")]


@trace_app.command("diagram")
def trace_diagram(
    file: TraceFile = None,
    turn: _Turn = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the diagram as Mermaid source.")] = False,
) -> None:
    """Draw the messages of an episode as a sequence diagram."""
    from grue.cli.trace_views import diagram

    take_interrupts()
    diagram(chosen_trace(file), turn=turn, as_mermaid=mermaid)


@trace_app.command("diff")
def trace_diff(
    left: Annotated[Path, typer.Argument(help="A trace.jsonl, or the run folder that holds it.")],
    right: Annotated[Path, typer.Argument(help="The trace to compare it with.")],
    every: Annotated[
        bool, typer.Option("--all", help="Describe all differences in full, not only the first.")
    ] = False,
) -> bool:
    """Show the first difference of two episodes, ignoring ids and times. Exit with 1 if they differ."""
    from grue.cli.trace_views import diff

    take_interrupts()
    return diff(left, right, every=every)


@trace_app.command("html")
def trace_html(
    file: TraceFile = None,
    other: Annotated[
        Path | None, typer.Argument(help="A second trace, to show beside the first.", show_default="none")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write.", show_default="beside the trace")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write an HTML page that shows an episode, or two side by side.

    The page is one file and works offline.
    """
    from grue.cli.trace_views import comparison, html

    take_interrupts()
    if file is not None and other is not None:
        comparison(file, other, out, open_browser)
    else:
        html(chosen_trace(file), out, open_browser)


@trace_app.command("serve")
def trace_serve(
    file: TraceFile = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port.", show_default="a free one")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a page that shows an episode while it runs, until Ctrl-C.

    Only this machine can reach the page, and only at the printed address, which
    has a random part.
    """
    from grue.cli.trace_views import serve

    take_interrupts()
    serve(chosen_trace(file), port, open_browser)


@trace_app.command("query")
def trace_query(
    sql: Annotated[
        str,
        typer.Argument(metavar="SQL", help="A query. Its tables are episodes, turns, calls and requests."),
    ],
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PLACE...",
            help="What to query: fleets, run folders, traces, folders of these, or exported tables.",
            show_default="runs",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
) -> None:
    """Query recorded episodes in SQL. Needs the extra `export`."""
    from grue.cli.fleet_export import print_query
    from grue.cli.runs import RUNS

    take_interrupts()
    print_query(sql, places or [RUNS], as_json=as_json)


@trace_app.command("replay")
def trace_replay(
    file: TraceFile = None,
    turn: _Turn = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a limit or policy of the turns, such as after_death=reconnect (if a server dies, "
            "connect to it again); repeatable.",
        ),
    ] = None,
    max_iterations: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The most replies with tool calls in a turn. After these, the model is asked for its final "
            "answer.",
            show_default="as recorded",
        ),
    ] = None,
    after_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="skip|continue|force",
            help="What follows a tool call that has timed out:\n\n"
            "skip: the calls of the same reply that were not sent yet are not made.\n\n"
            "continue: they are made.\n\n"
            "force: they are not made, and the model is asked for its final answer.",
            show_default="as recorded",
        ),
    ] = None,
    system: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Use the system prompt in this file instead.", show_default="as recorded"
        ),
    ] = None,
) -> bool:
    """Compute the agent's decisions again from the recorded messages. No model, server or tool runs.

    The exit status is 1 if a decision differs from the recorded one. If you
    change settings, the first difference of each turn is where the turn would
    have gone another way.
    """
    from grue.cli.trace_replay import changes_from, replay

    take_interrupts()
    what_if = changes_from(
        changes or (), max_iterations=max_iterations, after_timeout=after_timeout, system=system
    )
    return replay(chosen_trace(file), what_if, turn)


@trace_app.command("to-test")
def trace_to_test(
    file: TraceFile = None,
    turn: Annotated[
        int | None, typer.Option(help="Number of the turn.", show_default="the only turn of the trace")
    ] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVER=MODULE:NAME",
            help="Take this server's tools from your code: NAME in MODULE holds the functions; repeatable.",
            show_default="tools that return the recorded results",
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Parse the model's replies with your code, so that the test checks that code too: NAME in "
            "MODULE is the answer's type, or an AnswerSpec (a parsing function and a JSON Schema).",
            show_default="none: the test has a table of the recorded replies and answers",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write.", show_default="test_EPISODE_turn_N.py"),
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run the test once after writing it.")] = True,
) -> bool:
    """Write a pytest file that runs a turn again with the model's recorded replies.

    The test asserts that the turn makes the recorded tool calls and gives the
    recorded answer. The exit status is 1 if the test does not pass.
    """
    from grue.cli.trace_to_test import to_test

    take_interrupts()
    return to_test(chosen_trace(file), turn, tools or (), out, answer=answer, run_once=run)


@trace_app.command("schema")
def trace_schema() -> None:
    """Print the JSON Schema of trace files: their header, their lines and every message."""
    from grue.cli.trace_views import schema

    take_interrupts()
    schema()
