"""Ctrl-C. Only this module and `cli/__init__.py` (the table's first row) handle signals of grue's process.

What a press of Ctrl-C does depends on where the main thread is, because Python runs signal handlers there:

```
the main thread is in                   1st press               2nd press                 3rd press
--------------------------------------  ----------------------  ------------------------  ---------
the start or the exit of the command    the process ends with   -                         -
  `grue` (its imports)                  status 130
the host's own code, or an import that  raise now, as Python    -                         -
  it makes                              does
`run_blocking`, loop in this thread:    cancel the work         `force_kill()`            raise now
  servers' start-up, turn, callbacks,
  imports, clean-up
`run_blocking`, loop in another thread  cancel, wait max. 3 s   raise now; `on_exit`      -
  (a loop runs in this thread)                                  kills the processes
`EpisodeLoop()`, while it starts        raise; the loop ends    -                         -
                                        by itself
`Call.wait` (run_turn in an episode,    cancel, wait max. 3 s   `force_kill()`, wait      raise now
  ToolClient's calls and exit)                                  max. 3 s
`Call.join` (TurnHandle.result)         raise; the call goes on -                         -
an item of `Runner.map`                 cancel all, wait max.   `force_kill()`, wait      stop waiting
                                        3 s                     max. 3 s                  (4th: raise now)
`EpisodeLoop.close` (Runner.close)      `force_kill()`, wait    stop waiting, raise       raise now
                                        max. 10 s
the interpreter's exit (`atexit`)       `force_kill()`, wait    stop waiting              -
a fleet's driver (`grue fleet run`)     start no more; finish   cancel these              raise now
                                        running episodes
any of them, but a handler of the       what it raises is treated like a press, and raised in place of
  host's raises, for whatever signal    `KeyboardInterrupt`; but in a host's callback it is raised at once
another thread is in one of them        nothing: Python runs handlers in the main thread only
```

"Raise now" means: raise `KeyboardInterrupt` at whatever line is running. The other presses lead to a
`KeyboardInterrupt` at the wait or after the clean-up. The exceptions are the first row, a fleet's first two
presses, and the interpreter's exit. The first two presses do not interrupt a host's callback that blocks. No
press interrupts a callback in another thread than the main one, but the main thread stops waiting for it.

Why not leave SIGINT to asyncio? Its handler raises `KeyboardInterrupt` at an arbitrary line from the second
press on, usually in the middle of the clean-up: a server process stays alive, a lock stays held, or the loop
never ends. Impatient users press twice within a second. In grue the second press kills the processes that
the clean-up waits for, so the clean-up ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import sys
import threading
import time
import weakref
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
from itertools import count
from types import FrameType
from typing import Any, TypeVar

import anyio

from grue.errors import MCPError
from grue.runtime.loops.host_code import current_task

T = TypeVar("T")

INTERRUPT_GRACE_S = 3.0  # how long a thread waits for the clean-up of cancelled work in another loop
_NOTICE_S = 0.05  # time between two checks for a Ctrl-C that was deferred, or that a loop swallowed
_SIGNALS = tuple(map(int, signal.valid_signals()))


class WorkInterrupted(KeyboardInterrupt):
    """The work of an `Interruptible` was cancelled by its method `interrupt`."""


def block_signals() -> None:
    """Block all signals in this background thread: they must wake the main thread, which handles them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in this process: its parent handles it. Call this function in the main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def born_without_interrupts() -> Iterator[None]:
    """Protect the processes that are started in the block from Ctrl-C until they call `ignore_interrupts`.

    A process that is still importing would print a traceback. It inherits the signal mask of this thread.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_main_thread() -> bool:
    """Return whether this is the main thread, in which Python runs signal handlers."""
    return threading.current_thread() is threading.main_thread()


# The packages that grue's own code calls in a turn. What it calls in other packages is the host's code.
_CALLED_BY_GRUE = {
    *("anyio", "httpcore", "httpcore2", "httpx", "httpx2", "jsonschema_rs", "langfuse", "mcp", "mcp_types"),
    *("opentelemetry", "pydantic", "rich", "sniffio", "typing_extensions", "yaml"),
    *sys.stdlib_module_names,
}


class _Taken:
    """Calls the program's signal handler. Passes its exception to `takes[0]`, or lets it be raised."""

    def __init__(self, handler: Callable[..., object], takes: list[Callable[[BaseException], None]]) -> None:
        self.handler = handler
        self.takes = takes

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        # `refuse_reentry` recognises a handler by its caller's frame, so pass this frame on.
        # The program's own handlers may raise in a callback of the host. Python's handler of SIGINT may not.
        here = inspect.currentframe()
        if not self.takes or (self.handler is not signal.default_int_handler and _is_the_hosts(frame)):
            self.handler(signum, here)
            return
        try:
            self.handler(signum, here)
        except BaseException as error:  # noqa: BLE001 - it is raised at a safe point
            self.takes[0](error)


