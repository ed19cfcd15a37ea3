"""One event loop for a whole episode or `ToolClient`, in a background thread, used from synchronous code.

`submit`, `interrupt` and `end` never wait for an answer of the loop's thread: the loop may be busy or about
to end, or the caller may be the loop's own thread. What each Ctrl-C does is in `interrupts.py`.

After a fork the loop's thread exists in the parent only. In the child, `submit` and a wait for an unfinished
call raise `MCPError`, because the call would never end; `end` and `close` do nothing there.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import errno
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from grue.errors import MCPError, TurnCancelled
from grue.runtime.loops import interrupts
from grue.runtime.loops.beside_loop import context_of
from grue.runtime.loops.host_code import single
from grue.runtime.loops.sync_edge import CLOSED, WAITS_FOR_ITSELF, in_shared_loop, run_loop, start_thread

T = TypeVar("T")

# Makes the context manager that is open while the loop runs, given the loop's task group.
LoopContext: TypeAlias = Callable[[TaskGroup], contextlib.AbstractAsyncContextManager[Any]]
CLOSE_GRACE_S = 1.5  # time for clean-up before `force_kill`; by default a cancelled session takes up to 1 s
CLOSE_WITHIN_S = 10.0  # how long `close` waits for the loop's end after `force_kill`


class ErrorTexts(Struct, frozen=True):
    """Error texts for a loop that cannot be used."""

    forked: str = "The episode is its parent process's: make a new runner after a fork."
    waiting: str = "A turn cannot wait for another turn of its own episode: use another runner."
    closed: str = "The episode is closed: it takes no further turn."
    ended_early: str = "The episode was closed before its turn was over."


class LoopThread(Struct, frozen=True):
    """The thread of an event loop, with methods that raise if the caller must not wait for the loop."""

    thread: threading.Thread
    process: int
    error_texts: ErrorTexts = ErrorTexts()

    @property
    def is_here(self) -> bool:
        """`True` if the caller runs in the loop's own thread."""
        return threading.current_thread() is self.thread

    @property
    def is_forked(self) -> bool:
        """`True` if this process was forked from the one that runs the loop."""
        return self.process != os.getpid()

    def refuse_forked(self) -> None:
        """Raise `MCPError` if this process was forked from the one that runs the loop."""
        if self.is_forked:
            raise MCPError(self.error_texts.forked)

    def refuse_waiting(self) -> None:
        """Raise `MCPError` if a wait for this loop could never end, for example in one of its calls."""
        self.refuse_forked()
        interrupts.refuse_reentry()
        _refuse_in_shared_loop()
        if self.is_here or _current_loop_thread.get() is self.thread:
            raise MCPError(self.error_texts.waiting)


# The thread of the loop that runs the current `Call`, also in the call's worker threads; `None`: no call.
_current_loop_thread: contextvars.ContextVar[threading.Thread | None] = contextvars.ContextVar(
    "current_loop_thread", default=None
)


def _refuse_in_shared_loop() -> None:
    if in_shared_loop():
        raise MCPError(WAITS_FOR_ITSELF.format(instead="a greenlet of its own: gevent.spawn"))


