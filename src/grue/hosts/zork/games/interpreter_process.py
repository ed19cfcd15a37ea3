r"""Run a Z-machine interpreter as a process that answers each line with text, within a time limit.

The interpreter is `dfrotz`, or a program that speaks as it does (`grue.hosts.zork.games.fernz_player`). It
does not mark the end of an answer, so `exchange` makes it print a mark. It sends each line together with a
second one, `\sf-N`, which sets the speed of the interpreter's clock to a new random number N. The
interpreter prints "Speed Factor -N" when it reads that line, whether it is waiting for a command, the
answer to a question, a single key or a file name. A game cannot print the mark by chance, and never sees
the second line. The speed is negative because a clock that runs backwards never interrupts a command.
Looking for the prompt ">" instead would fail with texts that contain one, and would wait forever at
questions, which do not end with one.
"""

import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, cast

from msgspec import Struct

from grue.errors import GameError
from grue.hosts.zork.games.story_text import WIDTH

_LONGEST_LINE: Final = 180  # characters; the interpreter's buffer has 200
_HEIGHT: Final = 99  # rows; the interpreter counts changed rows in a table of 100
_MOST_BYTES: Final = 1 << 22  # in one answer
_EXIT_S: Final = 2.0
_QUOTED: Final = 400  # characters of its last output in an error
_UNSAFE: Final = re.compile(r"[\\\x00-\x1f\x7f]+")


class Interpreter(Struct, frozen=True, kw_only=True):
    """An installed interpreter, and how it is started.

    Attributes:
        name: What users call it.
        command: The program and the arguments that come before ours.
        breaks_lines: It breaks long lines at `WIDTH` columns.
        answer_within_s: The default time limit for one answer, in seconds.
        versions: The versions of stories that it plays.
    """

    name: str
    command: tuple[str, ...]
    breaks_lines: bool = True
    answer_within_s: float = 5.0
    versions: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)


class InterpreterProcess:
    """A running interpreter with one story.

    The process runs in a session of its own, and may read and write files only in a temporary folder. `close`
    ends the process and removes the folder; so does the garbage collection of this object, and the end of the
    program.

    Attributes:
        ended: The story and the interpreter have ended; no further line may be sent.
    """

    def __init__(self, interpreter: Interpreter, story: Path, *, seed: int, answer_within_s: float) -> None:
        self.ended = False
        self._name = interpreter.name
        self._answer_within_s = answer_within_s
        self._printed = bytearray()
        self._prompt = b""
        self._last_words = b""
        folder = tempfile.mkdtemp(prefix="grue-game-")
        # No paging. The seed is never -1, which would mean the time of day.
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
        self._end = weakref.finalize(self, _end, self._process, folder)

    def exchange(self, line: str | None) -> tuple[str, str]:
        """Send a line (`None`: only read), and return the printed text and the prompt at its end.

        Raises:
            GameError: The interpreter died, or did not answer in time. It is then closed.
        """
        mark = secrets.randbelow(900_000) + 100_000  # six digits, the most that it prints without rounding
        sent = "" if line is None else _UNSAFE.sub(" ", line)[:_LONGEST_LINE] + "\n"
        with suppress(BrokenPipeError):  # it has ended, but its last output can still be read
            os.write(self._input, f"{sent}\\sf-{mark}\n".encode("ascii", "replace"))
        # The interpreter repeats the prompt after the mark. That copy arrives with the next answer: remove
        # it.
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
            raise self._failure(f"was killed by {signal.Signals(-status).name}")
        if status > 0:
            raise self._failure(f"ended with exit status {status}")
        self.ended = True
        return bytes(self._printed)

    def _failure(self, what: str) -> GameError:
        self.close()
        said = (self._last_words + self._printed).decode("ascii", "replace").strip()[-_QUOTED:]
        return GameError(f"The interpreter {self._name} {what}. Its last output: {said or '(nothing)'}")


def _end(process: subprocess.Popen[bytes], folder: str) -> None:
    # The process has not been reaped, so its process id and group id cannot have been reused.
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        cast("IO[bytes]", pipe).close()
    shutil.rmtree(folder, ignore_errors=True)
