"""Find the interpreter `fernz`, a Python package for Z-machine stories of versions 3, 4, 5 and 8."""

import sys
from importlib.util import find_spec
from typing import Final

from grue.errors import MissingDependencyError
from grue.hosts.zork.games.interpreter_process import Interpreter

_ANSWER_WITHIN_S: Final = 60.0  # it runs 50,000 instructions a second, and a large story needs a million


def fernz() -> Interpreter:
    """Return the installed interpreter. It runs in a process of its own, which is started like dfrotz.

    Raises:
        MissingDependencyError: It is not installed.
    """
    if find_spec("fernz") is None:
        raise MissingDependencyError("The interpreter fernz is not installed: pip install 'grue[fernz]'.")
    # -P: a module in the working directory cannot take the place of an installed one.
    player = (sys.executable, "-P", "-m", "grue.hosts.zork.games.fernz_player")
    return Interpreter(
        name="fernz",
        command=player,
        breaks_lines=False,
        answer_within_s=_ANSWER_WITHIN_S,
        versions=(3, 4, 5, 8),
    )
