"""A turn that is under way, for loops that must not block."""

import time
from typing import Generic, TypeVar

from msgspec.structs import replace

from grue.engine.turn_actors import TurnActors
from grue.errors import TurnCancelled
from grue.protocol.turn_states import TurnProgress
from grue.runtime.loop_thread import Call
from grue.runtime.sync_edge import WorkInterrupted

T = TypeVar("T")


class ProgressSource:
    """Where one turn stands, for those who look from outside: it waits until it is entered by its actors."""

    def __init__(self) -> None:
        self._actors: TurnActors | None = None
        self._last = TurnProgress(doing="waiting for its turn")

    def enter(self, actors: TurnActors) -> None:
        """Look at these from now on."""
        self._actors = actors

    def leave(self) -> None:
        """Keep what can be told of them, and let them go."""
        self._last, self._actors = self.progress, None

    @property
    def progress(self) -> TurnProgress:
        """What can be told of it so far."""
        return self._last if self._actors is None else self._actors.progress


class TurnHandle(Generic[T]):
    """A turn that was started with `Runner.start_turn`; nothing in here blocks but `result`.

    Safe to use from any thread. A handle that is lost does not end its turn.

    Args:
        call: The turn, in its loop.
        stage: Says where it stands.
    """

    def __init__(self, call: Call[T], stage: ProgressSource) -> None:
        self._call = call
        self._stage = stage
        self._started = call.asked  # the loop may have begun the turn before this line runs

    def done(self) -> bool:
        """Say whether the turn is over, and `result` returns or raises at once."""
        return self._call.done()

    def result(self, timeout_s: float | None = None) -> T:
        """Return the turn's outcome, or raise what it failed with, as `run_turn` does.

        A Ctrl-C ends the waiting, not the turn.

        Args:
            timeout_s: How long to wait for it; `None`: until it is over. 0: not at all.

        Raises:
            TimeoutError: It is not over yet; it goes on.
            TurnCancelled: `cancel` ended it, or its runner was closed.
            MCPError: It would wait in vain: a turn of the same runner asks, or a process that was forked off.
        """
        if not self._call.join(timeout_s):
            waited = f" after {timeout_s:g} s" if timeout_s else ""
            raise TimeoutError(f"The turn is not over{waited}: it goes on.")
        if isinstance(self._call.exception(), WorkInterrupted):
            raise TurnCancelled("The turn was cancelled.")
        return self._call.result()

    def cancel(self) -> None:
        """Cancel the turn, and return at once; it ends when its sessions are closed, within seconds."""
        self._call.interrupt()

    def progress(self) -> TurnProgress:
        """Return where the turn stands; `done` as soon as it is, with the numbers it ended with."""
        over = self._call.done()  # asked first: what is over does not change any more
        seen = self._stage.progress
        until = time.monotonic() if self._call.ended is None else self._call.ended
        return replace(seen, doing="done" if over else seen.doing, elapsed_s=until - self._started)
