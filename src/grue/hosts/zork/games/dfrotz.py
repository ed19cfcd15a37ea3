"""Find the interpreter `dfrotz`, which runs Z-machine stories of all versions."""

import os
import shutil
from pathlib import Path
from typing import Final

from grue.errors import MissingDependencyError
from grue.hosts.zork.games.interpreter_process import Interpreter

DEBIAN_GAMES: Final = "/usr/games"  # where Debian keeps games, and rarely on PATH


def find_dfrotz() -> Path:
    """Find the program on PATH, or else in Debian's folder for games.

    Raises:
        MissingDependencyError: It is not installed.
    """
    found = shutil.which("dfrotz", path=os.pathsep.join((os.environ.get("PATH", ""), DEBIAN_GAMES)))
    if found is None:
        raise MissingDependencyError(
            "The interpreter dfrotz is not installed: apt-get install frotz (Debian, Ubuntu) or "
            "brew install frotz (macOS)."
        )
    return Path(found)


def dfrotz() -> Interpreter:
    """Return the installed interpreter.

    Raises:
        MissingDependencyError: It is not installed.
    """
    return Interpreter(name="dfrotz", command=(str(find_dfrotz()),))
