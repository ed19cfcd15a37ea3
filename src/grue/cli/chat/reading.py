"""Read input lines from a terminal or a pipe.

`LineReader` needs nothing. `prompting.py` has the one for terminals, with editing and completion.
"""

import sys
from typing import BinaryIO, Protocol

from grue.cli.saying import say
from grue.engine.approval import forget_typed
from grue.errors import MCPConfigError

MAX_LINE = 8 * 2**20
"""Most bytes of a line from a pipe."""


class Reader(Protocol):
    """Reads what the user says.

    Attributes:
        asks: A person can be asked.
    """

    asks: bool

    def read(self) -> str | None:
        """Return the next input, of one or more lines; `None` at the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """

    def forget(self) -> None:
        """Discard what was typed before now; a person types an answer after having seen the question."""

    def answer(self, question: str, default: str = "") -> str:
        """Ask for a short answer; empty if the input has ended.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """


class LineReader:
    """Reads lines of standard input. A line that ends in a backslash goes on in the next one.

    Args:
        source: Standard input.
        asks: It is a terminal, though one without editing.
    """

    def __init__(self, source: BinaryIO, *, asks: bool) -> None:
        self._source = source
        self.asks = asks

    def read(self) -> str | None:
        """Return the next input; `None`: the pipe has ended.

        Raises:
            MCPConfigError: A line is too long.
        """
        if self.asks:
            sys.stdout.write("> ")
            sys.stdout.flush()
        lines: list[str] = []
        while (line := self._line()) is not None:
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                break
        return "\n".join(lines) if lines else None

    def forget(self) -> None:
        """Discard what was typed before now, at a terminal."""
        if self.asks:
            forget_typed(self._source)

    def answer(self, question: str, default: str = "") -> str:
        """Ask on standard error, and read a line; an empty one stands for `default`."""
        say(question, err=True)
        return (self._line() or "").strip() or default

    def _line(self) -> str | None:
        line = self._source.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            raise MCPConfigError(f"A line of the input is longer than {MAX_LINE // 2**20} MiB: shorten it.")
        return line.decode("utf-8", errors="replace").rstrip("\r\n") if line else None