def _is_the_hosts(frame: FrameType | None) -> bool:
    """Return whether the innermost frame of grue in this frame's stack has called the host's code."""
    called = ""
    while frame is not None and not (name := frame.f_globals.get("__name__", "")).startswith("grue."):
        called, frame = name, frame.f_back
    return called in sys.modules and called.partition(".")[0] not in _CALLED_BY_GRUE


class _Taking:
    """In this block, `take` gets what signal handlers raise, unless an outer block gets it.

    Does nothing outside the main thread.
    """

    def __init__(self, take: Callable[[BaseException], None]) -> None:
        self._takes = [take]
        self._taken: dict[int, _Taken] = {}

    def __enter__(self) -> None:
        try:
            for number in _SIGNALS if in_main_thread() else ():
                handler = getsignal(number)
                while isinstance(handler, _Taken) and not handler.takes:
                    handler = handler.handler  # left over from a block whose end a handler has interrupted
                if callable(handler) and not isinstance(handler, _Taken):
                    self._taken[number] = _Taken(handler, self._takes)
                    signal.signal(number, self._taken[number])
        except BaseException:  # a handler that was not replaced yet has raised it
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._takes.clear()
        for number, ours in self._taken.items():
            if getsignal(number) is ours:
                signal.signal(number, ours.handler)


class Interruptible:
    """A cancel scope around a coroutine. Any thread can cancel the coroutine, even before it starts."""

    def __init__(self) -> None:
        # Reentrant: a signal handler or a finalizer may call `interrupt` in a thread that holds the lock.
        self._lock = threading.RLock()
        self._cancel: Callable[[], object] | None = None
        self._interrupted = False
        self._thread: threading.Thread | None = None
        self._ended: Future[None] = Future()

    async def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` and return its result. Raises `WorkInterrupted` if `interrupt` has cancelled it."""
        loop = asyncio.get_running_loop()
        self._thread = threading.current_thread()
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
                self._ended.set_result(None)
        raise WorkInterrupted

    def interrupt(self) -> None:
        """Cancel the work now, or as soon as it starts. Callable from any thread; returns at once."""
        with self._lock:
            self._interrupted = True
            cancel = self._cancel
        if cancel is not None:
            # The loop may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                cancel()

    def join(self, timeout_s: float) -> None:
        """Wait until the work has ended or the time has passed. Returns at once in the work's own thread."""
        if self._thread is not threading.current_thread():
            wait_for(self._ended, timeout_s)


async def run_into(result: list[T], function: Callable[[], Awaitable[T]]) -> None:
    """Append to `result` what `function` returns, or nothing if it raises `WorkInterrupted`.

    That is a `KeyboardInterrupt`, at which asyncio would stop the loop, or `nest_asyncio` log an error.
    """
    with contextlib.suppress(WorkInterrupted):
        result.append(await function())


def run_in_main_thread(
    function: Callable[[], Awaitable[T]],
    force_kill: Callable[[], object],
    run_loop: Callable[[Callable[[], Awaitable[T]]], T],
) -> T:
    """Run a coroutine function by `run_loop` and return its result. Ctrl-C cancels it, at an `await`.

    The second Ctrl-C calls `force_kill`. What other signal handlers of the program raise counts as a press,
    because asyncio would log or lose it; in the host's callbacks it is raised at once. The handlers are
    replaced before the loop starts, so that asyncio sets none: asyncio's handler of SIGINT would cancel the
    main task even while the loop starts or ends. A handler's error replaces an `Exception` of the coroutine.
    """
    work = Interruptible()
    raised: list[BaseException] = []

    def take(error: BaseException) -> None:
        # Take no lock that the interrupted code may hold, unless the lock is reentrant.
        raised.append(error)
        if len(raised) == 1:
            work.interrupt()
        elif len(raised) == 2:
            force_kill()
        else:
            raise error

    try:
        with _Taking(take):
            result = run_loop(lambda: work.run(function))
    except (Exception, WorkInterrupted) as error:
        if raised:
            raise _foremost(raised) from (None if isinstance(error, WorkInterrupted) else error)
        raise
    if raised:
        raise _foremost(raised)
    return result


def _foremost(raised: list[BaseException]) -> BaseException:
    return next((each for each in raised if not isinstance(each, Exception)), raised[0])


_deferred: list[BaseException] | None = None  # what `defer_interrupts` keeps; `None`: no such block is open


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C: keep it, and let `wait_for`, `raise_deferred` or the end of the block raise it.

    Python's default handler raises at an arbitrary line of the main thread, perhaps between taking a lock and
    the `try` that releases it. The loop's thread needs the same locks, and would hang. So in this block the
    first two presses are only kept, and `wait_for`, which holds no lock, raises. The same holds for what
    other signal handlers of the program raise. Blocks can be nested; they do nothing outside the main thread.
    """
    global _deferred
    if _deferred is not None or not in_main_thread():
        yield
        return
    raised: list[BaseException] = []
    presses = count(1)  # not the length of `raised`, from which `raise_deferred` removes what it raises

    def take(error: BaseException) -> None:
        raised.append(error)
        if next(presses) > 2:
            raise error

    try:
        with _Taking(take):
            _deferred = raised
            yield
    except Exception as error:
        if raised:
            raise _foremost(raised) from error
        raise
    finally:
        _deferred = None
    if raised:
        raise _foremost(raised)


def raise_deferred() -> None:
    """Raise one exception that `defer_interrupts` has deferred, such as a Ctrl-C, if there is one."""
    if _deferred and in_main_thread():
        raise _deferred.pop(0)


def _give_back() -> None:
    """In a forked child, let signal handlers raise again: the blocks that replaced them are the parent's."""
    global _deferred
    _deferred = None
    for handler in map(getsignal, _SIGNALS):
        if isinstance(handler, _Taken):
            handler.takes.clear()


os.register_at_fork(after_in_child=_give_back)


@contextlib.contextmanager
def restore_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` if a Ctrl-C in a `Condition` has raised `RuntimeError` (CPython 3.11)."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise


