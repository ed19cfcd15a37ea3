"""From plain code into the event loop and back: exactly one `anyio.run`, wherever the caller stands.

Where no event loop runs in the calling thread, the loop runs right there. Where one does (a notebook, an
async web view), the one `anyio.run` happens in a thread of its own while the caller waits, and a warning,
once, names the async twin. Either way a plain `finally` outside the loop has the last word.

Ctrl-C: asyncio's own handler raises `KeyboardInterrupt` at an arbitrary point from the second one on, in the
middle of whatever cleans up, and the loop may never end. So while a loop runs here, the first Ctrl-C cancels
the work, the second makes what still resists give way (`hurry`), and only a third one raises on the spot.
"""

import asyncio
import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.lowlevel

T = TypeVar("T")

INTERRUPT_GRACE_S = 3.0
"""How long a Ctrl-C waits for the loop in the other thread to clean up."""


_NOTICE_S = 0.05
"""How long a Ctrl-C can go unnoticed where an event loop has taken it."""


class BlockingInsideEventLoopWarning(UserWarning):
    """A blocking call was made where an event loop runs; everything else in that loop waits for it."""


def run_blocking(
    function: Callable[[], Awaitable[T]],
    *,
    last_word: Callable[[], object],
    twin: str,
    hurry: Callable[[], object] = lambda: None,
) -> T:
    """Run `function` in one `anyio.run` and return its result.

    Args:
        function: The coroutine function.
        hurry: Called in a signal handler at the second Ctrl-C; makes the clean-up under way end at once.
        last_word: Called when the loop is gone, however it went; must be plain and quick.
        twin: The call that async code should use instead, for the warning.

    Raises:
        KeyboardInterrupt: Ctrl-C; by then the loop has been given the time to clean up.
    """
    try:
        if _loop_is_running():
            _warn_once(twin)
            return _run_in_thread(function)
        if _may_handle_sigint():
            return _run_here(function, hurry)
        return anyio.run(function)
    finally:
        last_word()


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


_warned: set[str] = set()


def _warn_once(twin: str) -> None:
    if twin not in _warned:
        _warned.add(twin)
        warnings.warn(
            f"An event loop is already running here, and this call blocks it. Use {twin} instead.",
            BlockingInsideEventLoopWarning,
            stacklevel=4,
        )


def _loop_is_running() -> bool:
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


def _run_here(function: Callable[[], Awaitable[T]], hurry: Callable[[], object]) -> T:
    pressed = 0

    async def interruptible() -> T | None:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:

            def press(signum: int, frame: FrameType | None) -> None:
                nonlocal pressed
                pressed += 1
                if pressed == 1:
                    loop.call_soon_threadsafe(scope.cancel)
                elif pressed == 2:
                    hurry()
                else:
                    signal.default_int_handler(signum, frame)

            before = signal.signal(signal.SIGINT, press)
            try:
                return await function()
            finally:
                signal.signal(signal.SIGINT, before)
        return None

    try:
        result = anyio.run(interruptible)
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    if pressed:
        raise KeyboardInterrupt
    return cast("T", result)


class _Interruptible:
    """A cancel scope around the coroutine that another thread can cancel, before or after it is entered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._interrupted = False

    async def run(self, function: Callable[[], Awaitable[T]]) -> T:
        with anyio.CancelScope() as scope:
            token = anyio.lowlevel.current_token()
            with self._lock:
                self._cancel = lambda: anyio.from_thread.run_sync(scope.cancel, token=token)
                if self._interrupted:
                    scope.cancel()
            try:
                return await function()
            finally:
                with self._lock:
                    self._cancel = None
        raise KeyboardInterrupt

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            cancel = self._cancel
        if cancel is not None:
            # The loop may end by itself between the two lines: then there is nothing left to cancel.
            with contextlib.suppress(anyio.RunFinishedError):
                cancel()


def _run_in_thread(function: Callable[[], Awaitable[T]]) -> T:
    work = _Interruptible()
    finished: Future[T] = Future()

    def target() -> None:
        try:
            finished.set_result(anyio.run(work.run, function))
        except BaseException as error:  # noqa: BLE001 - handed over to the waiting caller, whatever it is
            finished.set_exception(error)

    thread = threading.Thread(target=target, name="grue-turn", daemon=True)
    thread.start()
    try:
        with unmasked_interrupt():
            _wait(finished)
    except KeyboardInterrupt:
        work.interrupt()
        thread.join(INTERRUPT_GRACE_S)
        raise
    thread.join()
    return finished.result()


def _wait(finished: Future[Any]) -> None:
    """Wait, and notice a Ctrl-C.

    A loop that `asyncio.run` started takes the first Ctrl-C for itself and only marks its main task as
    cancelled, which nobody would see while this call blocks the loop.
    """
    task = _current_task()
    cancelled_before = task.cancelling() if task else 0
    while not wait([finished], _NOTICE_S).done:
        if task is not None and task.cancelling() > cancelled_before:
            raise KeyboardInterrupt


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
