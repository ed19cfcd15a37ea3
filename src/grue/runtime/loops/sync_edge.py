"""Run a coroutine from synchronous code, by an `anyio.run` of its own or, under gevent, in a shared loop.

If an event loop runs in the calling thread (a notebook, an async web view), the new loop runs in another
thread, while the caller waits.

After gevent's `monkey.patch_all()` all threads are greenlets of one system thread, in which asyncio allows
one running loop. gevent's `subprocess` cannot start a process in a real thread. So each coroutine becomes a
task of one loop, which runs in a greenlet and waits with functions that gevent has patched.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import TypeVar

import anyio

from grue.errors import MCPError
from grue.runtime.loops import interrupts
from grue.runtime.loops.beside_loop import context_of, look_up

T = TypeVar("T")


# All greenlets share one event loop. A task that blocks the loop also stops the work that it waits for.
WAITS_FOR_ITSELF = "Under gevent this call would wait for itself: an event loop runs it. Use {instead}."
IN_A_THREAD = "asyncio.to_thread"  # recommended to callers of methods that have no async twin


class BlockingInsideEventLoopWarning(UserWarning):
    """A blocking call was made inside a running event loop. Everything else in that loop waits for it."""


def run_blocking(
    function: Callable[[], Awaitable[T]],
    *,
    on_exit: Callable[[], object],
    twin: str,
    force_kill: Callable[[], object] = lambda: None,
) -> T:
    """Run a coroutine function by `run_loop`, in a new thread if a loop runs in this one; return its result.

    `force_kill` is called in a signal handler at the second Ctrl-C, if the loop runs in the main thread; it
    makes the running clean-up end at once. `on_exit` is called outside the loop when this call no longer
    waits for `function`, for whatever reason; it must be synchronous and quick. `twin`: what to
    recommend to a caller in an event loop, unless the method of grue that was called has an async twin.
    """
    interrupts.refuse_reentry()
    try:
        if warn_if_blocking(twin):
            if threads_are_greenlets():
                raise MCPError(WAITS_FOR_ITSELF.format(instead=_twin_called() or twin))
            return _run_in_thread(function)
        if interrupts.in_main_thread():
            return interrupts.run_in_main_thread(function, force_kill, run_loop)
        return run_loop(function)
    finally:
        on_exit()


CLOSED = (
    "A descriptor of grue's event loop was closed by other code of this process, such as a function that"
    " closes all descriptors (os.closerange, or a daemon library). The turn is lost, and later ones may be"
    " too: run such code in a process of its own."
)


def run_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function by `anyio.run`, or under gevent in the loop that all greenlets share.

    Raises what the function raises, also `WorkInterrupted`; and `MCPError` if no loop can be started, or
    other code closed its descriptors.
    """
    begun = False
    result: list[T] = []
    run = run_in_shared_loop if threads_are_greenlets() else anyio.run

    def begin() -> Awaitable[None]:
        nonlocal begun
        begun = True
        asyncio.get_running_loop().getaddrinfo = look_up  # type: ignore[method-assign]
        return interrupts.run_into(result, function)

    try:
        run(begin)
    except (OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno == errno.EBADF:
            raise MCPError(CLOSED) from error
        if begun:
            raise
        remedy = "Close what is not needed any more, or raise the limit of open files (ulimit -n)."
        if threads_are_greenlets():
            remedy = "Under gevent, an asyncio loop of the program's own leaves no room for another."
        text = f"No event loop could be started: {error or type(error).__name__}. {remedy}"
        raise MCPError(text) from error
    if not result:
        raise interrupts.WorkInterrupted
    return result[0]


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raises `MCPError` if that fails, or Python is shutting down."""
    if sys.is_finalizing():  # Python 3.11 would wait for ever for the new thread
        raise MCPError("No thread could be started: Python is shutting down. Functions of atexit still can.")
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise MCPError(
            f"No thread could be started: {error or type(error).__name__}. End what is not needed any more, "
            "or raise the limit of processes and threads (ulimit -u)."
        ) from error


_warned: set[str] = set()


def warn_if_blocking(twin: str) -> bool:
    """Return whether an event loop runs in this thread. If so, warn, except in a notebook.

    Each recommendation (`twin`, as in `run_blocking`) is made only once.
    """
    if not loop_is_running():
        return False
    # Under trio no async method of grue works.
    twin = "trio.to_thread.run_sync" if _trio_runs() else _twin_called() or twin
    # No warning in a notebook: each cell blocks its event loop, as the user expects.
    if twin not in _warned and not in_notebook():
        _warned.add(twin)
        level, frame = 0, inspect.currentframe()
        while frame is not None and interrupts.is_ours(frame):
            level, frame = level + 1, frame.f_back
        warnings.warn(
            f"An event loop is already running here, and this call blocks it. Use {twin} instead.",
            BlockingInsideEventLoopWarning,
            stacklevel=level + 1,
        )
    return True


def _twin_called() -> str:
    """Return `CLASS.METHOD_async` of the method of grue that was called; empty if it has no async twin."""
    twin, frame = "", inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("grue."):
        if "self" in frame.f_locals:  # a method, and no decorator's function
            owner, name = type(frame.f_locals["self"]), f"{frame.f_code.co_name}_async"
            twin = f"{owner.__name__}.{name}" if hasattr(owner, name) else ""
        frame = frame.f_back
    return twin


def in_notebook() -> bool:
    """Return whether the program runs in a Jupyter kernel, such as that of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def loop_is_running() -> bool:
    """Return whether an event loop runs in this thread. Under gevent, only the shared loop counts."""
    if threads_are_greenlets():
        return in_shared_loop()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _trio_runs()
    return True


def _trio_runs() -> bool:
    # Use `current_trio_token`, because older versions of trio have no `in_trio_run`. While trio is being
    # imported, it may have neither of them.
    token = getattr(sys.modules.get("trio.lowlevel"), "current_trio_token", None)
    if token is None:
        return False
    try:
        token()
    except RuntimeError:
        return False
    return True


def _run_in_thread(function: Callable[[], Awaitable[T]]) -> T:
    work = interrupts.Interruptible()
    finished: Future[T] = Future()
    watch = interrupts.InterruptWatch()

    def target() -> None:
        try:
            finished.set_result(run_loop(lambda: work.run(function)))
        except BaseException as error:  # noqa: BLE001 - the waiting caller raises it again
            finished.set_exception(error)

    thread = threading.Thread(target=target, name="grue-turn", daemon=True)
    start_thread(thread)
    try:
        with interrupts.restore_interrupt():
            interrupts.wait_for(finished, watch=watch)
    except BaseException:
        work.interrupt()
        thread.join(interrupts.INTERRUPT_GRACE_S)
        raise
    thread.join()
    return finished.result()


_CLEAN_UP_S = 3.0  # how long a killed greenlet waits for the clean-up of its task


def threads_are_greenlets() -> bool:
    """Return whether gevent has replaced the threads of this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class _SharedLoop:
    def __init__(self) -> None:
        self.users = 0
        self.thread = threading.Thread(target=self._run, name="grue-greenlets", daemon=True)
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._over: asyncio.Event
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run `function` as a task and return its result. If gevent kills this greenlet, cancel the task."""
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


# Made at its first use: a lock from before gevent has replaced the threads would block all greenlets.
_lock: threading.Lock | None = None
_shared: _SharedLoop | None = None


def in_shared_loop() -> bool:
    """Return whether the caller runs in the shared loop's own greenlet."""
    return _shared is not None and threading.current_thread() is _shared.thread


def run_in_shared_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function in the loop that all greenlets share, and return its result."""
    global _lock, _shared
    lock = _lock = _lock or threading.Lock()
    with lock:
        shared = _shared
        if shared is None:
            shared = _shared = _SharedLoop()
            shared.thread.start()
        shared.users += 1
    try:
        return shared.run(function)
    finally:
        with lock:
            shared.users -= 1
            if not shared.users:
                _shared = None
                shared.end()