class InterruptWatch:
    """Detects a Ctrl-C that the asyncio loop of this thread has swallowed. Create it before the work starts.

    At the first Ctrl-C, `asyncio.run` only cancels its main task, which interrupts no blocking call. But then
    the task's count of cancellation requests has grown, and the watch sees this.
    """

    def __init__(self) -> None:
        task = current_task()
        self._task = None if task is None else weakref.ref(task)
        self._cancelled_before = task.cancelling() if task else 0

    def struck(self) -> bool:
        """Return whether the watch's task was cancelled since the last call; `False` outside that task."""
        task = current_task()
        if task is None or self._task is None or task is not self._task():
            return False
        before, self._cancelled_before = self._cancelled_before, task.cancelling()
        return self._cancelled_before > before


def wait_for(
    finished: Future[Any], within_s: float | None = None, *, watch: InterruptWatch | None = None
) -> None:
    """Wait until `finished` is done or `within_s` has passed; raises a Ctrl-C, also one that `watch` saw."""
    watches = [InterruptWatch()] if watch is None else [InterruptWatch(), watch]
    deadline = float("inf") if within_s is None else time.monotonic() + within_s
    while (left_s := deadline - time.monotonic()) > 0 and not wait([finished], min(left_s, _NOTICE_S)).done:
        # Ask every watch. A watch that was not asked would report this press at the next call of `wait_for`.
        struck = [each.struck() for each in watches]
        if any(struck):
            raise KeyboardInterrupt
        raise_deferred()


# Packages of grue that count as host code: a signal handler that has interrupted them may call grue.
_HOSTS = ("grue.hosts", "grue.cli", "grue.testing")


def refuse_reentry() -> None:
    """Raise `MCPError` if the caller is in a signal handler that has interrupted grue or an import.

    The interrupted code may hold a lock that a turn needs in another thread, until the handler has returned.
    A handler is recognised by one of its arguments, the interrupted frame, which is also its caller.
    """
    if not in_main_thread():
        return
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    begun = frame
    # `_is_handler` reads a frame's local variables, which before Python 3.13 keeps their values alive for
    # longer. So call it only if a direct or indirect caller of `begun` is a frame of grue or of an import:
    # without one, a handler has interrupted neither.
    while frame is not None and not is_ours(frame):
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            break
        frame = frame.f_back
    while begun is not None and begun is not frame and frame is not None:
        if _is_handler(begun):
            raise MCPError(
                "grue was called by a signal handler that had interrupted grue, or an import: it could wait "
                "for ever for what it interrupted. Have the handler set a flag; call when it has returned."
            )
        begun = begun.f_back


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of grue, but not of `grue.hosts`, `grue.cli` or `grue.testing`."""
    name = frame.f_globals.get("__name__", "")
    return name.startswith("grue.") and not name.startswith(_HOSTS)


def _is_handler(frame: FrameType) -> bool:
    code = frame.f_code
    given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += rest if isinstance(rest, tuple) else ()
    return frame.f_back is not None and any(value is frame.f_back for value in given)
