"""One event loop for many calls from plain code: its begin, its end, and everything that can cut in."""

import asyncio
import atexit
import contextlib
import contextvars
import gc
import os
import socket
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from grue.errors import MCPError, TurnCancelled
from grue.runtime.loops import loop_thread as episode_loop
from grue.runtime.loops.loop_thread import Call, EpisodeLoop, cancel_and_wait

WITHIN_S = 60.0
"""What anything here may take at most; nothing takes more than a fraction."""


@contextlib.asynccontextmanager
async def nothing(_group: TaskGroup) -> AsyncIterator[None]:
    yield


def begin(hold: Any = nothing, on_exit: Callable[[], object] = lambda: None, **more: Any) -> EpisodeLoop:
    return EpisodeLoop(hold, on_exit=on_exit, **more)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + WITHIN_S
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        next(iter(left)).join(0.1)
    assert not left, "a thread is left"
    assert not episode_loop._running_loops


@pytest.fixture
def loop() -> Iterator[EpisodeLoop]:
    with contextlib.closing(begin()) as one:
        yield one


async def answer() -> int:
    await anyio.lowlevel.checkpoint()
    return 42


class Work:
    """A coroutine function that goes on until it is cancelled, and may resist that."""

    def __init__(self, *, resists: bool = False) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self.over = threading.Event()
        self.may_end = threading.Event()
        if not resists:
            self.may_end.set()

    async def __call__(self) -> None:
        self.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled.set()
            with anyio.CancelScope(shield=True):
                while not self.may_end.is_set():  # noqa: ASYNC110 - set by another thread
                    await anyio.sleep(0.001)
            self.over.set()


def test_calls_run_in_one_loop_of_one_thread_until_it_is_closed() -> None:
    async def where() -> tuple[threading.Thread, asyncio.AbstractEventLoop]:
        return threading.current_thread(), asyncio.get_running_loop()

    said: list[str] = []
    loop = begin(on_exit=lambda: said.append("last"))
    first, second = loop.submit(where).wait(), loop.submit(where).wait()
    assert first == second
    assert first[0] is not threading.current_thread()
    assert first[0].daemon
    assert not said
    loop.close()
    assert said == ["last"]
    assert first[1].is_closed()
    assert not first[0].is_alive()
    loop.close()
    assert said == ["last"], "a second close does nothing"
    with pytest.raises(MCPError, match="The episode is closed: it takes no further turn"):
        loop.submit(answer)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_last_word_that_fails_keeps_nobody_waiting() -> None:
    def fail() -> None:
        raise OSError("the pipe is broken")

    hurried: list[str] = []
    loop = begin(on_exit=fail, force_kill=lambda: hurried.append("late"))
    call = loop.submit(lambda: anyio.sleep(60))
    loop.close()
    assert not hurried
    with pytest.raises(TurnCancelled):
        call.wait()


def test_close_cancels_what_runs_and_its_waiter_is_told_by_an_error_of_ours(loop: EpisodeLoop) -> None:
    work = Work()
    call = loop.submit(work)
    assert work.begun.wait(WITHIN_S)
    closing = threading.Thread(target=loop.close)
    closing.start()
    with pytest.raises(TurnCancelled, match="The episode was closed before its turn was over"):
        call.wait()
    closing.join(WITHIN_S)
    assert work.over.is_set()


def test_close_waits_for_clean_up_and_every_close_at_once_does(loop: EpisodeLoop) -> None:
    work = Work(resists=True)
    loop.submit(work)
    assert work.begun.wait(WITHIN_S)
    over_at_return: list[bool] = []

    def close() -> None:
        loop.close()
        over_at_return.append(work.over.is_set())

    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert work.cancelled.wait(WITHIN_S)
    work.may_end.set()
    for thread in threads:
        thread.join(WITHIN_S)
    assert over_at_return == [True] * 3


