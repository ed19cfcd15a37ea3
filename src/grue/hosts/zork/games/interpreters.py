"""The interpreters for Z-machine stories, in the order in which they are tried, and which one plays a story.

To add one, write a function that returns its `Interpreter` or raises `MissingDependencyError`, and put it
into `INTERPRETERS`. Its program must speak as dfrotz does on pipes
(`grue.hosts.zork.games.interpreter_process`).

`dfrotz` runs Z-machine stories of all versions; `fernz`, a Python package, those of versions 3, 4, 5 and 8.

Whether an interpreter prints bold and underlined words is found out by playing a tiny story in it. `dfrotz`
2.54, which Debian 12 has, prints neither: a story of version 4 or later loses its room names and every other
word in these styles. Other releases may print them, so the program is tried; its version is not read. Stories
of versions 1 to 3 have no styles.

Offsets and opcodes are those of the Z-Machine Standards Document 1.1, sections 11 (header), 3 (text) and 15.
"""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from msgspec import Struct

from grue.errors import GameError, MissingDependencyError
from grue.hosts.zork.games.interpreter_process import Interpreter

FIRST_VERSION_WITH_STYLES: Final = 4

_CODE_AT: Final = 0x240  # after the header (64 bytes) and the table of 240 global variables
_LONGEST_S: Final = 20.0  # it needs 10 ms
_BOLD, _ITALIC, _ROMAN = 2, 4, 0
_WORDS: Final = ("bold", "underlined")


def prints_styled_words(program: str) -> bool:
    """Return whether `program`, which takes dfrotz's options, prints bold and underlined words.

    A program that cannot be started or does not end counts as one that does not. The answer is kept until the
    program's file changes.
    """
    try:
        changed = Path(program).stat().st_mtime_ns
    except OSError:
        return False
    return _try(program, changed)


@cache
def _try(program: str, changed: int) -> bool:
    del changed  # part of the cache's key: an upgrade of the package is noticed
    with tempfile.TemporaryDirectory(prefix="grue-game-") as folder:
        story = Path(folder) / "styles.z5"
        story.write_bytes(styled_story())
        command = [program, "-m", "-p", "-q", "-w", "80", "-h", "25", "-R", folder, str(story)]
        try:
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return all(word.encode() in ran.stdout for word in _WORDS)


def styled_story() -> bytes:
    """Return a story of version 5 that prints one bold and one underlined word, and ends."""
    bold, underlined = (b"\xb2" + _z_string(word) for word in _WORDS)  # 0xB2: print
    roman = _style(_ROMAN) + b"\xbb"  # 0xBB: new_line
    code = _style(_BOLD) + bold + roman + _style(_ITALIC) + underlined + roman + b"\xba"  # 0xBA: quit
    size = _CODE_AT + len(code) + -len(code) % 4
    header = bytearray(64)
    header[0] = 5
    # Initial program counter, dictionary, objects, global variables, static memory, abbreviations.
    for at, value in (
        (0x04, _CODE_AT),
        (0x06, _CODE_AT),
        (0x08, 64),
        (0x0A, 64),
        (0x0C, 64),
        (0x0E, _CODE_AT),
    ):
        struct.pack_into(">H", header, at, value)
    struct.pack_into(">H", header, 0x18, 64)
    struct.pack_into(">H", header, 0x1A, size // 4)
    return (bytes(header).ljust(_CODE_AT, b"\0") + code).ljust(size, b"\0")


def _style(style: int) -> bytes:
    return bytes((0xF1, 0x7F, style))  # set_text_style with one small constant


def _z_string(word: str) -> bytes:
    characters = [ord(letter) - ord("a") + 6 for letter in word]
    characters += [5] * (-len(characters) % 3)
    words = [a << 10 | b << 5 | c for a, b, c in zip(*[iter(characters)] * 3, strict=True)]
    words[-1] |= 0x8000
    return struct.pack(f">{len(words)}H", *words)


_ANSWER_WITHIN_S: Final = 60.0  # it runs 50,000 instructions a second, and a large story needs a million


def fernz() -> Interpreter:
    """Return the installed interpreter. It runs in a process of its own, which is started like dfrotz.

    Raises:
        MissingDependencyError: It is not installed.
    """
    if find_spec("fernz") is None:
        raise MissingDependencyError(
            "The interpreter fernz is not installed: pip install 'fernz>=0.0.4,<0.1'."
        )
    # -P: a module in the working directory cannot take the place of an installed one.
    player = (sys.executable, "-P", "-m", "grue.hosts.zork.games.fernz_player")
    return Interpreter(
        name="fernz",
        command=player,
        breaks_lines=False,
        answer_within_s=_ANSWER_WITHIN_S,
        versions=(3, 4, 5, 8),
    )


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


INTERPRETERS: Final[dict[str, Callable[[], Interpreter]]] = {"dfrotz": dfrotz, "fernz": fernz}

_LOST: Final = (
    "does not print bold and underlined words, which room names are in most stories from version 4 on"
)
_PIP: Final = "pip install 'fernz>=0.0.4,<0.1'"


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
