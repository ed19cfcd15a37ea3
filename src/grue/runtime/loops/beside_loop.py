"""Ways to run work that must not block the event loop, and which way to choose.

| the work                                            | the way                                           |
|-----------------------------------------------------|---------------------------------------------------|
| the host's code, which may block for any time       | `call_in_daemon_thread`                           |
| our own Python code that takes more than some ms    | `aside`, in a thread of its own                   |
| one long call into C that keeps the GIL             | several short calls (`large_data.py`), in `aside` |
| a loop that has to stay in the event loop's thread  | `Pace`, which lets other tasks run                |
| a task beside a block of code, cancelled at its end | `BackgroundTasks`                                 |
| a short blocking call of our own                    | `anyio.to_thread`                                 |
| a DNS look-up, which asyncio makes                  | `look_up`, set by `run_loop`                      |

Work on JSON can take more than some ms if the text has at least `LONG` bytes (`large_data.py`), or if
`is_small` (`protocol/tools/results.py`) returns `False` for the decoded value.

The interpreter waits at its exit for every thread that is not a daemon. anyio's threads are not
always daemons, so a function of the host that hangs in one of them would keep the program alive after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

T = TypeVar("T")


try:
    from sniffio import current_async_library_cvar as _library
except ImportError:
    _library: ContextVar[str | None] | None = None  # type: ignore[no-redef]


async def call_in_daemon_thread(call: Callable[[], T], *, limiter: anyio.CapacityLimiter | None = None) -> T:
    """Run `call` in a daemon thread and return its result. A cancellation does not end the call."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits for the result
            loop.call_soon_threadsafe(done.set)

    async with limiter or anyio.to_thread.current_default_thread_limiter():
        result = start_in_daemon_thread(call)
        result.add_done_callback(wake)
        # Not `asyncio.wrap_future`: in Python 3.11 it raises a new `TimeoutError`, without the traceback.
        await done.wait()
        return result.result()


def start_in_daemon_thread(call: Callable[[], T]) -> Future[T]:
    """Start `call` in a daemon thread; return its future. Raises `RuntimeError` if no thread can start."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # from now on `Future.cancel` has no effect
    context = context_of(None)

    def run() -> None:
        try:
            value = context.run(call)
        except BaseException as error:  # noqa: BLE001 - `result()` raises it
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=run, name="grue host code", daemon=True).start()
    return result


def context_of(library: str | None) -> Context:
    """Return a copy of the caller's context, in which sniffio reports `library` (`None`: none) as running."""
    context = copy_context()
    # With the library of the caller's thread, `anyio.run` would refuse to start in a new thread.
    if _library is not None:
        context.run(_library.set, library)
    return context


Ts = TypeVarTuple("Ts")


async def aside(work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
    """Run `work(*args)` in a new thread and return its result. A cancellation does not end the work."""
    return await asyncio.wrap_future(start_in_daemon_thread(partial(work, *args)))


async def look_up(*args: Any, **options: Any) -> list[Any]:
    """Do the same as the method `getaddrinfo` of an event loop, but in a daemon thread.

    A look-up cannot be cancelled and may take half a minute. asyncio itself would make it in its default
    executor. At its end a loop waits for the executor's threads, and after the end of the main thread the
    executor takes no call.
    """
    call = partial(socket.getaddrinfo, *args, **options)
    return await call_in_daemon_thread(call, limiter=anyio.CapacityLimiter(math.inf))


STRETCH_S = 0.005  # after this time, the next `pause` of a loop with a `Pace` lets other tasks run


class Pace:
    """Lets other tasks run about every `STRETCH_S` seconds during a long loop that calls `pause`."""

    def __init__(self) -> None:
        self._due = 0.0

    async def pause(self) -> None:
        """Let other tasks run, unless the last pause was within `STRETCH_S`. May raise a cancellation."""
        if time.monotonic() >= self._due:
            await anyio.lowlevel.checkpoint()
            self.paused()

    async def pause_shielded(self) -> None:
        """Do the same as `pause`, but raise no cancellation: if the caller is cancelled, return at once."""
        # In a pause, other cancelled tasks would end, to which the caller still has to send messages.
        if time.monotonic() >= self._due and anyio.current_effective_deadline() != -math.inf:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            self.paused()

    def paused(self) -> None:
        """Make the next pause due `STRETCH_S` from now: call this after an `await` that let others run."""
        self._due = time.monotonic() + STRETCH_S


def leaves_no_time(exc_type: type[BaseException] | None) -> bool:
    """Return whether an exception closes the coroutine, which therefore cannot await anything any more."""
    return exc_type is not None and issubclass(exc_type, GeneratorExit)


class BackgroundTasks:
    """Runs tasks beside its block, and cancels them at its end. Unlike a task group, it wraps no error."""

    def __init__(self) -> None:
        self._group: anyio.abc.TaskGroup
        self._any = False

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if not leaves_no_time(exc_type):
            self._group.cancel_scope.shield = True
            if self._any:
                self._group.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)

    def start(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start `task`, which must not raise. If it still runs at the end of the block, it is cancelled."""
        self._any = True
        self._group.start_soon(task)
