"""The subcommands of `grue trace` and their options. Most of what they compute is in `tracing/`."""

from pathlib import Path
from typing import Literal

import typer

from grue.cli import options as opt
from grue.cli import take_interrupts
from grue.cli.plain_errors import Commands

_ABOUT = """Show, compare, replay or convert the trace of an episode.

An episode is one run of an agent: a game, a chat, a task. It consists of
turns, which are numbered from 1. In a turn the model is asked for one answer,
and may call tools before it answers. The trace of an episode is the file
trace.jsonl in its run folder. It has every message between agent, model and
MCP servers, numbered from 1. `grue runs` lists the episodes.
"""

trace_app = typer.Typer(cls=Commands, no_args_is_help=True, help=_ABOUT)


@trace_app.callback()
def trace_root() -> None:
    """Load the facts that hosts define, before any subcommand reads a trace."""
    from grue.cli.hosts import load_hosts

    load_hosts()


def chosen_trace(file: Path | None) -> Path:
    """Return `file`; if it is `None`, return the latest trace and print its path to stderr."""
    if file is not None:
        return file
    from grue.cli.runs import latest_trace
    from grue.cli.saying import say, shown_path

    latest = latest_trace()
    say(f"The latest: {shown_path(latest)}", err=True)
    return latest


_WIDTH = opt.value(
    "N",
    "Cut the lines of tables after N characters.",
    "the terminal's width; in a pipe, no line is cut",
    min=20,
)


@trace_app.command("show")
def trace_show(
    file: Path | None = opt.TRACE_FILE,
    turn: list[str] | None = opt.value(
        "N|N-M", "Only messages of turn N, or turns N to M; 0: messages outside of turns."
    ),
    message: list[str] | None = opt.value("N|N-M", "Only message N, or N to M."),
    actor: list[str] | None = opt.value(
        "NAME",
        "Only messages from or to this part: agent (grue's loop, which decides what to do next), "
        "llm (the model), host (the program that starts the turns and acts on the answers, such as grue "
        "play), or a server's name.",
    ),
    kind: list[str] | None = opt.value(
        "NAME",
        "Only messages of this kind, such as ToolReturned. A part of the name is enough, such as "
        "toolret, if only one kind has it. `grue trace show` prints the kinds in its column `message`.",
    ),
    text: list[str] | None = opt.value(
        "TEXT", "Only messages with this text; upper and lower case count as equal."
    ),
    failures: bool = opt.flag(
        "--failures", "Only messages that report a failure or a problem, such as a retry."
    ),
    whole: bool = opt.flag("--whole", "Print all fields of each message, not just one line."),
    follow: bool = opt.flag(
        "--follow",
        "After the recorded messages, print new ones as they come, until the end of the episode is "
        "recorded (EpisodeEnded), or until Ctrl-C, which ends only this command.",
        "-f",
    ),
    as_json: bool = opt.JSON_LINES,
    width: int | None = _WIDTH,
) -> bool:
    """Show the messages of an episode, one line each, and a summary.

    The options from --turn to --failures are filters. Only messages that match
    all given filters are shown. If a filter is given several times, one match is
    enough: --turn 3 --turn 7 shows the messages of both turns. With a filter,
    --whole, --follow or --json, there is no summary. The exit status is 1 if no
    message matches, except with --follow.
    """
    from grue.cli.trace import show

    take_interrupts()
    filters = {
        "turns": turn or (),
        "messages": message or (),
        "actors": actor or (),
        "kinds": kind or (),
        "texts": text or (),
        "failures": failures,
    }
    return show(chosen_trace(file), filters, whole=whole, follow=follow, as_json=as_json, width=width)


@trace_app.command("stats")
def trace_stats(
    file: Path | None = opt.TRACE_FILE, as_json: bool = opt.JSON, width: int | None = _WIDTH
) -> None:
    """Count an episode's turns, requests, tool calls and tokens, and show what took how long."""
    from grue.cli.trace import stats

    take_interrupts()
    stats(chosen_trace(file), as_json=as_json, width=width)


