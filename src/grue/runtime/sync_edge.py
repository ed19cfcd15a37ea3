"""Run a coroutine from synchronous code with exactly one `anyio.run`, and handle Ctrl-C meanwhile.

Come here when Ctrl-C does not do what it should, or when a blocking call is made inside an event loop. The
module must not know what it runs: it has no notion of turns, sessions or models.

If no event loop runs in the calling thread, the new loop runs in that thread. If one does (a notebook, an
async web view), the new loop runs in a separate thread while the caller waits, and a warning, given once,
names the async method to use instead. In both cases `on_exit` runs in a `finally` outside the loop.

What a Ctrl-C does depends on where the main thread is:

```
the main thread is in                   1st press               2nd press                 3rd press
--------------------------------------  ----------------------  ------------------------  ---------
`run_blocking`, loop in this thread     cancel the work         `force_kill()`            raise now
`run_blocking`, loop in another thread  cancel, wait max. 3 s   raise now; `on_exit`      -
  (a loop runs in the caller's)                                 kills the processes
`Call.wait` (loop_thread.py)            cancel, wait max. 3 s   `force_kill()`, wait      raise now
                                                                max. 3 s
`Call.join` (loop_thread.py)            raise; the call goes on -                         -
`EpisodeLoop.close` (loop_thread.py)    `force_kill()`, wait    stop waiting, raise       raise now
                                        max. 10 s
any of them, but the host has its own   the host's handler decides; an exception that it raises ends the
  SIGINT handler                        wait (or the loop in this thread), with the same clean-up
```

"Raise now" means: raise `KeyboardInterrupt` at whatever line is running. Every other press ends in a
`KeyboardInterrupt` too, but only after the clean-up.

Why not leave SIGINT to asyncio? Its handler cancels the main task at the first press and raises
`KeyboardInterrupt` at an arbitrary line from the second press on. That line is usually in the middle of the
clean-up: a server process stays alive, a lock stays held, or the loop never ends. An impatient user presses
Ctrl-C twice within a second, so this would be the common case. Here the second press kills the processes
that the clean-up waits for, so the clean-up ends by itself. Only the third press can strike an arbitrary
line; it is the way out if the clean-up itself hangs.
"""

import asyncio
import contextlib
import inspect
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar, cast

import anyio

from grue.errors import MCPError
from grue.runtime.reentry import is_ours, refuse_reentry

T = TypeVar("T")

INTERRUPT_GRACE_S = 3.0
"""How long a Ctrl-C waits for the loop in the other thread to clean up."""


_NOTICE_S = 0.05
"""How often a waiting thread looks for a Ctrl-C that was deferred or that an event loop has taken."""


class WorkInterrupted(KeyboardInterrupt):
    """The work was interrupted from outside. A `KeyboardInterrupt` that the work raises is not this one."""


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
        MCPError: The caller is a signal handler that has interrupted grue or an import.
    """
    refuse_reentry()
    try:
        if warn_if_blocking(twin):
            return _run_in_thread(function)
        if _may_handle_sigint():
            return _run_here(function, force_kill)
        return run_loop(function)
    finally:
        on_exit()


@contextlib.contextmanager
def unmasked_interrupt() -> Iterator[None]:
    """Raise a Ctrl-C as `KeyboardInterrupt`, even if it struck inside a lock's own code.

    A `threading.Condition` that is interrupted while it releases its lock raises a `RuntimeError` about the
    lock instead (seen in CPython 3.11). The interrupt is then only that error's context.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


def run_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in an event loop, by `anyio.run`.

    Raises:
        MCPError: The system has no descriptors or no memory left for a loop. Its error is the cause.
    """
    begun = False

    async def begin() -> T:
        nonlocal begun
        begun = True
        return await function()

    try:
        return anyio.run(begin)
    except (OSError, RuntimeError, MemoryError) as error:
        if begun:
            raise
        raise MCPError(
            f"No event loop could be started: {error or type(error).__name__}. Close what is not needed any "
            "more, or raise the limit of open files (ulimit -n)."
        ) from error


def begin_thread(thread: threading.Thread) -> None:
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
    """Return how many frames above `warn_if_blocking` the host called grue, as a `stacklevel`."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and is_ours(frame):
        level, frame = level + 1, frame.f_back
    return level


def loop_is_running() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")
        return trio is not None and bool(trio.lowlevel.in_trio_run())
    return True


