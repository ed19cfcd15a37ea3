"""One event loop for a whole episode, in a thread of its own, used from plain code.

`run_blocking` begins and ends a loop with each call; this one stays: connections live on in it, and what one
call leaves to be done is done while the caller does something else. The thread is a daemon. The loop ends
with `close`, which the owner calls, or the interpreter when it exits, or with `end`, which waits for nothing,
where the garbage collector finds the owner lost; whatever still runs in it then is cancelled and cleans up,
bounded in time.

Nothing that other threads ask of the loop waits for its answer: it may be busy, or about to end, or the
asker may be its own thread.

Ctrl-C strikes the thread that waits for a call: the call is cancelled, its clean-up waited for, at most
`INTERRUPT_GRACE_S`, and the interrupt raised; the loop goes on. A forked child has no loop: the episode is
its parent's.
"""

import asyncio
import atexit
import contextlib
import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from sniffio import current_async_library_cvar

from grue.errors import MCPError, TurnCancelled
from grue.runtime.host_code import single
from grue.runtime.reentry import refuse_reentry
from grue.runtime.sync_edge import (
    INTERRUPT_GRACE_S,
    Interruptible,
    InterruptWatch,
    WorkInterrupted,
    begin_thread,
    counted_interrupts,
    run_loop,
    unmasked_interrupt,
    wait_for,
)

T = TypeVar("T")

Held: TypeAlias = Callable[[TaskGroup], contextlib.AbstractAsyncContextManager[Any]]
"""Makes what is open for as long as the loop runs, given the group that its tasks live in."""

CLOSE_GRACE_S = 1.5
"""What the end of the loop leaves to its clean-up; a cancelled session takes at most one second of it."""

CLOSE_WITHIN_S = 10.0
"""How long it waits after that, when all processes are killed."""


class Wording(Struct, frozen=True):
    """How a loop that is in the way, or gone, is told to those who use it.

    Attributes:
        forked: In a process that was forked off.
        waiting: Where a call would wait for its own loop.
        closed: What is asked of a loop that is closed.
        cut: A call that the loop's end cut short.
    """

    forked: str = "The episode is its parent process's: make a new runner after a fork."
    waiting: str = "A turn cannot wait for another turn of its own episode: use another runner."
    closed: str = "The episode is closed: it takes no further turn."
    cut: str = "The episode was closed before its turn was over."


class LoopThread(Struct, frozen=True):
    """Where a loop runs, and who may wait for what runs in it.

    Attributes:
        thread: Its thread.
        process: The number of its process.
        wording: What those are told who may not.
    """

    thread: threading.Thread
    process: int
    wording: Wording = Wording()

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the loop's own thread."""
        return threading.current_thread() is self.thread

    @property
    def is_forked_off(self) -> bool:
        """Whether the caller is in another process, where the loop does not run."""
        return self.process != os.getpid()

    def refuse_strangers(self) -> None:
        """Refuse to be used by a process that was forked off.

        Raises:
            MCPError: It was.
        """
        if self.is_forked_off:
            raise MCPError(self.wording.forked)

    def refuse_waiting(self) -> None:
        """Refuse to wait where it would never end, or only by a time limit.

        Raises:
            MCPError: The caller is a call of this loop, or a function that one runs in a thread; or this
                process was forked off, and has no such loop; or a signal handler calls that has interrupted
                grue or an import.
        """
        self.refuse_strangers()
        refuse_reentry()
        if self.is_here or _calling_in.get() is self.thread:
            raise MCPError(self.wording.waiting)


_calling_in: "contextvars.ContextVar[threading.Thread | None]" = contextvars.ContextVar(
    "calling_in", default=None
)
"""The thread of the loop whose call this code is part of; a worker thread inherits it."""


