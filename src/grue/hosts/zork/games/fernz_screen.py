"""The screen of a story that `fernz` runs: what of it is printed on a pipe.

A story of version 4 or later has two windows. The lower one scrolls and holds the text. The upper one stands
over it: a status line, a quotation, a menu. fernz reports both as one stream, in which commands stand between
angle brackets ("<top>", "<at 1 50>") and "<<" is a literal one. `Screen.read` returns the text of the lower
window and, before it, what was written in the upper one, line by line.
"""

import re
from typing import Final

from grue.hosts.zork.games.story_text import take_status_line

_PARTS: Final = re.compile(r"(?P<literal><<)|<(?P<command>[^>]*)>|(?P<text>[^<]+)")
_MOST_ROWS: Final = 255
_MOST_COLUMNS: Final = 255


class Screen:
    """Which window is written to, and where the cursor of the upper one stands, from answer to answer."""

    def __init__(self) -> None:
        self._upper = False
        self._row = self._column = 0
        self._rows: dict[int, str] = {}

    def read(self, stream: str) -> str:
        """Read what one command printed, and return it as text.

        The first row of the upper window is printed only if it is a status line with a score: others (a room
        and the time of day) would repeat in every answer.
        """
        self._rows = {}
        lower = []
        for part in _PARTS.finditer(stream):
            if part["command"] is not None:
                self._obey(part["command"].split())
                continue
            text = "<" if part["literal"] else part["text"]
            if self._upper:
                self._write(text)
            else:
                lower.append(text)
        return self._banner() + "".join(lower)

    def _obey(self, command: list[str]) -> None:
        match command:
            case ["top"]:
                self._upper = True
            case ["bottom" | "reset"]:
                self._upper = False
            case ["at", row, column, *window] if window == ["top"] or (self._upper and not window):
                self._row, self._column = int(row) - 1, int(column) - 1

    def _write(self, text: str) -> None:
        first, *others = text.split("\n")
        self._write_at_cursor(first)
        for line in others:
            self._row, self._column = self._row + 1, 0
            self._write_at_cursor(line)

    def _write_at_cursor(self, text: str) -> None:
        room = max(0, _MOST_COLUMNS - self._column) if self._row < _MOST_ROWS else 0
        row = self._rows.get(self._row, "").ljust(self._column)
        end = self._column + len(text[:room])
        if room:
            self._rows[self._row] = row[: self._column] + text[:room] + row[end:]
        self._column = end

    def _banner(self) -> str:
        status = self._rows.pop(0, "")
        lines = [status.rstrip()] if take_status_line(status)[1] is not None else []
        lines += [row.rstrip() for _, row in sorted(self._rows.items()) if row.strip()]
        return "".join(f"{line}\n" for line in lines)
