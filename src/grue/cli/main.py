"""Entry point of the command `grue`: answers `--version` at once, loads the rest when it is needed."""

import sys

from grue import __version__
from grue.loading import load


def main() -> None:
    """Run the command line and exit with its status: 0 finished, 1 failed, 2 usage, 130 interrupted."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"grue {__version__}\n")
        return
    load("grue.cli.app").app()