@trace_app.command("cache")
def trace_cache(
    file: Path | None = opt.TRACE_FILE, as_json: bool = opt.JSON, width: int | None = _WIDTH
) -> None:
    """Show how much of each prompt a provider's prompt cache could serve, and why not more.

    A provider's prompt cache can serve the beginning of a prompt, as far as it is
    the same as in an earlier prompt. So a prompt should begin with all of an
    earlier prompt of its conversation (in `grue play`, each turn is a
    conversation). The first prompt of a conversation should begin with the tools
    and the system prompt with which the previous conversation with the same model
    began. If a prompt does not begin like this, it breaks off: the command shows
    the first difference, and the message that caused it. The last three columns
    of the table are:

    repeats: how much of the prompt a cache could serve.

    cached: how much of the prompt came from the cache, as the provider says.

    again: about how many tokens have to be paid again because of the difference.
    """
    from grue.cli.trace import cache

    take_interrupts()
    cache(chosen_trace(file), as_json=as_json, width=width)


_TURN = opt.value("N", "Only this turn.", "all turns", min=1)


@trace_app.command("diagram")
def trace_diagram(
    file: Path | None = opt.TRACE_FILE,
    turn: int | None = _TURN,
    mermaid: bool = opt.flag("--mermaid", "Print the diagram as source text for Mermaid."),
) -> None:
    """Print the messages of an episode as a sequence diagram."""
    from grue.cli.trace import diagram

    take_interrupts()
    diagram(chosen_trace(file), turn=turn, as_mermaid=mermaid)


@trace_app.command("diff")
def trace_diff(
    left: Path = opt.argument("A", "A trace.jsonl, or the run folder that holds it."),
    right: Path = opt.argument("B", "Another trace.jsonl, or the run folder with it."),
    every: bool = opt.flag("--all", "Describe all differences in full, not only the first."),
) -> bool:
    """Show the first difference between two traces.

    What differs from run to run, such as ids and times, is not compared. If a
    trace is a fork, only its forked turns are compared, without what the host
    recorded before and after them. The exit status is 0 if there is no
    difference, and 1 if there is one, or if a trace cannot be read.
    """
    from grue.cli.trace import diff

    take_interrupts()
    return diff(left, right, every=every)


@trace_app.command("html")
def trace_html(
    file: Path | None = opt.TRACE_FILE,
    other: Path | None = opt.argument("OTHER", "A second trace, to show beside the first.", "none"),
    out: Path | None = opt.out(
        "trace.html beside the trace.jsonl; with OTHER: comparison.html beside OTHER's trace.jsonl",
        ". An existing file is replaced; without --out, only if grue wrote it",
    ),
    open_browser: bool = opt.OPEN_PAGE,
) -> None:
    """Write an HTML page that shows an episode, or two side by side.

    The page is one file and works offline.
    """
    from grue.cli.trace import html

    take_interrupts()
    html(chosen_trace(file), other, out, open_browser)


@trace_app.command("serve")
def trace_serve(
    file: Path | None = opt.TRACE_FILE,
    port: int = typer.Option(
        0, min=0, max=65535, metavar="PORT", help="The port, on 127.0.0.1.", show_default="a free one"
    ),
    open_browser: bool = opt.OPEN_PAGE,
) -> None:
    """Serve a web page that shows an episode, also while the episode runs.

    The command ends at Ctrl-C, with status 0. Only this machine can reach the
    page, and only at the printed address, which has a random part.
    """
    from grue.cli.trace import serve

    take_interrupts()
    serve(chosen_trace(file), port, open_browser)


@trace_app.command("query")
def trace_query(
    sql: str = opt.argument(
        "SQL",
        'A query, such as "select tool, count(*) from calls group by tool". The tables are '
        "episodes, turns, calls and requests. calls has the calls that the model asked for in turns that "
        "have ended; those that were denied or not sent are there too (column settlement), but none of "
        "`grue run`, because it makes its calls between turns. If a turn was parked and resumed, turns has "
        "a row for each part, with the counts of this part only. In episodes, outcome, model, tokens and "
        'duration_s are filled in only for a fleet: else take them from turns and requests. "describe calls" '
        "lists the columns of calls.",
    ),
    places: list[Path] | None = opt.argument(
        "PLACE",
        "What to query: a fleet's folder, a run folder, a trace, a folder that has these directly in it "
        "or in its subfolder runs, or a folder of tables from `grue fleet export`. You can give several.",
        "runs",
    ),
    as_json: bool = opt.JSON_LINES,
) -> None:
    """Query recorded episodes in DuckDB's SQL. Needs the package duckdb.

    The printed table cuts values after 60 characters; --json prints them whole.
    """
    from grue.cli.fleet_view import print_query
    from grue.cli.runs import RUNS

    take_interrupts()
    print_query(sql, places or [RUNS], as_json=as_json)