class Call(Future[T]):
    """The future of a coroutine function in the loop. `submitted_at`, `ended_at`: by `time.monotonic`."""

    def __init__(self, loop_thread: LoopThread) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # from now on `Future.cancel` has no effect
        self.loop_thread = loop_thread
        self.submitted_at = time.monotonic()
        self.ended_at: float | None = None
        self._work = interrupts.Interruptible()
        self._watch = interrupts.InterruptWatch()

    def set_result(self, result: T) -> None:
        """Set `ended_at`, then the result: threads that wait for the result read `ended_at` at once."""
        self.ended_at = time.monotonic()
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Set `ended_at`, then the exception."""
        self.ended_at = time.monotonic()
        super().set_exception(exception)

    def interrupt(self) -> None:
        """Cancel the call and return at once. Callable from any thread. The call ends after its clean-up."""
        self._work.interrupt()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait up to `timeout_s`; return whether the call is done. A Ctrl-C ends only the wait."""
        if not self.done() and timeout_s != 0:
            self.loop_thread.refuse_waiting()
            with interrupts.defer_interrupts(), interrupts.restore_interrupt():
                interrupts.wait_for(self, timeout_s, watch=self._watch)
        return self.done()

    def wait(self, force_kill: Callable[[], object] = lambda: None) -> T:
        """Wait for the result and return it. Raises what the call or `LoopThread.refuse_waiting` raises.

        If anything interrupts the wait, this method cancels the call, and waits up to `INTERRUPT_GRACE_S` for
        its clean-up, so that no server process outlives the program. The second Ctrl-C calls `force_kill`.
        """
        if not self.done():
            self.loop_thread.refuse_waiting()
        with interrupts.defer_interrupts():
            try:
                self.join()
            except BaseException:
                self._cancel(force_kill)
                raise
            return self.result()

    def _cancel(self, force_kill: Callable[[], object]) -> None:
        try:
            cancel_and_wait([self])
        except BaseException:  # noqa: BLE001 - a second press, or what another signal handler raises
            force_kill()
            cancel_and_wait([self])

    async def run(self, function: Callable[[], Awaitable[T]]) -> None:
        """Run `function` in the loop. Its result or exception becomes that of this future."""
        _current_loop_thread.set(self.loop_thread.thread)  # each call has its own context
        try:
            result = await self._work.run(function)
        except anyio.get_cancelled_exc_class():
            # The loop is ending. The cancellation need not be raised again, because the task ends here.
            self.fail(None)
        except BaseException as error:  # noqa: BLE001 - the thread that waits for the call raises it
            self.set_exception(error)
        else:
            self.set_result(result)

    def fail(self, cause: BaseException | None) -> None:
        """End the call with `TurnCancelled`, because the loop ended before the call did."""
        why = f" {cause}" if isinstance(cause, MCPError) else ""
        error = TurnCancelled(self.loop_thread.error_texts.ended_early + why)
        error.__cause__ = cause
        self.set_exception(error)


