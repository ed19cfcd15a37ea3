"""Work that is too long for whoever hands it in: done by one thread, in order."""

import os
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import anyio
import anyio.to_thread


class Backlog:
    """Calls that are waiting or being made. Hand in from one thread at a time; the rest is safe from any.

    The thread begins with the first call and ends when nothing is left to do. The interpreter does not exit
    before that. In a forked child nothing is left to do: the calls are the parent's.

    Attributes:
        calls: Those that nobody has asked about since they were made (`check`), and those still to be made.
    """

    def __init__(self) -> None:
        self.calls: deque[Future[None]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    @property
    def busy(self) -> bool:
        """Whether a call has not been made yet."""
        return bool(self.calls) and not self.calls[-1].done() and self._process == os.getpid()

    def add(self, function: Callable[[], None]) -> None:
        """Have `function` called after those that were handed in before."""
        if self._thread is None or self._process != os.getpid():
            self.calls.clear()
            self._process = os.getpid()
            self._thread = ThreadPoolExecutor(1, "grue trace", _leave_signals_alone)
        self.calls.append(self._thread.submit(function))

    def check(self) -> None:
        """Raise what a call has raised, once."""
        while self.calls and self.calls[0].done():
            self.calls.popleft().result()
        if not self.calls and self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def wait(self) -> None:
        """Wait until every call is made; raises what one of them has raised. It blocks."""
        if self.busy:
            wait(list(self.calls))
        self.check()

    async def wait_async(self) -> None:
        """Do the same in an event loop, which goes on meanwhile. Cancelled, it only stops waiting."""
        while self.busy:
            await anyio.to_thread.run_sync(wait, list(self.calls), abandon_on_cancel=True)
        self.check()


def _leave_signals_alone() -> None:
    # Signals are for the thread that plays: one delivered here would not wake it.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
