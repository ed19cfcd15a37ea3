"""Entry point of the command `grue`. It answers `--version` fast, without importing grue's other modules."""

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
    """Run the command line and exit with its status: 0 finished, 1 failed, 2 usage, 130 interrupted."""
    quit_at_once()
    try:
        from grue import __version__

        if sys.argv[1:] == ["--version"]:
            sys.stdout.write(f"grue {__version__}\n")
            return
        # The shell sets `_GRUE_COMPLETE` and calls the program without arguments to complete a command.
        if not sys.argv[1:] and "_GRUE_COMPLETE" not in os.environ:
            sys.stdout.write(FIRST_STEPS.format(version=__version__))
            return
        from grue.runtime.loading import load

        load("grue.cli.app").app()
    finally:
        quit_at_once()
