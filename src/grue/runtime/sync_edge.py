"""From plain code into the event loop and back: exactly one `anyio.run`, wherever the caller stands.

Where no event loop runs in the calling thread, the loop runs right there. Where one does (a notebook, an
async web view), the one `anyio.run` happens in a thread of its own while the caller waits, and a warning,
once, names the async twin. Either way a plain `finally` outside the loop has the last word.

Ctrl-C: asyncio's own handler raises `KeyboardInterrupt` at an arbitrary point from the second one on, in the
middle of whatever cleans up, and the loop may never end. So while a loop runs here, the first Ctrl-C cancels
the work, the second kills what still resists (`force_kill`), and only a third one raises on the spot.
"""

import asyncio
import contextlib
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
from grue.runtime.reentry import refuse_reentry

T = TypeVar("T")

INTERRUPT_GRACE_S = 3.0
"""How long a Ctrl-C waits for the loop in the other thread to clean up."""


_NOTICE_S = 0.05
"""How long a Ctrl-C can go unnoticed where an event loop has taken it."""


class WorkInterrupted(KeyboardInterrupt):
    """What was running was interrupted from outside, as opposed to a KeyboardInterrupt that it raised."""


class BlockingInsideEventLoopWarning(UserWarning):
    """A blocking call was made where an event loop runs; everything else in that loop waits for it."""


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
        force_kill: Called in a signal handler at the second Ctrl-C; makes the clean-up under way end at once.
        on_exit: Called when the loop is gone, however it went; must be plain and quick.
        twin: The call that async code should use instead, for the warning.

    Raises:
        KeyboardInterrupt: Ctrl-C; by then the loop has been given the time to clean up.
        MCPError: A signal handler calls that has interrupted grue or an import.
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
    """Let a Ctrl-C leave as what it is, also where it struck inside a lock's own code.

    A `threading.Condition` that is interrupted as it releases its lock complains of the lock instead, with a
    RuntimeError (seen in CPython 3.11).
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
        MCPError: The system had no descriptors or no memory left for a loop; its own error is the cause.
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
        MCPError: The system has no more of them, or no memory; its own error is the cause.
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
    """Say whether an event loop runs in this thread; if so, warn once, in the name of the caller's caller."""
    if not loop_is_running():
        return False
    if twin not in _warned:
        _warned.add(twin)
        warnings.warn(
            f"An event loop is already running here, and this call blocks it. Use {twin} instead.",
            BlockingInsideEventLoopWarning,
            stacklevel=4,
        )
    return True


def loop_is_running() -> bool:
    """Say whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")
        return trio is not None and bool(trio.lowlevel.in_trio_run())
    return True


def _may_handle_sigint() -> bool:
    """Whether this is the thread that signals reach, and nobody else has a handler for SIGINT."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class _Presses:
    """A handler of SIGINT that counts, and raises at the third one only."""

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
    """Have a Ctrl-C counted, so that `wait_for` raises it, not any line that happens to run; can be nested.

    Struck anywhere else, it could leave a lock taken for good that the other thread needs. Where somebody
    else takes SIGINT, nothing changes.

    Raises:
        KeyboardInterrupt: Ctrl-C, which nothing has raised by the end of the block.
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
    """Take one Ctrl-C that was counted in this thread, if there is any."""
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
        # It returns nothing: asyncio writes out its main task, result and all, when it gives SIGINT back.
        nonlocal result
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:

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
    """A cancel scope around the coroutine that another thread can cancel, before or after it is entered."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may interrupt while this thread holds it
        self._cancel: Callable[[], object] | None = None
        self._interrupted = False

    async def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function`; raises `WorkInterrupted` where it was interrupted."""
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
        """Cancel it, from any thread, its own included, now or when it begins; wait for nothing."""
        with self._lock:
            self._interrupted = True
            cancel = self._cancel
        if cancel is not None:
            # The loop may end by itself between the two lines: then there is nothing left to cancel.
            with contextlib.suppress(RuntimeError):
                cancel()


def _run_in_thread(function: Callable[[], Awaitable[T]]) -> T:
    work = Interruptible()
    finished: Future[T] = Future()
    watch = InterruptWatch()

    def target() -> None:
        try:
            finished.set_result(run_loop(lambda: work.run(function)))
        except BaseException as error:  # noqa: BLE001 - handed over to the waiting caller, whatever it is
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
    """Notices, from when it is made, a Ctrl-C that this thread's event loop has taken for itself.

    A loop that `asyncio.run` started takes the first Ctrl-C and only marks its main task as cancelled, which
    nobody would see while a call blocks the loop. Made before what is waited for begins, it misses none that
    strikes between the two.
    """

    def __init__(self) -> None:
        task = _current_task()
        self._task = None if task is None else weakref.ref(task)
        self._cancelled_before = task.cancelling() if task else 0

    def struck(self) -> bool:
        """Say whether there was one, once, and for the task that made it: others have not missed anything."""
        task = _current_task()
        if task is None or self._task is None or task is not self._task():
            return False
        before, self._cancelled_before = self._cancelled_before, task.cancelling()
        return self._cancelled_before > before


def wait_for(
    finished: Future[Any], within_s: float | None = None, *, watch: InterruptWatch | None = None
) -> None:
    """Wait until it is done, or `within_s` has passed, and notice a Ctrl-C, from `watch` or from now on.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    watches = [InterruptWatch()] if watch is None else [InterruptWatch(), watch]
    deadline = float("inf") if within_s is None else time.monotonic() + within_s
    while (left_s := deadline - time.monotonic()) > 0 and not wait([finished], min(left_s, _NOTICE_S)).done:
        # Each of them is asked, so that none tells the next time what was told now.
        struck = [each.struck() for each in watches]
        if any(struck) or _counted_interrupt():
            raise KeyboardInterrupt


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
