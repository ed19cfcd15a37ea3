"""A background thread that runs long calls in order, so that an event loop is not blocked."""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import anyio
import anyio.to_thread

from grue.runtime.loops.interrupts import block_signals


class Backlog:
    """A queue of calls for one thread. Call `add` from one thread at a time; the rest is thread-safe.

    The thread starts with the first call and ends when the queue is empty. The interpreter waits for that at
    exit. In a forked child the queue is empty: the calls belong to the parent.

    Attributes:
        calls: Pending calls, and finished ones whose result `check` has not looked at yet.
    """

    def __init__(self) -> None:
        self.calls: deque[Future[None]] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    @property
    def busy(self) -> bool:
        """Whether a call is pending or running."""
        return bool(self.calls) and not self.calls[-1].done() and self._process == os.getpid()

    def add(self, function: Callable[[], None]) -> None:
        """Queue a call of `function`."""
        if self._thread is None or self._process != os.getpid():
            self.calls.clear()
            self._process = os.getpid()
            self._thread = ThreadPoolExecutor(1, "grue trace", block_signals)
        self.calls.append(self._thread.submit(function))

    def check(self) -> None:
        """Raise an exception of a finished call, once."""
        while self.calls and self.calls[0].done():
            self.calls.popleft().result()
        if not self.calls and self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def wait(self) -> None:
        """Wait, blocking, until all calls are finished. Raise an exception of a call."""
        if self.busy:
            wait(list(self.calls))
        self.check()

    async def wait_async(self) -> None:
        """Wait without blocking the event loop. Cancellation ends the wait only, not the calls."""
        while self.busy:
            await anyio.to_thread.run_sync(wait, list(self.calls), abandon_on_cancel=True)
        self.check()
