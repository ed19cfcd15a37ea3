r"""The interpreters for Z-machine stories, the choice of an interpreter for a story, and its process.

`dfrotz` 2.54, which Debian 12 has, prints neither bold nor underlined words: a story of version 4 or later
loses its room names. Other releases may print these words, so a tiny story is played to find out. Offsets and
opcodes are those of the Z-Machine Standards Document 1.1, sections 11 (header), 3 (text) and 15.

An interpreter does not mark the end of an answer. So each command is sent together with a second line
`\sf-N`, with a new random number N. This line sets the speed of the interpreter's clock to -N, and never
reaches the game. The interpreter prints "Speed Factor -N" when it reads the line, also if the game has asked
a question. The speed is negative because a clock that runs backwards never interrupts a command. The prompt
">" does not mark the end: a text may contain ">", and after a question no prompt is printed.
"""

import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final, cast

from msgspec import Struct

from grue.errors import GameError, MissingDependencyError
from grue.hosts.zork.games.story_text import WIDTH

_LONGEST_LINE: Final = 180  # characters; the interpreter's buffer has 200
_HEIGHT: Final = 99  # rows of the screen; the interpreter's table of changed rows has 100 entries
_MOST_BYTES: Final = 1 << 22  # bytes; an interpreter that prints a longer answer is killed
_EXIT_S: Final = 2.0
_QUOTED: Final = 400  # the most characters of an interpreter's last output that an error quotes
_UNSAFE: Final = re.compile(r"[\\\x00-\x1f\x7f]+")


class Interpreter(Struct, frozen=True, kw_only=True):
    """An installed interpreter, how it is started, and the versions of stories that it plays."""

    name: str
    command: tuple[str, ...]
    breaks_lines: bool = True  # at `WIDTH` columns
    answer_within_s: float = 5.0
    versions: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)


