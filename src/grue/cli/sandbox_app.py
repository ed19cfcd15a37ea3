"""The subcommands of `grue sandbox` and their options; `sandbox.py` implements them."""

from pathlib import Path
from typing import Annotated

import typer

from grue.cli import take_interrupts
from grue.cli.plain_errors import Commands

sandbox_app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Show what a sandbox permits, try a command in one, or find out which one a server needs.",
)

_McpConfig = Annotated[
    Path | None,
    typer.Option(
        "--mcp-config",
        help="File that configures the MCP servers.",
        show_default="mcp_config.json, or as pyproject.toml says",
    ),
]


@sandbox_app.command("show")
def sandbox_show(
    name: Annotated[
        str | None,
        typer.Argument(help="A server, or a preset: pure, files, web.", show_default="all servers"),
    ] = None,
    mcp_config: _McpConfig = None,
    seatbelt: Annotated[
        bool, typer.Option("--seatbelt", help="Print it as a profile for macOS' sandbox-exec instead.")
    ] = False,
) -> None:
    """Print what a sandbox permits, path by path, and which of its limits this machine cannot enforce."""
    from grue.cli.sandbox import show, show_seatbelt

    take_interrupts()
    if seatbelt:
        show_seatbelt(name, mcp_config)
    else:
        show(name, mcp_config)


@sandbox_app.command("try", context_settings={"ignore_unknown_options": True})
def sandbox_try(
    name: Annotated[
        str, typer.Argument(help="A preset (pure, files, web), or a server: its sandbox is used.")
    ],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    mcp_config: _McpConfig = None,
) -> None:
    """Run a command in a sandbox, at this terminal. The exit status is the command's."""
    from grue.cli.sandbox import try_command

    take_interrupts()
    raise typer.Exit(try_command(name, command, mcp_config))


@sandbox_app.command("learn")
def sandbox_learn(
    mcp_config: Annotated[Path, typer.Argument(help="File that configures the MCP servers.")],
    server: Annotated[str, typer.Argument(help="The server to watch.")],
    trace: Annotated[
        list[Path] | None,
        typer.Option(help="Make the calls to this server that are in this trace; repeatable."),
    ] = None,
) -> bool:
    """Run a server without limits, watch it during calls, and print the narrowest sandbox that suffices.

    Without --trace, the calls are read from standard input, one per line:
    TOOL {"argument": "value"}
    """
    from grue.cli.sandbox import learn

    take_interrupts()
    return learn(mcp_config, server, trace or [])
