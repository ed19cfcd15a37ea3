"""`Terminal`: the output of the live view, the chat, and the progress of a fleet."""

import os
import select
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TextIO

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
ASCII_SPINNER = "|/-\\"


class Terminal:
    """An output stream: a terminal, a pipe or a file. `TERM=dumb` turns status rows and colours off."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
        self._stream = stream
        self._fd: int | None = None
        with suppress(OSError):
            self._fd = stream.fileno()
        self._encoding = stream.encoding or sys.getdefaultencoding()
        self.redraws = stream.isatty() and environ.get("TERM") != "dumb"
        self.colour = self.redraws and not environ.get("NO_COLOR")
        self.spinner = ASCII_SPINNER
        with suppress(UnicodeEncodeError):
            SPINNER.encode(self._encoding)
            self.spinner = SPINNER

    def size(self) -> os.terminal_size:
        """Return the terminal's size; if it is unknown, that in COLUMNS and LINES, or else 80 x 24."""
        if self.redraws and self._fd is not None:
            with suppress(OSError):
                size = os.get_terminal_size(self._fd)
                if size.columns and size.lines:
                    return size
        return shutil.get_terminal_size((80, 24))

    def draw(self, text: str, rows: Sequence[str] = ()) -> None:
        """Replace the status rows that were drawn last by `text` (whole lines or empty), and `rows` below it.

        The cursor rests at the beginning of the status rows and is never hidden: erasing to the end of the
        screen removes the rows, however they were wrapped, and after a kill nothing has to be restored.
        """
        back = f"\x1b[{len(rows) - 1}A\r" if len(rows) > 1 else "\r"
        self.write("".join(("\r\x1b[J", text, "\n".join(rows), back)))

    def write(self, text: str) -> None:
        """Write `text`, with `?` for characters that the encoding lacks; `OSError` if the reader is gone."""
        if self._fd is None:
            self._stream.write(text)
            self._stream.flush()
            return
        left = memoryview(text.encode(self._encoding, errors="replace"))
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                # Another program on this terminal has set O_NONBLOCK: wait until the terminal takes more.
                select.select([], [self._fd], [])
