"""An episode's loop where its begin, its calls or its end are cut into at an unlucky moment."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from grue.errors import MCPError
from grue.runtime.loops import loop_thread as episode_loop
from grue.runtime.loops.interrupts import wait_for
from grue.runtime.loops.loop_thread import EpisodeLoop

WITHIN_S = 60.0
"""What anything here may take at most; nothing takes more than a fraction."""


@contextlib.asynccontextmanager
async def nothing(_group: TaskGroup) -> AsyncIterator[None]:
    yield


def begin(hold: Any = nothing, **more: Any) -> EpisodeLoop:
    return EpisodeLoop(hold, on_exit=lambda: None, **more)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + WITHIN_S
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        next(iter(left)).join(0.1)
    assert not left, "a thread is left"
    assert not episode_loop._running_loops


def test_where_no_thread_can_be_started_nothing_is_left_to_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(MCPError, match="can't start new thread"):
            begin()
    assert not episode_loop._running_loops


def test_what_a_signal_handler_raises_while_it_begins_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else its thread would go on, and nobody would have it."""
    starting = threading.get_ident()
    waits, left = threading.Event(), threading.Event()

    def noted_wait(*args: Any, **options: Any) -> None:
        waits.set()
        wait_for(*args, **options)

    monkeypatch.setattr(episode_loop.interrupts, "wait_for", noted_wait)

    @contextlib.asynccontextmanager
    async def slow_to_open(_group: TaskGroup) -> AsyncIterator[None]:
        await anyio.to_thread.run_sync(waits.wait)
        signal.pthread_kill(starting, signal.SIGALRM)
        try:
            await anyio.sleep_forever()
            yield
        finally:
            left.set()

    def strike(*_: object) -> None:
        raise TimeoutError("the host's own alarm")

    before = signal.signal(signal.SIGALRM, strike)
    try:
        with pytest.raises(TimeoutError, match="the host's own alarm"):
            begin(slow_to_open)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert left.wait(WITHIN_S)


@pytest.fixture
def _threads_alternate() -> Iterator[None]:
    """Switch threads between almost any two instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_threads_alternate")
def test_calls_that_end_while_others_are_asked_for_do_not_keep_the_loop_from_ending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(episode_loop, "CLOSE_GRACE_S", 3 * WITHIN_S)

    async def answer() -> int:
        return 42

    for _ in range(20):
        loop, asked = begin(), threading.Event()

        def ask(loop: EpisodeLoop = loop, asked: threading.Event = asked) -> None:
            with contextlib.suppress(MCPError):  # it is closed in the middle
                for _ in range(200):
                    loop.submit(answer)
                    asked.set()

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        assert asked.wait(WITHIN_S)
        closing = threading.Thread(target=loop.close, daemon=True)
        closing.start()
        for thread in (closing, *asking):
            thread.join(WITHIN_S)
            assert not thread.is_alive(), "the loop has not heard of a call's end"


@pytest.mark.parametrize("limit_s", [float("inf"), 1e12, 1e300])
def test_a_call_can_be_waited_for_however_long(limit_s: float) -> None:
    may_end = threading.Event()

    async def answer() -> int:
        while not may_end.is_set():  # noqa: ASYNC110 - set by another thread
            await anyio.sleep(0.001)
        return 42

    with contextlib.closing(begin()) as loop:
        call = loop.submit(answer)
        assert not call.join(0)
        assert not call.join(0.001)
        may_end.set()
        assert call.join(limit_s)
        assert call.result() == 42
