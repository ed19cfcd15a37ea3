"""The subcommands of `grue sandbox` and their options."""

from pathlib import Path

import typer

from grue.cli import options as opt
from grue.cli import take_interrupts
from grue.cli.plain_errors import Commands

_ABOUT = """Show what a sandbox permits, try a command in one, or find out what a server needs.

A sandbox limits what an MCP server can read, write and connect to. Without
one, a server can do all that you can. To give a server a sandbox, add a key
to its entry in mcp_config.json, such as "sandbox": "files". The value is a
preset, or an object such as {"preset": "files", "hide": \\[".env"]}, in which
hide closes files and folders. `grue sandbox learn` proposes an object. The
presets are:

pure: the program can read the interpreter, installed packages, and the folder
or project of its script with all files there, such as a .env; also the
system's programs, libraries and certificates. It can read and write a scratch
folder. It has no network. `grue sandbox show` lists the folders.

files: like pure, and the program can read and write its working directory.

web: like pure, and the program can connect to any host.
"""

sandbox_app = typer.Typer(cls=Commands, no_args_is_help=True, help=_ABOUT)


@sandbox_app.command("show")
def sandbox_show(
    name: str | None = opt.argument(
        "NAME",
        "A server in mcp_config.json, whose sandbox is shown, or a preset: pure, files or web.",
        "all servers that grue starts",
    ),
    mcp_config: Path | None = opt.MCP_CONFIG,
    seatbelt: bool = opt.flag("--seatbelt", "Instead, print a profile for macOS' sandbox-exec; needs NAME."),
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
    name: str = opt.argument(
        "NAME",
        "A server in mcp_config.json: the command may do what the server may do. Or pure, files or "
        "web, the presets that `grue sandbox --help` explains.",
    ),
    command: list[str] = opt.argument("COMMAND", "The command and its arguments, after --."),
    mcp_config: Path | None = opt.MCP_CONFIG,
) -> None:
    """Run a command in a sandbox, at this terminal. The exit status is that of the command.

    For example: grue sandbox try files -- cat ~/.bashrc
    """
    from grue.cli.sandbox import try_command

    take_interrupts()
    raise typer.Exit(try_command(name, command, mcp_config))


@sandbox_app.command("learn")
def sandbox_learn(
    mcp_config: Path = opt.argument("FILE", opt.FILE_OF_SERVERS),
    server: str = opt.argument("SERVER", "Name of the server to watch."),
    trace: list[Path] | None = opt.value(
        "TRACE",
        "Repeat the calls to this server that this trace.jsonl records. They are really made: a "
        "call that has written or deleted something does so again. Repeatable.",
        "read the calls from standard input",
    ),
) -> bool:
    """Watch a server during tool calls, and propose a sandbox for it.

    The server is started, and runs without a sandbox. To watch it, grue needs
    Linux 5.9 or later. Without --trace, the calls are read from standard input,
    one per line:
    read_file {"path": "notes.txt"}

    The command prints {"sandbox": ...}. Check it, and copy what is between the
    outer braces into the server's entry in mcp_config.json. The sandbox permits
    reading a whole folder if the server has listed it or has read six of its
    files. If the server has read one file in a folder of packages, such as
    node_modules, the sandbox permits reading all of that folder. It permits
    writing in a whole folder if the server has made, renamed or deleted one file
    there, or tried to. It never permits reading or writing all of /tmp or of your
    home folder.

    The exit status is 1 if a call fails.
    """
    from grue.cli.sandbox import learn

    take_interrupts()
    return learn(mcp_config, server, trace or [])
