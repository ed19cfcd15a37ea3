"""The interpreters for Z-machine stories, in the order in which they are tried, and which one plays a story.

To add one, write a function that returns its `Interpreter` or raises `MissingDependencyError`, and put it
into `INTERPRETERS`. Its program must speak as dfrotz does on pipes
(`grue.hosts.zork.games.interpreter_process`).
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from grue.errors import GameError, MissingDependencyError
from grue.hosts.zork.games.dfrotz import dfrotz
from grue.hosts.zork.games.fernz import fernz
from grue.hosts.zork.games.interpreter_process import Interpreter
from grue.hosts.zork.games.styled_words import FIRST_VERSION_WITH_STYLES, prints_styled_words

INTERPRETERS: Final[dict[str, Callable[[], Interpreter]]] = {"dfrotz": dfrotz, "fernz": fernz}

_LOST: Final = (
    "does not print bold and underlined words, which room names are in most stories from version 4 on"
)
_PIP: Final = "pip install 'grue[fernz]'"


class Choice(Struct, frozen=True):
    """The interpreter for a story.

    Attributes:
        interpreter: The interpreter.
        reason: Why it is not the first that is installed, or what it does wrong with this story, for people;
            empty if there is nothing to say.
        loses_words: It does not print the story's bold and underlined words.
    """

    interpreter: Interpreter
    reason: str = ""
    loses_words: bool = False


def choose_interpreter(version: int, name: str | None = None) -> Choice:
    """Choose the interpreter for a story: the named one, or the first installed one that prints all of it.

    If none prints all of it, the first installed one is returned, and the choice says what is lost.

    Args:
        version: The story's version, 1 to 8.
        name: "dfrotz" or "fernz"; `None`: choose.

    Raises:
        GameError: There is no interpreter with this name.
        MissingDependencyError: The named interpreter is not installed, or none is.
    """
    first = find_interpreter(name)
    if version < FIRST_VERSION_WITH_STYLES or _prints_all(first):
        return Choice(first)
    lost = f"{first.command[0]} {_LOST}"
    if name is not None:
        return Choice(first, reason=f"{lost}.", loses_words=True)
    try:
        other = fernz()
    except MissingDependencyError:
        return Choice(first, reason=f"{lost}. fernz does: {_PIP}", loses_words=True)
    if version not in other.versions:
        versions = ", ".join(map(str, other.versions))
        return Choice(first, reason=f"{lost}. fernz plays only versions {versions}.", loses_words=True)
    return Choice(other, reason=f"{lost}. fernz does, and is slower.")


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


def _prints_all(interpreter: Interpreter) -> bool:
    return interpreter.name != "dfrotz" or prints_styled_words(interpreter.command[0])
