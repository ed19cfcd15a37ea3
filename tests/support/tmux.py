"""Run programs in a tmux of their own, type as a user would, and read the screen."""

import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from commands import environment

DEADLINE_S = 60.0
_LOOK_EVERY_S = 0.1


class Tmux:
    """A terminal of tmux; a context manager. If tmux is not installed, it skips the test.

    Args:
        cwd: The working directory of the programs.
        **extra: Further environment variables of the programs.
    """

    def __init__(self, cwd: Path, *, columns: int = 100, lines: int = 40, **extra: str) -> None:
        program = shutil.which("tmux")
        if program is None:
            pytest.skip("no tmux on the path: apt-get install tmux")
        # Do not use the test's folder: the path of a socket must be short.
        self._folder = tempfile.mkdtemp(prefix="tmux-")
        self._command = (program, "-u", "-f", "/dev/null", "-S", f"{self._folder}/socket")
        self._env = environment(TERM="xterm-256color", **extra)
        self._cwd = cwd
        self._started = False
        self._size = ("-x", str(columns), "-y", str(lines))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._tmux("kill-server", check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, command: Sequence[str]) -> None:
        """Start a program in a new window. When it ends, the window stays and shows its exit status."""
        line = f'{shlex.join(command)}; echo "status $?"; exec sleep 1000'
        # A further program gets a new window in the same tmux server: a new server would race with the old
        # one.
        begin = ("new-window",) if self._started else ("new-session", "-d", *self._size)
        self._tmux(*begin, "-c", str(self._cwd), line)
        self._started = True

    def type(self, text: str) -> None:
        """Type a text, character by character."""
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys, by their names in tmux, such as `Enter`, `M-Enter`, `C-c`, `Left` and `Tab`."""
        self._tmux("send-keys", *keys)

    @property
    def rows(self) -> list[str]:
        """The rows of the screen."""
        return self._tmux("capture-pane", "-p").splitlines()

    def until_shown(self, pattern: str) -> list[str]:
        """Wait until a row matches a regular expression, and return all rows."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            rows = self.rows
            if any(re.search(pattern, row) for row in rows):
                return rows
            time.sleep(_LOOK_EVERY_S)
        shown = "\n".join(self.rows)
        raise AssertionError(f"never seen: {pattern!r}; the terminal shows:\n{shown}")

    def _tmux(self, *args: str, check: bool = True) -> str:
        done = subprocess.run(
            (*self._command, *args), env=self._env, capture_output=True, text=True, timeout=150, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"tmux {args[0]}: {done.stderr}")
        return done.stdout
