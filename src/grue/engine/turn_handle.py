"""`TurnHandle`: a running turn, for programs whose own loop must not block (a game, a GUI)."""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec.structs import replace

from grue.engine.turn_actors import TurnActors
from grue.errors import TurnCancelled
from grue.protocol.turn.states import TurnProgress
from grue.runtime.loops.interrupts import WorkInterrupted
from grue.runtime.loops.loop_thread import Call

T = TypeVar("T")


class ProgressSource:
    """Reports what a turn is doing, also before its actors exist and after they are gone."""

    def __init__(self) -> None:
        self._actors: TurnActors | None = None
        self._last = TurnProgress(doing="waiting for its turn")

    def enter(self, actors: TurnActors) -> None:
        """Report the progress of these actors from now on."""
        self._actors = actors

    def leave(self) -> None:
        """Keep the last progress and drop the actors, so that they can be garbage collected."""
        self._last, self._actors = self.progress, None

    @property
    def progress(self) -> TurnProgress:
        """The current phase of the turn and its counts so far."""
        return self._last if self._actors is None else self._actors.progress


class TurnHandle(Generic[T]):
    """A turn that `Runner.start_turn` has started. Only `result` can block.

    Thread-safe. The turn goes on if its handle is dropped.

    Args:
        call: The turn in its event loop.
        progress: Reports what the turn is doing.
    """

    def __init__(self, call: Call[T], progress: ProgressSource) -> None:
        self._call = call
        self._progress = progress
        self._started = call.submitted_at  # the loop may have begun the turn before this line runs

    def done(self) -> bool:
        """Return whether the turn is over. `result` then returns or raises at once."""
        return self._call.done()

    def result(self, timeout_s: float | None = None) -> T:
        """Return the turn's outcome, or raise its error, as `run_turn` does.

        Ctrl-C ends the wait; the turn goes on.

        Args:
            timeout_s: Longest wait in seconds; `None`: no limit; 0: do not wait.

        Raises:
            TimeoutError: The turn is not over yet. It goes on.
            TurnCancelled: `cancel` was called, or the runner was closed.
            MCPError: The wait would never end: the caller is a turn of the same runner, or a forked process.
        """
        if not self._call.join(timeout_s):
            waited = f" after {timeout_s:g} s" if timeout_s else ""
            raise TimeoutError(f"The turn is not over{waited}: it goes on.")
        if isinstance(self._call.exception(), WorkInterrupted):
            raise TurnCancelled("The turn was cancelled.")
        return self._call.result()

    def when_done(self, function: Callable[[], object]) -> None:
        """Call `function` when the turn is over, in the turn's own thread; at once if it is over already.

        Use it to wake your own loop, not to do work: it must not block or raise.
        """
        self._call.add_done_callback(lambda _: function())

    def cancel(self) -> None:
        """Cancel the turn and return at once. The turn ends within seconds, when its sessions are closed."""
        self._call.interrupt()

    def progress(self) -> TurnProgress:
        """Return the turn's progress. After its end this is `done`, with its final counts."""
        over = self._call.done()  # before the progress is read: after the end it no longer changes
        seen = self._progress.progress
        until = time.monotonic() if self._call.ended_at is None else self._call.ended_at
        return replace(seen, doing="done" if over else seen.doing, elapsed_s=until - self._started)
