"""The interpreters for Z-machine stories, in the order in which they are tried.

To add one, write a function that returns its `Interpreter` or raises `MissingDependencyError`, and put it
into `INTERPRETERS`. Its program must speak as dfrotz does on pipes (`grue.games.interpreter_process`).
"""

from collections.abc import Callable
from typing import Final

from grue.errors import GameError, MissingDependencyError
from grue.games.dfrotz import dfrotz
from grue.games.fernz import fernz
from grue.games.interpreter_process import Interpreter

INTERPRETERS: Final[dict[str, Callable[[], Interpreter]]] = {"dfrotz": dfrotz, "fernz": fernz}


def find_interpreter(name: str | None = None) -> Interpreter:
    """Return the interpreter with a name, or else the first that is installed.

    Raises:
        GameError: There is no interpreter with this name.
        MissingDependencyError: The named interpreter is not installed, or none is.
    """
    if name is not None:
        if name not in INTERPRETERS:
            raise GameError(f"There is no interpreter {name!r}; there are {' and '.join(INTERPRETERS)}.")
        return INTERPRETERS[name]()
    absent = []
    for find in INTERPRETERS.values():
        try:
            return find()
        except MissingDependencyError as error:
            absent.append(str(error))
    raise MissingDependencyError("Playing story files needs an interpreter. " + " ".join(absent))
