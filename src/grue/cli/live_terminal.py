"""Where `grue play` prints: what the output can show, how wide it is, and how text gets there."""

import os
import select
import shutil
import sys
from collections.abc import Mapping
from typing import Protocol, TextIO

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ASCII_SPINNER = "|/-\\"


class Output(Protocol):
    """What a view needs of the place that it prints to.

    Attributes:
        colour: ANSI colours are shown.
        redraws: What was printed last can be printed over.
        spinner: Frames that the output's encoding can show.
    """

    colour: bool
    redraws: bool
    spinner: str

    def size(self) -> os.terminal_size:
        """Return columns and rows as they are now."""

    def write(self, text: str) -> None:
        """Print at once; waits where the reader is slow. Raises OSError where there is none any more."""


class Terminal:
    """Standard output or a stand-in: a terminal, a dumb one, or no terminal at all.

    Only a terminal that is not `TERM=dumb` is drawn upon, and it gets colours unless `NO_COLOR` is set.

    Args:
        stream: Where to print; its descriptor is written to directly if it has one, so that a thread that
            waits for a stopped terminal holds no lock that the interpreter needs when it exits.
        environ: Variables that a user sets, `os.environ` by default.
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        self._stream = stream
        self._fd = _descriptor(stream)
        self._encoding = stream.encoding or sys.getdefaultencoding()
        self.redraws = stream.isatty() and environ.get("TERM") != "dumb"
        self.colour = self.redraws and not environ.get("NO_COLOR")
        self.spinner = SPINNER if self._can_show(SPINNER) else ASCII_SPINNER

    def size(self) -> os.terminal_size:
        """Return columns and rows as they are now: the terminal's own, or what `COLUMNS` says of a pipe."""
        if self.redraws and self._fd is not None:
            try:
                size = os.get_terminal_size(self._fd)
            except OSError:
                size = os.terminal_size((0, 0))
            if size.columns and size.lines:
                return size
        return shutil.get_terminal_size((80, 24))

    def write(self, text: str) -> None:
        """Print `text`; what the encoding lacks becomes a question mark."""
        if self._fd is None:
            self._stream.write(text)
            self._stream.flush()
            return
        left = memoryview(text.encode(self._encoding, errors="replace"))
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                # A program that shares the terminal has made it non-blocking.
                select.select([], [self._fd], [])

    def _can_show(self, text: str) -> bool:
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            return False
        return True


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except OSError:
        return None