def _may_handle_sigint() -> bool:
    """Return whether this is the main thread and SIGINT still has Python's default handler."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class _Presses:
    """A SIGINT handler that counts. Only from the third press on it raises.

    Attributes:
        unseen: Presses that nothing has raised as `KeyboardInterrupt` yet.
    """

    def __init__(self) -> None:
        self.unseen = 0
        self._times = 0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self._times += 1
        self.unseen += 1
        if self._times > 2:
            signal.default_int_handler(signum, frame)


@contextlib.contextmanager
def counted_interrupts() -> Iterator[None]:
    """Defer Ctrl-C: count it, and let `wait_for` raise it at a safe point.

    Python's default handler raises at an arbitrary line of the main thread. That line may be between taking a
    lock and the `try` that releases it. The loop's thread needs the same locks, so it would hang, and with it
    the clean-up that the interrupt asks for. Inside this block the handler therefore only counts, and
    `wait_for`, which holds no lock, raises.

    Nestable: the outermost block counts. No-op off the main thread, or if the host has its own SIGINT
    handler.

    Raises:
        KeyboardInterrupt: At the end of the block, if a press was counted and nothing has raised it.
    """
    if not _may_handle_sigint():
        yield
        return
    presses = _Presses()
    before = signal.signal(signal.SIGINT, presses)
    try:
        yield
    except Exception as error:
        if presses.unseen:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if presses.unseen:
        raise KeyboardInterrupt


def _counted_interrupt() -> bool:
    """Take one deferred Ctrl-C off the count. Return whether there was one."""
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not (in_main_thread and isinstance(handler, _Presses) and handler.unseen):
        return False
    handler.unseen -= 1
    return True


def _run_here(function: Callable[[], Awaitable[T]], force_kill: Callable[[], object]) -> T:
    pressed = 0
    result: T | None = None

    async def interruptible() -> None:
        # It returns nothing. asyncio formats the repr of its main task, with the result, when it restores
        # its SIGINT handler; for a large result that is slow.
        nonlocal result
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            # A signal handler runs between any two lines, so it must not take locks that the interrupted
            # line may hold. It only schedules the cancellation, and the loop carries it out.
            def press(signum: int, frame: FrameType | None) -> None:
                nonlocal pressed
                pressed += 1
                if pressed == 1:
                    loop.call_soon_threadsafe(scope.cancel)
                elif pressed == 2:
                    force_kill()
                else:
                    signal.default_int_handler(signum, frame)

            before = signal.signal(signal.SIGINT, press)
            try:
                result = await function()
            finally:
                signal.signal(signal.SIGINT, before)

    try:
        run_loop(interruptible)
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    if pressed:
        raise KeyboardInterrupt
    return cast("T", result)


class Interruptible:
    """A cancel scope around a coroutine. Any thread can cancel it, also before the coroutine starts."""

    def __init__(self) -> None:
        # Reentrant, because a finalizer that the garbage collector runs may call `interrupt` in a thread that
        # already holds the lock.
        self._lock = threading.RLock()
        self._cancel: Callable[[], object] | None = None
        self._interrupted = False

    async def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function`.

        Raises:
            WorkInterrupted: `interrupt` was called.
        """
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            with self._lock:
                self._cancel = lambda: loop.call_soon_threadsafe(scope.cancel)
                if self._interrupted:
                    scope.cancel()
            try:
                return await function()
            finally:
                with self._lock:
                    self._cancel = None
        raise WorkInterrupted

    def interrupt(self) -> None:
        """Cancel the work now, or as soon as it starts. Callable from any thread; returns at once."""
        with self._lock:
            self._interrupted = True
            cancel = self._cancel
        if cancel is not None:
            # The loop may have ended since the lock was released. Then there is nothing left to cancel.
            with contextlib.suppress(RuntimeError):
                cancel()


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
    begin_thread(thread)
    try:
        with unmasked_interrupt():
            wait_for(finished, watch=watch)
    except BaseException:
        work.interrupt()
        thread.join(INTERRUPT_GRACE_S)
        raise
    thread.join()
    return finished.result()


class InterruptWatch:
    """Detects a Ctrl-C that the asyncio loop of this thread has swallowed.

    A loop that `asyncio.run` started handles the first Ctrl-C by cancelling its main task. A blocking call
    inside that loop never sees it: no exception is raised, and the task cannot run while the call blocks. The
    watch compares the task's count of cancellation requests with the count at its own creation. Create it
    before the work starts, so that a press between the two is not missed.
    """

    def __init__(self) -> None:
        task = _current_task()
        self._task = None if task is None else weakref.ref(task)
        self._cancelled_before = task.cancelling() if task else 0

    def struck(self) -> bool:
        """Return whether a Ctrl-C came since the last call. Always false outside the task that made this."""
        task = _current_task()
        if task is None or self._task is None or task is not self._task():
            return False
        before, self._cancelled_before = self._cancelled_before, task.cancelling()
        return self._cancelled_before > before


def wait_for(
    finished: Future[Any], within_s: float | None = None, *, watch: InterruptWatch | None = None
) -> None:
    """Wait until `finished` is done or `within_s` has passed. This is where a deferred Ctrl-C is raised.

    Args:
        finished: The future.
        within_s: Seconds; `None`: no limit.
        watch: Also raise a Ctrl-C that was pressed since this watch was created.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    watches = [InterruptWatch()] if watch is None else [InterruptWatch(), watch]
    deadline = float("inf") if within_s is None else time.monotonic() + within_s
    while (left_s := deadline - time.monotonic()) > 0 and not wait([finished], min(left_s, _NOTICE_S)).done:
        # Ask every watch, without a short circuit: each press must be reported once only.
        struck = [each.struck() for each in watches]
        if any(struck) or _counted_interrupt():
            raise KeyboardInterrupt


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