class InterpreterProcess:
    """A running interpreter with one story, in a process group of its own.

    The story may read and write files only in a temporary folder. The process is killed and the
    folder removed at `close`, when this object is garbage-collected, or when Python exits.
    """

    def __init__(self, interpreter: Interpreter, story: Path, *, seed: int) -> None:
        self.ended = False
        self._name = interpreter.name
        self._answer_within_s = interpreter.answer_within_s
        self._printed = bytearray()
        self._prompt = b""
        self._last_words = b""
        folder = tempfile.mkdtemp(prefix="grue-game-")
        # `-m` turns off "MORE" prompts. The seed must not be -1, which would mean "use the time of day".
        size = ["-w", str(WIDTH), "-h", str(_HEIGHT)]
        flags = ["-m", "-p", "-q", *size, "-s", str(seed & 0x7FFFFFFF), "-R", folder]
        try:
            self._process = subprocess.Popen(
                [*interpreter.command, *flags, story],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise GameError(
                f"Cannot start the interpreter {interpreter.command[0]}: {error.strerror}."
            ) from error
        self._input = cast("IO[bytes]", self._process.stdin).fileno()
        self._output = cast("IO[bytes]", self._process.stdout).fileno()
        self._end = weakref.finalize(self, _end, self._process, folder, os.getpid())

    def exchange(self, line: str | None) -> tuple[str, str]:
        """Send `line`, if given. Return what the interpreter has printed, and the prompt at its end."""
        mark = secrets.randbelow(900_000) + 100_000  # six digits: the interpreter rounds longer numbers
        sent = "" if line is None else _UNSAFE.sub(" ", line)[:_LONGEST_LINE] + "\n"
        with suppress(BrokenPipeError):  # the interpreter has ended, but its last output can still be read
            os.write(self._input, f"{sent}\\sf-{mark}\n".encode("ascii", "replace"))
        # After "Speed Factor ..." the interpreter repeats its prompt, so the next answer begins with it.
        answer = self._read_to(b"Speed Factor -%d\n" % mark).removeprefix(self._prompt)
        self._prompt = b"" if self.ended else answer.rpartition(b"\n")[2]
        self._last_words = answer
        return answer.decode("ascii", "replace"), self._prompt.decode("ascii", "replace")

    def close(self) -> None:
        """Kill the interpreter and remove its folder. A second call does nothing."""
        self._end()

    def _read_to(self, mark: bytes) -> bytes:
        deadline = time.monotonic() + self._answer_within_s
        ready = select.poll()
        ready.register(self._output, select.POLLIN)
        searched = 0
        while (found := self._printed.find(mark, searched)) < 0:
            searched = max(0, len(self._printed) - len(mark))
            left = deadline - time.monotonic()
            if len(self._printed) > _MOST_BYTES:
                raise self._failure("does not stop printing")
            if left <= 0 or not ready.poll(left * 1000):
                raise self._failure(f"did not answer within {self._answer_within_s:g} s")
            chunk = os.read(self._output, 1 << 16)
            if not chunk:
                return self._farewell()
            self._printed += chunk
        answer = bytes(self._printed[:found])
        del self._printed[: found + len(mark)]
        return answer

    def _farewell(self) -> bytes:
        try:
            status = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            raise self._failure("closed its output and did not end") from None
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            raise self._failure(f"was killed by {name}")
        if status > 0:
            raise self._failure(f"ended with exit status {status}")
        self.ended = True
        return bytes(self._printed)

    def _failure(self, what: str) -> GameError:
        self.close()
        said = (self._last_words + self._printed).decode("ascii", "replace").strip()[-_QUOTED:]
        return GameError(f"The interpreter {self._name} {what}. Its last output: {said or '(nothing)'}")


def _end(process: subprocess.Popen[bytes], folder: str, owner: int) -> None:
    is_forked = os.getpid() != owner  # in a forked child, leave the game to the parent
    # While `returncode` is `None`, the process is not reaped, so no other process or group can have its id.
    if process.returncode is None and not is_forked:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        cast("IO[bytes]", pipe).close()
    if not is_forked:
        shutil.rmtree(folder, ignore_errors=True)


_FIRST_VERSION_WITH_STYLES: Final = 4
_LONGEST_S: Final = 20.0  # seconds; playing the tiny story takes 10 ms


def prints_styled_words(program: str) -> bool:
    """Return whether `program`, which takes dfrotz's options, prints bold and underlined words."""
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
    return b"bold" in ran.stdout and b"underlined" in ran.stdout


def styled_story() -> bytes:
    """Return a story of version 5 that prints one bold and one underlined word, and ends."""
    # The addresses of high memory, code, dictionary, objects, global variables and static memory.
    header = bytes.fromhex("05000000 0240 0240 0040 0040 0040 0240").ljust(0x18, b"\0")
    header += bytes.fromhex("0040 0098")  # the abbreviations' address; the file's size in units of 4 bytes
    code = bytes.fromhex(
        "f17f02 b21e91a4a5 f17f00 bb"  # set_text_style bold, print "bold", set_text_style roman, new_line
        "f17f04 b26a692af13a6aa4a5 f17f00 bb ba"  # the same with italic and "underlined"; quit
    )
    return header.ljust(0x240, b"\0") + code.ljust(32, b"\0")


_PIP: Final = "pip install 'fernz>=0.0.4,<0.1'"
# fernz runs 50,000 instructions a second, and an answer of a large story needs up to a million.
_ANSWER_WITHIN_S: Final = 60.0


def fernz() -> Interpreter:
    """Return fernz as an interpreter, in a process of its own."""
    if find_spec("fernz") is None:
        raise MissingDependencyError(f"The interpreter fernz is not installed: {_PIP}.")
    # With -P, a module in the working directory cannot take the place of an installed one.
    player = (sys.executable, "-P", "-m", "grue.hosts.zork.games.fernz_player")
    return Interpreter(
        name="fernz",
        command=player,
        breaks_lines=False,
        answer_within_s=_ANSWER_WITHIN_S,
        versions=(3, 4, 5, 8),
    )


DEBIAN_GAMES: Final = "/usr/games"  # Debian keeps games here, and the folder is not on root's PATH


def dfrotz() -> Interpreter:
    """Return dfrotz as an interpreter: the one on PATH, or else the one in Debian's folder for games."""
    found = shutil.which("dfrotz", path=os.pathsep.join((os.environ.get("PATH", ""), DEBIAN_GAMES)))
    if found is None:
        raise MissingDependencyError(
            "The interpreter dfrotz is not installed: apt-get install frotz (Debian, Ubuntu) or "
            "brew install frotz (macOS)."
        )
    return Interpreter(name="dfrotz", command=(found,))


INTERPRETERS: Final[dict[str, Callable[[], Interpreter]]] = {"dfrotz": dfrotz, "fernz": fernz}

_LOST: Final = (
    "does not print bold and underlined words, which room names are in most stories from version 4 on"
)


class Choice(Struct, frozen=True):
    """The interpreter for a story. `reason`, for people: set if dfrotz was found and loses styled words."""

    interpreter: Interpreter
    reason: str = ""


def choose_interpreter(version: int, name: str | None = None) -> Choice:
    """Choose `name`, or else an installed interpreter: one that prints all of a story's text, if possible."""
    first = find_interpreter(name)
    if version not in first.versions:
        raise GameError(
            f"The story is of version {version}, and {_plays(first)}. dfrotz plays every version."
        )
    styled = version >= _FIRST_VERSION_WITH_STYLES
    if not styled or first.name != "dfrotz" or prints_styled_words(first.command[0]):
        return Choice(first)
    lost = f"{first.command[0]} {_LOST}"
    if name is not None:
        return Choice(first, f"{lost}.")
    try:
        other = fernz()
    except MissingDependencyError:
        return Choice(first, f"{lost}. fernz does: {_PIP}")
    if version not in other.versions:
        return Choice(first, f"{lost}. {_plays(other)}.")
    return Choice(other, f"{lost}. fernz does, and is slower.")


def _plays(interpreter: Interpreter) -> str:
    return f"{interpreter.name} plays only versions {', '.join(map(str, interpreter.versions))}"


def find_interpreter(name: str | None = None) -> Interpreter:
    """Return the interpreter called `name`; `None`: the first one that is installed."""
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
