"""Run a blocking call of the host's code in a thread that does not keep the interpreter alive.

Come here for code that may block for any length of time: a function tool, a question to a person, a client
that somebody else wrote. `anyio.to_thread` is for our own short calls.

The interpreter waits at its exit for every thread that is not a daemon. anyio's worker threads are not
daemons if the event loop runs in the main thread, so a function that hangs would keep the program alive
after its turn has timed out, and after Ctrl-C, for as long as it hangs.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

try:
    from sniffio import current_async_library_cvar as _library
except ImportError:
    _library: ContextVar[str | None] | None = None  # type: ignore[no-redef]

T = TypeVar("T")


async def call_in_daemon_thread(call: Callable[[], T], *, limiter: anyio.CapacityLimiter | None = None) -> T:
    """Return the result of `call`, or raise its exception.

    Cancellation ends the wait. The call goes on in its thread, its result is dropped, and the interpreter's
    exit cuts it off.

    Args:
        call: A `StopIteration` that it raises becomes a `RuntimeError`, because a coroutine cannot raise it.
        limiter: How many calls run at once; `None`: anyio's limiter of this event loop.

    Raises:
        RuntimeError: The system has no threads left.
    """
    await anyio.lowlevel.checkpoint()
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = context_of(None)

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():  # the waiting task was cancelled
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]  # a call may return None

    def run() -> None:
        value: T | None = None
        raised: BaseException | None = None
        try:
            value = context.run(call)
        except StopIteration as error:
            raised = RuntimeError("the call raised StopIteration")
            raised.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - the awaiting task raises it
            raised = error
        try:
            loop.call_soon_threadsafe(settle, value, raised)
        except RuntimeError:
            # The loop has ended, and nobody waits any more.
            if not loop.is_closed():
                raise

    async with limiter or anyio.to_thread.current_default_thread_limiter():
        threading.Thread(target=run, name="grue host code", daemon=True).start()
        return await result


def start_in_daemon_thread(call: Callable[[], T]) -> Future[T]:
    """Start `call` for a caller without an event loop, and return its future.

    Wait for it with `concurrent.futures.wait` and a timeout. A call that nobody waits for any more goes on
    in its thread until the interpreter's exit cuts it off.

    Raises:
        RuntimeError: The system has no threads left.
    """
    result: Future[T] = Future()
    context = copy_context()

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
    """Return a copy of the caller's context, for code that runs under `library`; `None`: under none.

    Where something has installed sniffio, anyio and httpx ask it which library runs. Its variable says so,
    and a copied context has that of the caller: with it `anyio.run` refuses to run in another thread.
    """
    context = copy_context()
    if _library is not None:
        context.run(_library.set, library)
    return context
