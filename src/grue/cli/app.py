"""The commands and their options. What they do is in the modules named for them."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from grue import __version__
from grue.errors import GameError, MCPConfigError, MCPError

FAILED, USAGE, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="grue",
    help="Drive an LLM agent that uses MCP tools from ordinary, synchronous Python.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
trace_app = typer.Typer(no_args_is_help=True, help="Read the trace of an episode.")
app.add_typer(trace_app, name="trace")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"grue {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options of the command itself."""
    del version


@app.command()
def play(
    game: Annotated[str, typer.Option(help="'house', or a Z-machine story file.")] = "house",
    offline: Annotated[bool, typer.Option("--offline", help="A scripted model instead of an LLM.")] = False,
    model: Annotated[str | None, typer.Option(help="The model, as the endpoint names it.")] = None,
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible endpoint.")] = None,
    mcp_config: Annotated[Path | None, typer.Option(help="MCP servers; the first is used.")] = None,
    no_mcp: Annotated[bool, typer.Option("--no-mcp", help="Play without tools.")] = False,
    turns: Annotated[int, typer.Option(min=1, help="Most turns to play.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the game: the same seed is the same game.")] = 0,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for trace and logs.", show_default="runs/EPISODE")
    ] = None,
    turn_timeout: Annotated[float | None, typer.Option(min=0.1, help="Seconds a turn may take.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only how it ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Play an episode of a text adventure with an agent that thinks with MCP tools."""
    with _plain_errors():
        from grue.cli.play import PlayOptions, play_episode

        options = PlayOptions(
            game=game,
            offline=offline,
            model=model,
            base_url=base_url,
            mcp_config=mcp_config,
            mcp=not no_mcp,
            turns=turns,
            seed=seed,
            run_dir=run_dir,
            turn_timeout_s=turn_timeout,
            output="quiet" if quiet else "json" if as_json else "live",
        )
        result = play_episode(options)
        if not result.succeeded:
            raise typer.Exit(FAILED)


_McpConfig = Annotated[
    Path | None,
    typer.Option("--mcp-config", help="A file of MCP servers.", show_default="what the project names"),
]


@app.command()
def tools(
    server: Annotated[str | None, typer.Argument(help="One of the servers.", show_default="all")] = None,
    mcp_config: _McpConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    lock: Annotated[
        bool, typer.Option("--lock", help="Approve what they list now: write it to mcp_tools.lock.")
    ] = False,
) -> None:
    """List the tools of the configured MCP servers, or of the bundled one where none is configured."""
    with _plain_errors():
        from grue.cli.tools import list_tools

        if not list_tools(server, mcp_config, as_json=as_json, lock=lock):
            raise typer.Exit(FAILED)


@app.command()
def call(
    name: Annotated[str, typer.Argument(metavar="SERVER.TOOL", help="The tool.")],
    arguments: Annotated[
        str | None, typer.Argument(metavar="JSON", help="Its arguments, a JSON object.", show_default="none")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="One argument, read as the tool wants it; may be repeated."),
    ] = None,
    mcp_config: _McpConfig = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds for the call.", show_default="as configured")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Call a tool of an MCP server and print its result; the status is 1 if that is an error."""
    with _plain_errors():
        from grue.cli.call import CallOptions, call_tool

        options = CallOptions(
            name=name,
            arguments=arguments,
            pairs=arg or (),
            mcp_config=mcp_config,
            timeout_s=timeout,
            as_json=as_json,
        )
        if not call_tool(options):
            raise typer.Exit(FAILED)


@app.command()
def doctor(
    mcp_config: _McpConfig = None,
    no_network: Annotated[bool, typer.Option("--no-network", help="Ask nobody at a URL.")] = False,
    faults: Annotated[
        bool, typer.Option("--faults", help="Try the fault matrix instead, which takes half a minute.")
    ] = False,
) -> None:
    """Look at everything an episode needs, and say what is wrong and what to do about it."""
    with _plain_errors():
        from grue.cli.doctor import examine, try_faults

        if not (try_faults() if faults else examine(mcp_config, network=not no_network)):
            raise typer.Exit(FAILED)


@trace_app.command("show")
def trace_show(
    file: Annotated[Path, typer.Argument(help="A trace.jsonl, or the run folder that holds it.")],
    width: Annotated[int | None, typer.Option(min=40, help="Columns.", show_default="the terminal's")] = None,
) -> None:
    """Show every message of an episode, one line each."""
    with _plain_errors():
        from grue.cli.trace import show

        show(file, width)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn what goes wrong into sentences on stderr and a status; `GRUE_DEBUG=1` shows where it came from."""
    try:
        yield
    except (MCPConfigError, GameError) as error:
        _complain(str(error))
        raise typer.Exit(USAGE) from error
    except MCPError as error:
        _complain(str(error))
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError as error:
        # Whoever read our output has gone; nothing may be written to it any more, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from error


def _complain(message: str) -> None:
    typer.echo(f"grue: {message}", err=True)
    if os.environ.get("GRUE_DEBUG"):
        traceback.print_exc()