class EpisodeLoop:
    """An event loop in a background thread. Thread-safe.

    `context` is entered when the loop starts; an error in entering it is raised by the constructor. `on_exit`
    is called in the loop's thread when the loop has ended, also by an error; it must be quick. `force_kill`,
    which must not wait, kills the processes that the loop waits for, if the loop takes too long to end or a
    Ctrl-C interrupts `close`. The constructor also raises `MCPError` where `refuse_reentry` does, if the
    caller runs in the loop that all greenlets share, or if no thread or event loop can be started.
    """

    def __init__(
        self,
        context: LoopContext,
        *,
        on_exit: Callable[[], object],
        force_kill: Callable[[], object] = lambda: None,
        error_texts: ErrorTexts | None = None,
    ) -> None:
        interrupts.refuse_reentry()
        _refuse_in_shared_loop()
        self._context = context
        self._on_exit = on_exit
        self._force_kill = force_kill
        # Reentrant, because a finalizer may call `end` in a thread that holds the lock.
        self._lock = threading.RLock()
        self._calls: set[Call[Any]] = set()
        self._submitted: deque[tuple[contextvars.Context, Call[Any], Callable[[], Awaitable[Any]]]] = deque()
        self._work = interrupts.Interruptible()
        self._ending = False
        self._failure: BaseException | None = None
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()
        thread = threading.Thread(target=self._run, name="grue-episode", daemon=True)
        self.loop_thread = LoopThread(thread, os.getpid(), error_texts or ErrorTexts())
        # `atexit` runs the last hook first. Register again, so that `_close_all` closes the loops before the
        # hook of the process registry kills all processes.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        watch = interrupts.InterruptWatch()
        try:
            with interrupts.defer_interrupts(), interrupts.restore_interrupt():
                start_thread(thread)
                interrupts.wait_for(self._started, watch=watch)
        except BaseException:
            self.end()
            raise
        self._started.result()

    @property
    def is_over(self) -> bool:
        """`True` if the loop is ending, has ended or has failed. It then accepts no further call."""
        return self._ending

    def submit(self, function: Callable[[], Awaitable[T]]) -> Call[T]:
        """Start `function` in the loop, in a copy of the caller's context; raises `MCPError` if it cannot."""
        self.loop_thread.refuse_forked()
        call: Call[T] = Call(self.loop_thread)
        context = context_of("asyncio")  # the caller may run under trio, but this loop is asyncio's
        try:
            with interrupts.defer_interrupts(), self._lock:
                if self._ending:
                    raise MCPError(self.loop_thread.error_texts.closed) from self._failure
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)
                self._submitted.append((context, call, function))
                self._wake()
        except BaseException:
            call.interrupt()  # `submit` does not return the call, so nobody will wait for it
            raise
        return call

    def _wake(self) -> None:
        # Do not use `call_soon_threadsafe`: it ignores that other code has closed the loop's descriptors.
        try:
            self._waker.send(b"\0")
        except BlockingIOError:
            pass  # the loop has not read the earlier bytes yet
        except OSError as error:
            if error.errno == errno.EBADF:
                raise MCPError(CLOSED) from error
            raise

    def end(self) -> None:
        """Cancel all calls and return at once. The loop ends after their clean-up."""
        if not self.loop_thread.is_forked:
            with self._lock:
                self._ending = True
            self._work.interrupt()

    def close(self) -> None:
        """Cancel all calls, wait for their clean-up, and end the loop. Does nothing if it has ended already.

        After a Ctrl-C, or `CLOSE_GRACE_S`, it kills the server processes (`force_kill`) and waits for at most
        `CLOSE_WITHIN_S` more. In the loop's own thread, and in a forked child, it does not wait.
        """
        if self.loop_thread.is_forked or self.loop_thread.is_here:
            self.end()
            return
        with interrupts.defer_interrupts():
            self.end()
            try:
                interrupts.wait_for(self._ended, CLOSE_GRACE_S)
            finally:
                if not self._ended.done():
                    self._force_kill()
                    interrupts.wait_for(self._ended, CLOSE_WITHIN_S)
        # Call `join` only when the loop has ended: if a Ctrl-C interrupts `join`, CPython 3.11 marks the
        # thread as finished although it still runs.
        if self._ended.done():
            self.loop_thread.thread.join()

    def _run(self) -> None:
        try:
            run_loop(lambda: self._work.run(self._serve))
        except interrupts.WorkInterrupted:
            pass  # `end` has interrupted the loop's work
        except BaseException as error:  # noqa: BLE001 - raised by the constructor, or by later calls
            self._failure = single(error)
        finally:
            try:
                self._on_exit()
            finally:
                self._settle_all()

    def _settle_all(self) -> None:
        with self._lock:
            self._ending = True
            calls = list(self._calls)
        for call in calls:
            call.fail(self._failure)
        if not self._started.done():
            self._started.set_exception(self._failure or KeyboardInterrupt())
        _running_loops.discard(self)
        self._ended.set_result(None)

    async def _serve(self) -> None:
        _running_loops.add(self)
        woken, self._waker = socket.socketpair()
        woken.setblocking(False)
        self._waker.setblocking(False)
        with woken, self._waker:
            async with anyio.create_task_group() as group, self._context(group):
                self._started.set_result(None)
                try:
                    while True:
                        await anyio.wait_readable(woken)
                        woken.recv(4096)
                        self._start_submitted(group)
                finally:
                    with self._lock:  # so that no later call writes to the closed sockets
                        self._ending = True  # calls that were submitted but not started fail in `_settle_all`
                    # Servers that were told to exit may still be ending: limit their time.
                    asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._force_kill)

    def _start_submitted(self, group: TaskGroup) -> None:
        # This is a method of its own, because a variable `call` in `_serve` would keep the last call alive
        # while `_serve` waits for the next one.
        while self._submitted:
            context, call, function = self._submitted.popleft()
            context.run(group.start_soon, call.run, function)


_running_loops: set[EpisodeLoop] = set()  # a forked child inherits its parent's, which do not run there


def _close_all() -> None:
    loops = list(_running_loops)
    # At a Ctrl-C, `close` kills the processes. No caller is left that needs the `KeyboardInterrupt`.
    with contextlib.suppress(KeyboardInterrupt), interrupts.defer_interrupts():
        for loop in loops:
            loop.end()
        for loop in loops:
            with contextlib.suppress(KeyboardInterrupt):
                loop.close()


def cancel_and_wait(calls: Sequence[Call[Any]]) -> None:
    """Cancel `calls`, except a parent process's. Wait up to `INTERRUPT_GRACE_S` for their clean-up.

    Calls in the caller's own loop are not waited for.
    """
    ours = [call for call in calls if not call.loop_thread.is_forked]
    for call in ours:
        call.interrupt()
    deadline = time.monotonic() + interrupts.INTERRUPT_GRACE_S
    for call in ours:
        if not call.loop_thread.is_here:
            with interrupts.restore_interrupt():
                interrupts.wait_for(call, deadline - time.monotonic())