class Call(Future[T]):
    """A call that is under way in the loop. `interrupt` cancels it; its result then is an interrupt.

    Attributes:
        home: The loop.
        ended: When it was over, on the monotonic clock; `None` until it is done.
    """

    def __init__(self, home: LoopThread) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # only the loop may settle it
        self.home = home
        self.ended: float | None = None
        self._work = Interruptible()
        self._watch = InterruptWatch()

    def set_result(self, result: T) -> None:
        """Settle it; known to be over as soon as anybody can see that it is."""
        self.ended = time.monotonic()
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Settle it, likewise."""
        self.ended = time.monotonic()
        super().set_exception(exception)

    def interrupt(self) -> None:
        """Cancel the call, from any thread, and return at once; it ends when it has cleaned up."""
        self._work.interrupt()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, or the time has passed, and say whether it is. Nothing else ends it.

        Raises:
            KeyboardInterrupt: Ctrl-C; the call goes on.
            MCPError: It would be waited for in vain; see `LoopThread.refuse_waiting`.
        """
        if not self.done() and timeout_s != 0:
            self.home.refuse_waiting()
            with counted_interrupts(), unmasked_interrupt():
                wait_for(self, timeout_s, watch=self._watch)
        return self.done()

    def wait(self, force_kill: Callable[[], object] = lambda: None) -> T:
        """Return the result when it is there. Whatever cuts the waiting short cancels the call.

        Its clean-up is waited for then.

        Args:
            force_kill: Called at the second Ctrl-C; makes the clean-up under way end at once.

        Raises:
            KeyboardInterrupt: Ctrl-C. The third one is not waited for.
            MCPError: It would be waited for in vain; see `LoopThread.refuse_waiting`.
            BaseException: What a signal handler raised meanwhile.
        """
        if not self.done():
            self.home.refuse_waiting()
        with counted_interrupts():
            try:
                self.join()
            except BaseException:
                self._give_up(force_kill)
                raise
            return self.result()

    def _give_up(self, force_kill: Callable[[], object]) -> None:
        try:
            give_up([self])
        except KeyboardInterrupt:
            force_kill()
            give_up([self])

    async def run(self, function: Callable[[], Awaitable[T]]) -> None:
        """Run `function` in the loop, and keep what comes of it."""
        _calling_in.set(self.home.thread)  # for this call's task alone
        try:
            result = await self._work.run(function)
        except anyio.get_cancelled_exc_class():
            self.fail(None)  # and nothing else is left to do here, so that it may be kept
        except BaseException as error:  # noqa: BLE001 - it is for whoever waits for the call
            self.set_exception(error)
        else:
            self.set_result(result)

    def fail(self, cause: BaseException | None) -> None:
        """Say that the loop ended before the call did."""
        error = TurnCancelled(self.home.wording.cut)
        error.__cause__ = cause
        self.set_exception(error)


