"""Run a coroutine from synchronous code with exactly one `anyio.run`.

What Ctrl-C does meanwhile is in `interrupts.py`. The module must not know what it runs: it has no notion of
turns, sessions or models.

If no event loop runs in the calling thread, the new loop runs in that thread. If one does (a notebook, an
async web view), the new loop runs in a separate thread while the caller waits, and a warning, given once,
names the async method to use instead. In both cases `on_exit` runs in a `finally` outside the loop.
"""

import asyncio
import errno
import inspect
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

import anyio

from grue.errors import MCPError
from grue.runtime.greenlets import in_shared_loop, run_in_shared_loop, threads_are_greenlets
from grue.runtime.loops.interrupts import (
    INTERRUPT_GRACE_S,
    Interruptible,
    InterruptWatch,
    MainThreadWork,
    may_handle_interrupts,
    restore_interrupt,
    wait_for,
)
from grue.runtime.loops.reentry import is_ours, refuse_reentry

T = TypeVar("T")


WAITS_FOR_ITSELF = "Under gevent this call would wait for itself: an event loop runs it. Use {instead}."
"""All greenlets share one event loop, so a task in it that blocks also stops what it waits for."""


class BlockingInsideEventLoopWarning(UserWarning):
    """A blocking call was made inside a running event loop. Everything else in that loop waits for it."""


def run_blocking(
    function: Callable[[], Awaitable[T]],
    *,
    on_exit: Callable[[], object],
    twin: str,
    force_kill: Callable[[], object] = lambda: None,
) -> T:
    """Run `function` in one `anyio.run` and return its result.

    Args:
        function: The coroutine function.
        force_kill: Called in a signal handler at the second Ctrl-C. Makes the running clean-up end at once.
        on_exit: Called after the loop has ended, for whatever reason. Must be synchronous and quick.
        twin: The call that async code should use instead, for the warning.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed. The loop has had time to clean up.
        MCPError: The caller is a signal handler that has interrupted grue or an import. Or it runs in an
            event loop, and threads are gevent's greenlets.
    """
    refuse_reentry()
    try:
        if warn_if_blocking(twin):
            if threads_are_greenlets():
                raise MCPError(WAITS_FOR_ITSELF.format(instead=twin))
            return _run_in_thread(function)
        if may_handle_interrupts():
            return MainThreadWork(function, force_kill).run_within(run_loop)
        return run_loop(function)
    finally:
        on_exit()


_CLOSED = (
    "A descriptor of grue's event loop was closed by other code of this process, such as a function that"
    " closes all descriptors (os.closerange, or a daemon library). The turn is lost, and later ones may be"
    " too: run such code in a process of its own."
)


def run_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in an event loop, by `anyio.run`.

    Raises:
        MCPError: The system has no descriptors or no memory left for a loop, or other code has closed the
            loop's own. Its error is the cause.
    """
    begun = False
    run = run_in_shared_loop if threads_are_greenlets() else anyio.run

    async def begin() -> T:
        nonlocal begun
        begun = True
        return await function()

    try:
        return run(begin)
    except (OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno == errno.EBADF:
            raise MCPError(_CLOSED) from error
        if begun:
            raise
        remedy = "Close what is not needed any more, or raise the limit of open files (ulimit -n)."
        if threads_are_greenlets():
            remedy = "Under gevent, an asyncio loop of the program's own leaves no room for another."
        text = f"No event loop could be started: {error or type(error).__name__}. {remedy}"
        raise MCPError(text) from error


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        MCPError: The system has no threads or no memory left. Its error is the cause.
    """
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise MCPError(
            f"No thread could be started: {error or type(error).__name__}. End what is not needed any more, "
            "or raise the limit of processes and threads (ulimit -u)."
        ) from error


_warned: set[str] = set()


def warn_if_blocking(twin: str) -> bool:
    """Return whether an event loop runs in this thread. If so, warn once, at the line of the public call."""
    if not loop_is_running():
        return False
    if twin not in _warned:
        _warned.add(twin)
        warnings.warn(
            f"An event loop is already running here, and this call blocks it. Use {twin} instead.",
            BlockingInsideEventLoopWarning,
            stacklevel=_public_call(),
        )
    return True


def _public_call() -> int:
    """Return the number of frames from `warn_if_blocking` up to the host's call, as a `stacklevel`."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and is_ours(frame):
        level, frame = level + 1, frame.f_back
    return level


def loop_is_running() -> bool:
    """Return whether an event loop runs in this thread."""
    if threads_are_greenlets():
        return in_shared_loop()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")
        return trio is not None and bool(trio.lowlevel.in_trio_run())
    return True


def _run_in_thread(function: Callable[[], Awaitable[T]]) -> T:
    work = Interruptible()
    finished: Future[T] = Future()
    watch = InterruptWatch()

    def target() -> None:
        try:
            finished.set_result(run_loop(lambda: work.run(function)))
        except BaseException as error:  # noqa: BLE001 - the waiting caller raises it again
            finished.set_exception(error)

    thread = threading.Thread(target=target, name="grue-turn", daemon=True)
    start_thread(thread)
    try:
        with restore_interrupt():
            wait_for(finished, watch=watch)
    except BaseException:
        work.interrupt()
        thread.join(INTERRUPT_GRACE_S)
        raise
    thread.join()
    return finished.result()
