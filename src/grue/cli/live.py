"""The live view of `grue play`: the story of the episode and, at a terminal, status rows below it.

The view is an observer of the trace. In the turn's thread it only queues the message; its own thread prints
the story and the status ten times a second. So a stopped terminal (Ctrl-S) or a slow reader of a pipe does
not delay the episode until its end, and a closed terminal or pipe ends only the view.

At a terminal the status rows are overwritten in place. The cursor always rests at their beginning, so that
erasing from the cursor to the end of the screen removes them, however a resized terminal has wrapped them.
The size is queried at each drawing, so no signal handler is needed. The cursor is never hidden, so nothing
has to be restored when the process ends, however it ends.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from grue.cli.live_progress import Progress
from grue.cli.live_status import Row, status_rows
from grue.cli.live_story import Story, painted
from grue.cli.live_terminal import Output
from grue.runtime.trace.recorder import Envelope

_TICK_S = 0.1
_WIDEST = 96
_NARROWEST = 20


class LiveView:
    """Show an episode while it is played; an observer and a context manager.

    Args:
        output: Where to print. A status line is shown if the output `redraws`.
        max_turns: Turns of the episode, for an episode that is resumed; 0: as `EpisodeStarted` says.
        story: Turns messages into lines; default: that of a game.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        output: Output,
        *,
        max_turns: int = 0,
        story: Story | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = output
        self._clock = clock
        self._arrived: deque[tuple[float, Envelope[Any]]] = deque()
        self._story = story or Story(beside_status=output.redraws)
        self._progress = Progress(max_turns)
        self._shown: tuple[int, tuple[Row, ...]] = (0, ())
        self._closing = threading.Event()
        self._gone = False
        # A daemon thread, so that the interpreter's exit does not wait again for a stopped terminal.
        self._thread = threading.Thread(target=self._run, name="live-view", daemon=True)

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Queue a message for the next drawing. Never waits, never fails."""
        del line
        if not self._gone:
            self._arrived.append((self._clock(), envelope))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Print the rest of the story, erase the status rows, and wait until that is done.

        A Ctrl-C ends the wait if the reader does not read; a second call does not wait.
        """
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(_TICK_S):
                self._draw()
            self._draw(last=True)
        except OSError:
            pass  # The reader has gone; the episode continues.
        finally:
            self._gone = True
            self._arrived.clear()

    def _draw(self, *, last: bool = False) -> None:
        size = self._output.size()
        width = max(_NARROWEST, min(size.columns, _WIDEST))
        text = "".join(f"{row}\n" for row in self._new_rows(width))
        if not self._output.redraws:
            if text:
                self._output.write(text)
            return
        rows = () if last else status_rows(self._progress, self._clock(), size, self._output.spinner)
        if text or (size.columns, rows) != self._shown:
            self._shown = (size.columns, rows)
            below = "\n".join(map(self._painted, rows))
            back = f"\x1b[{len(rows) - 1}A\r" if len(rows) > 1 else "\r"
            self._output.write(f"\r\x1b[J{text}{below}{back}")

    def _new_rows(self, width: int) -> list[str]:
        rows: list[str] = []
        while self._arrived:
            at, envelope = self._arrived.popleft()
            self._progress.note(envelope, at)
            for line in self._story.lines(envelope.body):
                rows += line.rows(width, colour=self._output.colour)
        return rows

    def _painted(self, row: Row) -> str:
        return "".join(painted(text, style if self._output.colour else "") for text, style in row)