class EpisodeLoop:
    """An event loop in a thread of its own. Safe to use from several threads.

    Args:
        hold: Entered when the loop begins, left when it ends.
        on_exit: Called in the loop's thread when the loop is gone, however it went; plain and quick.
        force_kill: Called where the loop takes long to end; kills what it waits for. Waits for nothing.
        wording: What is said where it cannot be used; by default, of an episode.

    Raises:
        Exception: What `hold` raised: the loop could not be begun.
        MCPError: A signal handler calls that has interrupted grue or an import.
        KeyboardInterrupt: Ctrl-C; the loop then ends by itself.
    """

    def __init__(
        self,
        hold: Held,
        *,
        on_exit: Callable[[], object],
        force_kill: Callable[[], object] = lambda: None,
        wording: Wording | None = None,
    ) -> None:
        refuse_reentry()
        self._hold = hold
        self._last_word = on_exit
        self._hurry = force_kill
        self._lock = threading.RLock()  # the garbage collector may come in while this thread holds it
        self._calls: set[Call[Any]] = set()
        self._asks: deque[tuple[contextvars.Context, Call[Any], Callable[[], Awaitable[Any]]]] = deque()
        self._work = Interruptible()
        self._ending = False
        self._failure: BaseException | None = None
        self._begun: Future[None] = Future()
        self._gone: Future[None] = Future()
        thread = threading.Thread(target=self._run, name="grue-episode", daemon=True)
        self.home = LoopThread(thread, os.getpid(), wording or Wording())
        # Moved to the end: what was registered last is called first, before all processes are killed.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        watch = InterruptWatch()
        try:
            with unmasked_interrupt():
                begin_thread(thread)
                wait_for(self._begun, watch=watch)
        except BaseException:
            self.end()
            raise
        self._begun.result()

    @property
    def is_over(self) -> bool:
        """Whether it takes no further call: it is closed, or has failed."""
        return self._ending

    def submit(self, function: Callable[[], Awaitable[T]]) -> Call[T]:
        """Have `function` run in the loop, in a copy of the caller's context, and return at once.

        Raises:
            MCPError: The loop is closed, or belongs to another process.
        """
        self.home.refuse_strangers()
        call: Call[T] = Call(self.home)
        context = contextvars.copy_context()
        context.run(current_async_library_cvar.set, "asyncio")  # whatever the caller's is
        with self._lock:
            if self._ending:
                raise MCPError(self.home.wording.closed) from self._failure
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            self._asks.append((context, call, function))
            self._loop.call_soon_threadsafe(self._asked.set)
        return call

    def end(self) -> None:
        """Cancel what still runs, and return at once; its clean-up goes on, and then the loop is gone."""
        if not self.home.is_forked_off:
            with self._lock:
                self._ending = True
            self._work.interrupt()

    def close(self) -> None:
        """Cancel what still runs, wait for its clean-up, and end. A second call does nothing.

        Called in the loop's own thread, it does not wait. A Ctrl-C makes the clean-up end at once.
        """
        if self.home.is_forked_off or self.home.is_here:
            self.end()
            return
        with counted_interrupts():
            self.end()
            try:
                wait_for(self._gone, CLOSE_GRACE_S)
            finally:
                if not self._gone.done():
                    self._hurry()
                    wait_for(self._gone, CLOSE_WITHIN_S)
        # Only now: interrupted, it would take the thread for dead (seen in CPython 3.11).
        if self._gone.done():
            self.home.thread.join()

    def _run(self) -> None:
        try:
            run_loop(lambda: self._work.run(self._serve))
        except WorkInterrupted:
            pass  # it was asked to end
        except BaseException as error:  # noqa: BLE001 - told to whoever began it, or wants something of it
            self._failure = single(error)
        finally:
            try:
                self._last_word()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Tell everybody who waits for this loop, or would, that it is gone."""
        with self._lock:
            self._ending = True
            calls = list(self._calls)
        for call in calls:
            call.fail(self._failure)
        if not self._begun.done():
            self._begun.set_exception(self._failure or KeyboardInterrupt())
        _alive.discard(self)
        self._gone.set_result(None)

    async def _serve(self) -> None:
        _alive.add(self)
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        async with anyio.create_task_group() as group, self._hold(group):
            self._begun.set_result(None)
            try:
                while True:
                    await self._asked.wait()
                    self._asked.clear()
                    self._start_asked(group)
            finally:
                self._ending = True  # what is asked by now is failed by `_run`
                # What was being left in its own time, before the end, has no more of it now.
                self._loop.call_later(CLOSE_GRACE_S, self._hurry)

    def _start_asked(self, group: TaskGroup) -> None:
        # By itself, so that the loop holds nothing of the last call while it waits for the next one.
        while self._asks:
            context, call, function = self._asks.popleft()
            context.run(group.start_soon, call.run, function)


_alive: set[EpisodeLoop] = set()
"""The loops of this process and, in a forked child, of its parent."""


def _close_all() -> None:
    loops = list(_alive)
    # The interpreter is exiting: a Ctrl-C hurries that, and there is nothing else left to interrupt.
    with contextlib.suppress(KeyboardInterrupt), counted_interrupts():
        for loop in loops:
            loop.end()
        for loop in loops:
            with contextlib.suppress(KeyboardInterrupt):
                loop.close()


def give_up(calls: Sequence[Call[Any]]) -> None:
    """Cancel calls and wait for their clean-up, at most `INTERRUPT_GRACE_S`.

    Those of the caller's own loop are only cancelled; those of another process are left alone.

    Raises:
        KeyboardInterrupt: Ctrl-C once more.
    """
    ours = [call for call in calls if not call.home.is_forked_off]
    for call in ours:
        call.interrupt()
    deadline = time.monotonic() + INTERRUPT_GRACE_S
    for call in ours:
        if not call.home.is_here:
            with unmasked_interrupt():
                wait_for(call, deadline - time.monotonic())
