"""`call_in_daemon_thread`: results, exceptions, context, limits, cancellation."""

import threading
from contextvars import ContextVar

import anyio
import pytest

from grue.runtime.loops.beside_loop import call_in_daemon_thread, start_in_daemon_thread

pytestmark = pytest.mark.anyio
WORD: ContextVar[str] = ContextVar("WORD", default="")


async def test_a_call_returns_and_raises_and_sees_the_context() -> None:
    WORD.set("here")
    assert await call_in_daemon_thread(lambda: (WORD.get(), threading.current_thread().daemon)) == (
        "here",
        True,
    )
    with pytest.raises(ZeroDivisionError):
        await call_in_daemon_thread(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await call_in_daemon_thread(lambda: next(iter(())))


async def test_a_limiter_bounds_the_calls_that_run_at_once() -> None:
    limiter = anyio.CapacityLimiter(1)
    at_once: list[float] = []

    async def one() -> None:
        await call_in_daemon_thread(lambda: at_once.append(limiter.borrowed_tokens), limiter=limiter)

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(one)
    assert at_once == [1] * 5


async def test_cancellation_ends_the_wait_and_gives_the_place_back() -> None:
    limiter, started, release, ended = (
        anyio.CapacityLimiter(1),
        anyio.Event(),
        threading.Event(),
        anyio.Event(),
    )
    token = anyio.lowlevel.current_token()

    def block() -> None:
        anyio.from_thread.run_sync(started.set, token=token)
        release.wait(60)
        anyio.from_thread.run_sync(ended.set, token=token)

    async with anyio.create_task_group() as group:

        async def call() -> None:
            await call_in_daemon_thread(block, limiter=limiter)

        group.start_soon(call)
        await started.wait()
        group.cancel_scope.cancel()
    assert limiter.borrowed_tokens == 0
    release.set()
    await ended.wait()


def test_a_call_that_outlives_its_loop_ends_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()

    async def abandon() -> None:
        with anyio.move_on_after(0.01):
            await call_in_daemon_thread(lambda: release.wait(60))

    before = set(threading.enumerate())
    anyio.run(abandon)
    left = set(threading.enumerate()) - before
    release.set()
    for thread in left:
        thread.join(60)
    assert "Traceback" not in capfd.readouterr().err


async def test_a_caller_without_an_event_loop_waits_for_a_future() -> None:
    WORD.set("here")
    done = start_in_daemon_thread(lambda: (WORD.get(), threading.current_thread().daemon))
    assert done.result(60) == ("here", True)
    with pytest.raises(ZeroDivisionError):
        start_in_daemon_thread(lambda: 1 // 0).result(60)