@trace_app.command("replay")
def trace_replay(
    file: Path | None = opt.TRACE_FILE,
    turn: int | None = _TURN,
    changes: list[str] | None = opt.value(
        "KEY=VALUE",
        "Change a limit or policy of the turns, such as after_death=reconnect (if a server dies, "
        "connect to it again); repeatable. To see the keys, give one that does not exist: --set x=0.",
        names=["--set"],
    ),
    max_iterations: int | None = opt.value(
        "N",
        "At most N replies with tool calls in a turn. After these, the model is asked for its final "
        "answer. The same as --set max_tool_iterations=N.",
        "as recorded",
        min=0,
    ),
    after_timeout: Literal["skip", "continue", "force"] | None = opt.value(
        "skip|continue|force",
        "What to do after a tool call has timed out:\n\n"
        "skip: do not make the other calls of the same reply.\n\n"
        "continue: make them.\n\n"
        "force: do not make them, and ask the model for its final answer.\n\n"
        "The same as --set after_timeout=skip and so on.",
        "as recorded",
    ),
    system: Path | None = opt.value(
        "FILE",
        "Use the system prompt in this file instead. No model runs, so in each turn you see only "
        "the first request that the new prompt changes. For new answers, use `grue fork --system`.",
        "as recorded",
    ),
) -> bool:
    """Check whether grue would still make the decisions that the trace records.

    A decision is, for example, to ask the model, to call a tool or to end the
    turn. No model, server or tool runs: their messages are taken from the trace.
    Without options, the command tests a new version of grue against an old trace.
    The options from --set to --system change settings, and you see in each turn
    the first decision that would have been different. The exit status is 1 if a
    decision differs from the recorded one.
    """
    from grue.cli.trace import changes_from, replay

    take_interrupts()
    what_if = changes_from(
        changes or (), max_iterations=max_iterations, after_timeout=after_timeout, system=system
    )
    return replay(chosen_trace(file), what_if, turn)


@trace_app.command("to-test")
def trace_to_test(
    file: Path | None = opt.TRACE_FILE,
    turn: int | None = opt.turn_number("used."),
    tools: list[str] | None = opt.value(
        "SERVER=MODULE:NAME",
        "Let the test call your own functions as the tools of SERVER, such as shop=my_agent:TOOLS; "
        "repeatable. NAME in MODULE is a grue.FunctionTools(\\[...]), or another value "
        "that grue.Runner(servers=...) accepts for a server.",
        "functions that return the recorded results",
    ),
    answer: str | None = opt.value(
        "MODULE:NAME",
        "Let the test parse the model's replies with your own code: MODULE:NAME is what your "
        "program gives as TurnRequest(answer=...), such as my_agent:Move for a class Move in "
        "my_agent.py.",
        "the test does not parse replies, but takes the parsed answers from the trace",
    ),
    out: Path | None = opt.out(
        "test_EPISODE_turn_N.py in the working directory, with the episode's name", "; it must not exist yet"
    ),
    run: bool = typer.Option(True, "--run/--no-run", help="Run the new test once, or only write it."),
) -> bool:
    """Write a pytest file that runs a recorded turn again.

    In the test, the model gives its recorded replies. The test asserts that the
    turn makes the recorded tool calls, gets the recorded results (those that are
    neither errors nor long), and gives the recorded answer. If the recorded turn
    failed because no answer was valid, the test asserts only that. The command
    runs the test once. If the test fails, the file remains, and the exit status
    is 1. Some turns cannot become a test, such as one in which the model failed
    or a tool call timed out.
    """
    from grue.cli.trace_to_test import to_test

    take_interrupts()
    return to_test(chosen_trace(file), turn, tools or (), out, answer=answer, run_once=run)


@trace_app.command("schema")
def trace_schema() -> None:
    """Print the JSON Schema of trace files: their header, their lines and every message."""
    from grue.cli.trace import schema

    take_interrupts()
    schema()
