"""Entry point of the command `grue`: answers `--version` at once and imports the rest only if needed."""

import sys

from grue.cli import quit_at_once


def main() -> None:
    """Run the command line and exit with its status: 0 finished, 1 failed, 2 usage, 130 interrupted.

    A Ctrl-C ends the process at once while it starts and while it exits; in between the command cleans up.
    """
    quit_at_once()
    try:
        from grue import __version__

        if sys.argv[1:] == ["--version"]:
            sys.stdout.write(f"grue {__version__}\n")
            return
        from grue.runtime.loading import load

        load("grue.cli.app").app()
    finally:
        quit_at_once()
