r"""Play a story with `fernz` on pipes, as `dfrotz` does: the program of an `InterpreterProcess`.

    python -m grue.hosts.zork.games.fernz_player [-m] [-p] [-q] [-w COLUMNS] [-h ROWS] [-s SEED] [-R FOLDER]
    STORY

It is a process of its own so that limits hold: a story that never stops or needs too much memory is killed,
and its host goes on. Three things are adapted so that both interpreters give the same answers:

- The line `\sf-N` prints "Speed Factor -N" and the prompt again, and does not reach the story.
- A single key is the first character of a line.
- A question mark counts as a space in stories of version 3, as dfrotz has it in Infocom's. Characters outside
  ASCII are printed as question marks.

A saved game is kept in memory, and fernz does not ask for a file name. What a story writes over its text (a
status line, a quotation) is printed before the text (`grue.hosts.zork.games.fernz_screen`).
"""

import argparse
import resource
import sys
from typing import Final

from fernz import ExecutionError, FernzEnv

from grue.hosts.zork.games.fernz_screen import Screen

_MOST_MEMORY: Final = 1 << 30  # bytes of address space
_MOST_STEPS: Final = 50_000_000  # the time limit of the host comes first
_INFOCOM: Final = 3


class Player:
    """A story, and the lines that are typed to it."""

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
        """Print the opening, and answer each line of the standard input until it or the story ends."""
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
    """Play the story that the command line names. Return 1 if it cannot be run."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    sys.stdin.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="ascii", errors="replace")  # type: ignore[union-attr]
    options = _options()
    try:
        Player(options.story, seed=options.s, columns=options.w, rows=options.h).play()
    except (ExecutionError, NotImplementedError, ValueError, OSError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 the host quotes it
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    for flag in ("-m", "-p", "-q"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("-w", type=int, default=80)
    parser.add_argument("-h", type=int, default=25)
    parser.add_argument("-s", type=int, default=0)
    parser.add_argument("-R")
    parser.add_argument("story")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
