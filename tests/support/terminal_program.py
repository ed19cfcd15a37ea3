"""Run `grue` in a real pty. A terminal emulator (pyte) turns its output into what a user would see."""

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte
from commands import environment, forked

DEADLINE_S = 60.0
_BEFORE = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"


class GrueAtTerminal:
    """`grue ARGS` with a terminal as its standard input, output and error; a context manager.

    Attributes:
        screen: The emulator's screen; `screen.history.top` has the lines that were scrolled out of it.
        sent: All bytes that the program has printed.
    """

    def __init__(self, *args: str, cwd: Path, columns: int = 80, lines: int = 24, **extra: str) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000, ratio=0.01)
        self.sent = b""
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = os.openpty()
        # Pass the emulator's answers to the program: line editors ask for the position of the cursor.
        self.screen.write_process_input = self.type
        self._resize(columns, lines)
        env = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment(), **extra}
        for name in ("COLUMNS", "NO_COLOR"):
            if name not in extra:
                env.pop(name, None)
        self.program = subprocess.Popen(
            forked("grue", *args, before=_BEFORE),
            cwd=cwd,
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if self.program.poll() is None:
            self.program.kill()
        self.program.wait(DEADLINE_S)
        os.close(self._master)

    @property
    def rows(self) -> list[str]:
        """The rows of the screen, without blanks at the end of each row and without empty rows at the end."""
        rows = [row.rstrip() for row in self.screen.display]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def scrolled(self) -> list[str]:
        """All rows since the start, including those that were scrolled out of the screen."""
        columns = range(self.screen.columns)
        above = ["".join(row[x].data for x in columns).rstrip() for row in self.screen.history.top]
        return [*above, *self.rows]

    def type(self, keys: str) -> None:
        r"""Type these keys, such as `\x03` for Ctrl-C."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window. Text that no longer fits is cut off, as in xterm."""
        self.screen.resize(lines, columns)
        self._resize(columns, lines)

    def until(self, seen: Callable[[list[str]], object]) -> list[str]:
        """Read output until `seen` returns true for the rows of the screen, and return the rows."""
        for _ in self._reading():
            if seen(self.rows):
                return self.rows
        raise AssertionError(f"never seen; the screen shows:\n{chr(10).join(self.rows)}")

    def until_shown(self, *words: str) -> list[str]:
        """Read output until one row of the screen contains all these words, and return the rows."""
        return self.until(lambda rows: any(all(word in row for word in words) for row in rows))

    def ended(self) -> int:
        """Read the output to its end, and return the program's exit status."""
        for _ in self._reading():
            pass
        return self.program.wait(DEADLINE_S)

    def frames(self) -> Iterator[Sequence[str]]:
        """Yield the rows after each piece of output, until the program ends."""
        for _ in self._reading():
            yield self.rows

    def _resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _reading(self) -> Iterator[None]:
        yield
        deadline = time.monotonic() + DEADLINE_S
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._master], [], [], left)
            piece = b""
            if ready:
                # Linux raises EIO when the last program at the terminal has ended.
                with contextlib.suppress(OSError):
                    piece = os.read(self._master, 65536)
                if not piece:
                    return
            self.sent += piece
            self._stream.feed(piece)
            yield
        raise AssertionError(
            f"nothing more within {DEADLINE_S} s; the screen shows:\n{chr(10).join(self.rows)}"
        )
