"""Entry point of the command `grue`. It prints the version or the first steps without importing a command."""

import io
import os
import sys

from grue.cli import quit_at_once

FIRST_STEPS = """\
grue {version}: drive an LLM agent that uses MCP tools from ordinary Python.

  grue play --offline   watch an agent play a game: no key, no network
  grue init my-agent    write a program, its test and mcp_config.json
  grue doctor           check the model and the tool servers of this folder

All commands: grue --help
"""


def main() -> None:
    """Run the command line, and exit with the status that `grue --help` and the command's help explain."""
    quit_at_once()
    try:
        _make_streams_usable()
        _run()
    except OSError as error:
        # No command has handled this error. For example, no space is left for the output.
        from grue.cli.plain_errors import report_os_error

        report_os_error(error)
    finally:
        quit_at_once()


def _run() -> None:
    from grue import __version__

    text = {("--version",): "grue {version}\n", (): FIRST_STEPS}.get(tuple(sys.argv[1:]))
    # A shell that completes a command also gives no arguments, but sets `_GRUE_COMPLETE`.
    if text is not None and "_GRUE_COMPLETE" not in os.environ:
        sys.stdout.write(text.format(version=__version__))
        sys.stdout.flush()
        return
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is not imported here
    except OSError as error:
        sys.exit(f"grue: The working directory cannot be used: {error.strerror}. Go to another folder.")
    from grue.runtime.loading import load

    load("grue.cli.app").app()


def _make_streams_usable() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the stream was closed before grue started, as with `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Not every terminal's encoding has the arrows and lines that commands print.
        sys.stdout.reconfigure(errors="backslashreplace")