def test_close_hurries_what_does_not_end_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_loop, "CLOSE_GRACE_S", 0.05)
    work = Work(resists=True)
    loop = begin(force_kill=work.may_end.set)
    loop.submit(work)
    assert work.begun.wait(WITHIN_S)
    loop.close()
    assert work.over.is_set()


def test_an_end_that_nobody_waits_for_hurries_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_loop, "CLOSE_GRACE_S", 0.05)
    work = Work(resists=True)
    loop = begin(force_kill=work.may_end.set)
    loop.submit(work)
    assert work.begun.wait(WITHIN_S)
    loop.end()
    try:
        assert work.may_end.wait(WITHIN_S), "nothing hurried it"
    finally:
        work.may_end.set()
    assert work.over.wait(WITHIN_S)


def test_a_done_callback_may_close_the_loop_from_its_own_thread() -> None:
    loop = begin()
    call = loop.submit(answer)
    closed: Future[bool] = Future()

    def close(_call: Future[int]) -> None:
        loop.close()
        closed.set_result(True)

    call.add_done_callback(close)
    assert call.wait() == 42
    assert closed.result(WITHIN_S)


def test_a_call_may_interrupt_itself_and_begin_another_one(loop: EpisodeLoop) -> None:
    calls: list[Call[Any]] = []

    async def itself() -> None:
        calls.append(loop.submit(answer))
        calls[0].interrupt()
        await anyio.sleep_forever()

    ready = threading.Event()

    async def when_ready() -> None:
        while not ready.is_set():  # noqa: ASYNC110 - set by another thread
            await anyio.sleep(0.001)
        await itself()

    calls.append(loop.submit(when_ready))
    ready.set()
    with pytest.raises(KeyboardInterrupt):
        calls[0].result(WITHIN_S)
    assert calls[1].result(WITHIN_S) == 42


def test_where_the_hold_cannot_be_entered_its_own_error_says_so() -> None:
    @contextlib.asynccontextmanager
    async def broken(_group: TaskGroup) -> AsyncIterator[None]:
        await anyio.lowlevel.checkpoint()
        if not said:
            raise LookupError("no such endpoint")
        yield

    said: list[str] = []
    with pytest.raises(LookupError, match="no such endpoint"):
        begin(broken, lambda: said.append("last"))
    assert said == ["last"]


def test_a_hold_that_fails_at_the_end_does_not_keep_the_loop() -> None:
    @contextlib.asynccontextmanager
    async def broken(_group: TaskGroup) -> AsyncIterator[None]:
        try:
            yield
        finally:
            raise LookupError("cannot be left")

    said: list[str] = []
    loop = begin(broken, lambda: said.append("last"))
    assert loop.submit(answer).wait() == 42
    loop.close()
    assert said == ["last"]


def test_a_task_of_the_hold_that_crashes_ends_the_loop_and_the_next_call_says_why() -> None:
    crash = threading.Event()

    async def crashing() -> None:
        while not crash.is_set():  # noqa: ASYNC110 - set by another thread
            await anyio.sleep(0.001)
        raise LookupError("unforeseen")

    @contextlib.asynccontextmanager
    async def hold(group: TaskGroup) -> AsyncIterator[None]:
        group.start_soon(crashing)
        yield

    gone = threading.Event()
    loop = begin(hold, gone.set)
    work = Work()
    call = loop.submit(work)
    assert work.begun.wait(WITHIN_S)
    crash.set()
    with pytest.raises(TurnCancelled, match="closed before its turn was over"):
        call.wait()
    assert gone.wait(WITHIN_S)
    loop.close()
    with pytest.raises(MCPError, match="is closed") as refused:
        loop.submit(answer)
    assert isinstance(refused.value.__cause__, LookupError)


