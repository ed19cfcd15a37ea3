"""One event loop for all turns of a process whose threads are gevent's greenlets.

asyncio allows one running loop in each thread of the system. After gevent's `monkey.patch_all()` a
`threading.Thread` is a greenlet, and all of them share one such thread, so a second loop could not start
while another greenlet waits for its turn. A real thread would not help: gevent's `subprocess` starts nothing
there. So each coroutine that would get a loop of its own becomes a task of one loop, which runs in a greenlet
and ends with its last task. gevent has patched what the loop waits with, so the other greenlets run
meanwhile.
"""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import TypeVar

import anyio

from grue.runtime.loops.daemon_thread import context_of

T = TypeVar("T")

_CLEAN_UP_S = 3.0
"""How long a killed greenlet waits for the clean-up of its task."""


def threads_are_greenlets() -> bool:
    """Return whether gevent has replaced the threads of this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class _SharedLoop:
    """The loop, and how many callers it has; these count themselves under `_lock`."""

    def __init__(self) -> None:
        self.users = 0
        self.thread = threading.Thread(target=self._run, name="grue-greenlets", daemon=True)
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._over: asyncio.Event
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` as a task, and return its result. A caller that is killed cancels it."""
        loop = self._started.result()
        done: Future[T] = Future()
        context = context_of("asyncio")

        async def work() -> None:
            try:
                done.set_result(await function())
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                done.set_exception(error)

        def start() -> None:
            task = loop.create_task(work(), context=context)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            started.append(task)

        started: list[asyncio.Task[None]] = []
        loop.call_soon_threadsafe(start)
        try:
            return done.result()
        finally:
            if not done.done():
                loop.call_soon_threadsafe(lambda: started[0].cancel())
                wait([done], _CLEAN_UP_S)

    def end(self) -> None:
        """End the loop, which has no task any more. A later call gets a new loop, when this one is over."""
        if self._started.exception() is None:
            self._started.result().call_soon_threadsafe(self._over.set)
            self.thread.join()

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - the callers raise it
            if not self._started.done():
                self._started.set_exception(error)

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        self._started.set_result(asyncio.get_running_loop())
        await self._over.wait()


_lock = threading.Lock()
_shared: _SharedLoop | None = None


def in_shared_loop() -> bool:
    """Return whether the caller is a task of the shared loop."""
    return _shared is not None and threading.current_thread() is _shared.thread


def run_in_shared_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in the loop that all greenlets share, and return its result."""
    global _shared
    with _lock:
        shared = _shared
        if shared is None:
            shared = _shared = _SharedLoop()
            shared.thread.start()
        shared.users += 1
    try:
        return shared.run(function)
    finally:
        with _lock:
            shared.users -= 1
            if not shared.users:
                _shared = None
                shared.end()
