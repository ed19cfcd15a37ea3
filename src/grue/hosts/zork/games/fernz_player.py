r"""Play a story with the package `fernz`: commands come from stdin, answers go to stdout, as with `dfrotz`.

The player is a process of its own, so that a story that never stops or needs too much memory can be killed.
As `dfrotz`, it answers the line `\sf-N` with "Speed Factor -N" and the prompt, gives a story that waits for a
key the first character of a line, replaces question marks in commands to stories of version 3 by spaces, and
prints characters outside ASCII as question marks. Unlike `dfrotz`, it keeps a saved game in memory.

A story of version 4 or later has two windows. The upper window covers the top of the screen, with a status
line, a quotation or a menu. fernz reports both as one stream, in which the story's commands to the screen
stand between angle brackets ("<top>", "<at 1 50>") and "<<" stands for the character "<".
"""

import argparse
import re
import resource
import sys
from typing import Final

from fernz import ExecutionError, FernzEnv

from grue.hosts.zork.games.story_text import take_status_line

_PARTS: Final = re.compile(r"(?P<literal><<)|<(?P<command>[^>]*)>|(?P<text>[^<]+)")
_MOST_ROWS: Final = 255
_MOST_COLUMNS: Final = 255


class Screen:
    """Turns fernz's output into text."""

    def __init__(self) -> None:
        self._upper = False
        self._row = self._column = 0
        self._rows: dict[int, str] = {}

    def read(self, stream: str) -> str:
        """Return what one command printed: the lines of the upper window, then the text of the lower one."""
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
        # The first row is left out unless it is a status line with a score: any other first row, such as the
        # room with the time of day, would begin every answer.
        status = self._rows.pop(0, "")
        upper = [status] if take_status_line(status)[1] is not None else []
        upper += [row for _, row in sorted(self._rows.items()) if row.strip()]
        return "".join([*(f"{row.rstrip()}\n" for row in upper), *lower])

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


_MOST_MEMORY: Final = 1 << 30  # bytes of address space
_MOST_STEPS: Final = 50_000_000  # instructions for one command; the host's time limit is reached first
_INFOCOM: Final = 3


class _Player:
    def __init__(self, story: str, *, seed: int, columns: int, rows: int) -> None:
        self._saved: bytes | None = None
        self._story = FernzEnv(
            story,
            seed=seed,
            save_handler=self._save,
            restore_handler=lambda: self._saved,
            screen_width=columns,
            screen_height=rows,
        )
        self._screen = Screen()
        self._prompt = ""

    def _save(self, saved: bytes) -> bool:
        self._saved = saved
        return True

    def play(self) -> None:
        self._print(self._screen.read(self._story.reset(max_steps=_MOST_STEPS)[0].stream))
        while not self._story.done and (line := sys.stdin.readline()):
            command = line.rstrip("\n")
            if command.startswith("\\sf"):
                self._print(f"Speed Factor {command[3:]}\n{self._prompt}")
            else:
                printed = self._story.step(self._typed(command), max_steps=_MOST_STEPS)[0]
                self._print(self._screen.read(printed.stream))

    def _typed(self, command: str) -> str:
        if self._story.awaiting_character:
            return command[:1]
        return command.replace("?", " ") if self._story.story.header.version <= _INFOCOM else command

    def _print(self, text: str) -> None:
        self._prompt = text.rpartition("\n")[2]
        sys.stdout.write(text)
        sys.stdout.flush()


def main() -> int:
    """Play the story that the command line names; return the exit status, 1 after an error."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    sys.stdin.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-w", type=int, default=80)
    parser.add_argument("-h", type=int, default=25)
    parser.add_argument("-s", type=int, default=0)
    parser.add_argument("-R")
    parser.add_argument("story")
    options, _ = parser.parse_known_args()  # dfrotz's options -m, -p and -q have no effect here
    try:
        _Player(options.story, seed=options.s, columns=options.w, rows=options.h).play()
    except (ExecutionError, NotImplementedError, ValueError, OSError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 the host quotes it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