@pytest.mark.parametrize("kind", [LookupError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_whatever_a_call_raises_comes_back_with_its_traceback(
    loop: EpisodeLoop, kind: type[BaseException]
) -> None:
    async def failing() -> None:
        await anyio.lowlevel.checkpoint()
        raise kind("of its own")

    expected = TurnCancelled if kind is asyncio.CancelledError else kind
    with pytest.raises(expected) as raised:
        loop.submit(failing).wait()
    if expected is kind:
        assert "failing" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert loop.submit(answer).wait() == 42, "the loop goes on"


def test_a_call_sees_the_callers_context_and_cannot_change_it(loop: EpisodeLoop) -> None:
    variable = contextvars.ContextVar("variable", default="none")

    async def look() -> str:
        before = variable.get()
        variable.set("the call's")
        return before

    variable.set("the caller's")
    assert loop.submit(look).wait() == "the caller's"
    assert variable.get() == "the caller's"
    assert contextvars.Context().run(lambda: loop.submit(look).wait()) == "none"


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_an_interrupt_is_a_keyboard_interrupt_unless_the_call_is_over(loop: EpisodeLoop, when: str) -> None:
    blocking = threading.Event()

    async def block() -> None:
        blocking.wait(WITHIN_S)

    if when == "before":
        loop.submit(block)
    work = Work()
    call: Call[Any] = loop.submit(answer if when == "after" else work)
    if when == "during":
        assert work.begun.wait(WITHIN_S)
    elif when == "after":
        assert call.wait() == 42
    call.interrupt()
    call.interrupt()
    blocking.set()
    if when == "after":
        assert call.wait() == 42
    else:
        with pytest.raises(KeyboardInterrupt):
            call.wait()
        assert work.over.is_set() == work.begun.is_set()
    assert loop.submit(answer).wait() == 42


def test_a_thousand_calls_of_a_busy_loop_are_all_started(loop: EpisodeLoop) -> None:
    blocking = threading.Event()

    async def block() -> None:
        blocking.wait(WITHIN_S)

    blocked = loop.submit(block)
    loop._waker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    calls = [loop.submit(answer) for _ in range(1_000)]
    with pytest.raises(BlockingIOError):
        loop._waker.send(b"\0")
    calls.append(loop.submit(answer))
    blocking.set()
    assert [call.wait() for call in calls] == [42] * 1_001
    assert blocked.wait() is None  # type: ignore[func-returns-value]


def test_a_call_of_a_loop_whose_sockets_other_code_has_closed_is_refused(loop: EpisodeLoop) -> None:
    waker = loop._waker.dup()
    loop._waker.close()
    with pytest.raises(MCPError, match="closes all descriptors"):
        loop.submit(answer)
    loop._waker = waker
    assert loop.submit(answer).wait() == 42
    loop.close()
    waker.close()


def test_a_call_cannot_be_settled_from_outside(loop: EpisodeLoop) -> None:
    work = Work()
    call = loop.submit(work)
    assert work.begun.wait(WITHIN_S)
    assert not call.cancel(), "as futures can be"
    call.interrupt()
    assert wait([call], WITHIN_S).done
    assert loop.submit(answer).wait() == 42


def test_giving_up_waits_for_clean_up_but_not_for_ever(
    loop: EpisodeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, slow = Work(), Work(resists=True)
    calls = [loop.submit(quick), loop.submit(slow)]
    assert quick.begun.wait(WITHIN_S)
    assert slow.begun.wait(WITHIN_S)
    monkeypatch.setattr(episode_loop.interrupts, "INTERRUPT_GRACE_S", 0.05)
    cancel_and_wait(calls)
    assert quick.over.is_set()
    assert slow.cancelled.is_set()
    assert not slow.over.is_set()
    slow.may_end.set()
    cancel_and_wait(calls)
    with pytest.raises(KeyboardInterrupt):
        calls[1].result(WITHIN_S)


def test_what_a_call_leaves_running_in_the_group_goes_on_after_it() -> None:
    groups: list[TaskGroup] = []

    @contextlib.asynccontextmanager
    async def hold(group: TaskGroup) -> AsyncIterator[None]:
        groups.append(group)
        yield

    work = Work()

    async def leaving() -> None:
        groups[0].start_soon(work)

    loop = begin(hold)
    loop.submit(leaving).wait()
    assert work.begun.wait(WITHIN_S)
    assert loop.submit(answer).wait() == 42
    assert not work.cancelled.is_set()
    loop.close()
    assert work.over.is_set()


@pytest.mark.slow
def test_many_threads_at_once_get_each_its_own(loop: EpisodeLoop) -> None:
    barrier = threading.Barrier(16)
    found: dict[int, list[int]] = {}

    async def same(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return number

    def target(thread: int) -> None:
        barrier.wait(WITHIN_S)
        found[thread] = [loop.submit(lambda: same(thread)).wait() for _ in range(20)]

    threads = [threading.Thread(target=target, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert found == {number: [number] * 20 for number in range(16)}


@pytest.mark.slow
def test_every_call_is_settled_however_close_and_submit_coincide() -> None:
    for _ in range(60):
        loop = begin()
        calls: list[Call[int]] = []

        def submit(loop: EpisodeLoop = loop, calls: list[Call[int]] = calls) -> None:
            with contextlib.suppress(MCPError):
                while True:
                    calls.append(loop.submit(answer))

        threads = [threading.Thread(target=submit) for _ in range(2)]
        for thread in threads:
            thread.start()
        loop.close()
        for thread in threads:
            thread.join(WITHIN_S)
        assert not wait(calls, WITHIN_S).not_done
        errors = {type(call.exception()) for call in calls}
        assert errors <= {type(None), TurnCancelled}


class Owner:
    """What loses its loop when it is lost."""

    def __init__(self, on_exit: Callable[[], object]) -> None:
        self.loop = begin(on_exit=on_exit)
        weakref.finalize(self, self.loop.end)


@pytest.mark.slow
def test_a_lost_owner_takes_the_loop_with_it_and_nobody_waits() -> None:
    gone = threading.Event()
    owner = Owner(gone.set)
    work = Work(resists=True)
    owner.loop.submit(work)
    assert work.begun.wait(WITHIN_S)
    owner.itself = owner  # type: ignore[attr-defined]
    loop = weakref.ref(owner.loop)
    del owner
    gc.collect()
    assert work.cancelled.wait(WITHIN_S)
    assert not gone.is_set()
    work.may_end.set()
    assert gone.wait(WITHIN_S)
    deadline = time.monotonic() + WITHIN_S
    while loop() is not None and time.monotonic() < deadline:
        gc.collect()
    assert loop() is None, "nothing keeps a loop that has ended"


@pytest.mark.slow
def test_there_is_no_resource_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop = begin()
        loop.submit(answer).wait()
        loop.close()
        del loop
        gc.collect()
    assert [str(each.message) for each in caught] == []


def _end_in_a_child(loop: EpisodeLoop, call: Call[None]) -> None:
    cancel_and_wait([call])
    for wait_for_it in (call.join, call.wait):
        with pytest.raises(MCPError, match="its parent process's"):
            wait_for_it()
    loop.end()
    loop.close()
    atexit._run_exitfuncs()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.slow
def test_a_forked_child_has_no_loop_and_does_nothing_to_its_parents(loop: EpisodeLoop) -> None:
    work = Work()
    call = loop.submit(work)
    assert work.begun.wait(WITHIN_S)
    told, to_tell = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            with pytest.raises(MCPError, match="its parent process's: make a new runner after a fork"):
                loop.submit(answer)
            call.interrupt()
            with mock.patch.object(
                episode_loop.interrupts, "wait_for", side_effect=AssertionError("it waits")
            ):
                _end_in_a_child(loop, call)
            gc.collect()
            with contextlib.closing(begin()) as own:
                assert own.submit(answer).wait() == 42
            os.write(to_tell, b"well")
        except BaseException as error:  # noqa: BLE001 - whatever it is has to reach the test
            os.write(to_tell, repr(error).encode())
        finally:
            os._exit(0)
    os.close(to_tell)
    with os.fdopen(told, "rb") as said:
        assert said.read() == b"well"
    os.waitpid(pid, 0)
    assert loop.submit(answer).wait() == 42
    assert not work.cancelled.is_set()
