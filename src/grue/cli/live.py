"""The live view of `grue play`: the story of the episode, and below it, at a terminal, what is under way.

The view is an observer of the trace. In the turn's thread it does no more than keep the message; a thread of
its own tells the story and draws, ten times a second. So a terminal that is stopped (Ctrl-S) or a slow reader
of a pipe holds nobody up before the episode is over, and one that goes away ends the view alone.

At a terminal the rows below the story are printed over in place. The cursor always rests at their beginning:
to erase them is to erase from the cursor to the end of the screen, however a resized terminal has wrapped
them. The size is asked for at each drawing, so no signal has to be caught; the cursor is never hidden, so
nothing has to be restored, whatever ends the process.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from grue.cli.live_progress import Progress
from grue.cli.live_status import Row, status_rows
from grue.cli.live_story import Story, painted
from grue.cli.live_terminal import Output
from grue.runtime.trace import Envelope

_TICK_S = 0.1
_WIDEST = 96
_NARROWEST = 20


class LiveView:
    """Show an episode while it is played; an observer and a context manager.

    Args:
        output: Where to print. A status line is shown where it `redraws`.
        max_turns: Of the episode, where its beginning is not shown; 0: as that says.
        clock: Monotonic seconds.
    """

    def __init__(
        self, output: Output, *, max_turns: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._output = output
        self._clock = clock
        self._arrived: deque[tuple[float, Struct]] = deque()
        self._story = Story(beside_status=output.redraws)
        self._progress = Progress(max_turns)
        self._shown: tuple[int, tuple[Row, ...]] = (0, ())
        self._closing = threading.Event()
        self._gone = False
        # A daemon: whoever leaves while the terminal is stopped does not wait for it a second time.
        self._thread = threading.Thread(target=self._run, name="live-view", daemon=True)

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Keep a message for the next drawing. Never waits, never fails."""
        del line
        if not self._gone:
            self._arrived.append((self._clock(), envelope.body))

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
        """Print the rest of the story, erase what is below it, and wait until that is done.

        A Ctrl-C ends the wait for a reader who does not read; a second call does not wait.
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
            pass  # Nobody is there to see it any more; the episode goes on.
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
            at, body = self._arrived.popleft()
            self._progress.note(body, at)
            for line in self._story.tell(body):
                rows += line.rows(width, colour=self._output.colour)
        return rows

    def _painted(self, row: Row) -> str:
        return "".join(painted(text, style if self._output.colour else "") for text, style in row)
