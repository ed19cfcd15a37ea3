"""The virtual clock: what passes, what it refuses to wait for, and that it orders events as the real one."""

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from plain_messages import Said

from grue import FunctionTools, Runner, TurnLimits, TurnRequest
from grue.runtime.large_data import LONG
from grue.runtime.loops.beside_loop import aside
from grue.testing.actor_harness import Deadlock, TraceWatch, run_in_virtual_time, virtual_loop, virtual_time
from grue.testing.offline import offline_endpoint, reply_in_chat


def test_an_hour_passes_at_once() -> None:
    async def wait_an_hour() -> float:
        await anyio.sleep(3600)
        return anyio.current_time()

    begun = time.monotonic()
    assert run_in_virtual_time(wait_an_hour) == 3600
    assert time.monotonic() - begun < 60


@virtual_time
async def test_limits_and_deadlines_see_the_virtual_clock() -> None:
    with pytest.raises(TimeoutError):
        with anyio.fail_after(100):
            await anyio.sleep(101)
    assert anyio.current_time() == 100
    with anyio.CancelScope(deadline=150.5) as scope:
        await anyio.sleep_forever()
    assert (scope.cancelled_caught, anyio.current_time()) == (True, 150.5)


@virtual_time
async def test_no_time_passes_while_a_task_can_run() -> None:
    done = False

    async def work() -> None:
        nonlocal done
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
        done = True

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await anyio.sleep(0.001)
        assert done
    await virtual_loop().idle()
    assert anyio.current_time() == 0.001


@virtual_time
async def test_two_who_wait_for_idleness_both_go_on() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(virtual_loop().idle)
        group.start_soon(virtual_loop().idle)


def test_a_deadlock_says_where_each_task_waits() -> None:
    async def wait_for_nobody() -> None:
        await anyio.Event().wait()

    async def both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for_nobody, name="the lost one")
            await anyio.sleep(10)

    with pytest.raises(Deadlock, match="nothing can wake them") as caught:
        run_in_virtual_time(both)
    assert "the lost one: test_a_deadlock_says_where_each_task_waits" in str(caught.value)
    assert "wait_for_nobody (test_actor_harness_virtual_time.py:" in str(caught.value)


@pytest.mark.parametrize("in_thread", [aside, anyio.to_thread.run_sync], ids=["aside", "to_thread"])
def test_time_stands_still_while_a_thread_works(in_thread: Callable[..., object]) -> None:
    """A limit of a microsecond is longer than any work in a thread."""

    async def main() -> float:
        thread_may_end = threading.Event()
        with anyio.fail_after(1e-6):
            timer = threading.Timer(0.05, thread_may_end.set)
            timer.start()
            await in_thread(thread_may_end.wait)  # type: ignore[misc]  # both are coroutine functions
        timer.join()
        return anyio.current_time()

    assert run_in_virtual_time(main) == 0.0


def test_time_goes_on_after_work_in_an_executor() -> None:
    """An executor keeps its threads when they have nothing to do."""

    async def main() -> float:
        for _ in range(2):
            with anyio.fail_after(1e-6):
                await asyncio.to_thread(time.sleep, 0.05)
            await anyio.sleep(3600)
        return anyio.current_time()

    assert run_in_virtual_time(main) == 7200.0


class Eager(ThreadPoolExecutor):
    """Starts a thread too many, as the executor does if a thread says too late that it has nothing to do."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        call = super().submit(*args, **kwargs)
        self._adjust_thread_count()  # type: ignore[attr-defined]
        return call


def test_time_goes_on_if_an_executor_has_a_thread_that_never_worked() -> None:
    async def main() -> float:
        with Eager(2) as executor:
            await asyncio.get_running_loop().run_in_executor(executor, time.sleep, 0.05)
            await anyio.sleep(3600)
        return anyio.current_time()

    assert run_in_virtual_time(main) == 3600.0


def test_time_goes_on_after_a_long_message() -> None:
    """The recorder searches a long message for secrets in a thread."""

    async def main() -> list[float]:
        watch = TraceWatch(clock=anyio.current_time)
        for _ in range(2):
            watch.recorder.record(Said("x" * LONG), sender="x")
            await anyio.sleep(3600)
        return [each.t for each in watch.envelopes]

    assert run_in_virtual_time(main) == [0.0, 3600.0]


def test_time_goes_on_while_a_trace_file_is_open(tmp_path: Path) -> None:
    async def main() -> float:
        with Runner(llm=offline_endpoint(reply_in_chat), trace=tmp_path / "trace.jsonl") as runner:
            await runner.run_turn_async(TurnRequest(system="s", user="hello"))
            await anyio.sleep(3600)
        return anyio.current_time()

    assert run_in_virtual_time(main) == 3600.0


def test_time_stands_still_while_an_executor_does_cancelled_work() -> None:
    async def main() -> float:
        ended = threading.Event()
        with anyio.move_on_after(0):
            await asyncio.to_thread(lambda: (time.sleep(0.05), ended.set()))
        await anyio.sleep(1)
        assert ended.is_set()
        return anyio.current_time()

    assert run_in_virtual_time(main) == 1.0


async def start_a_program() -> None:
    await anyio.run_process(["true"])


async def listen() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        await anyio.wait_readable(listening)


@pytest.mark.parametrize("wait", [start_a_program, listen])
def test_it_refuses_to_wait_for_what_takes_real_time(wait: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(RuntimeError, match=r"cannot wait for a process, a pipe or a socket.*Use a fake"):
        run_in_virtual_time(wait)


def test_only_a_virtual_loop_has_what_needs_one() -> None:
    async def ask() -> None:
        virtual_loop()

    with pytest.raises(RuntimeError, match="@virtual_time"):
        anyio.run(ask)


@virtual_time
async def test_fixtures_and_arguments_reach_a_decorated_test(tmp_path: object) -> None:
    assert tmp_path is not None
    assert isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop)


def test_the_same_program_gives_the_same_order_as_in_real_time() -> None:
    """The fake clock is held to the real one: sleeps, limits and cancellations come in the same order."""

    async def program() -> list[str]:
        seen: list[str] = []

        async def after(delay_s: float, name: str) -> None:
            try:
                await anyio.sleep(delay_s)
                seen.append(name)
            except anyio.get_cancelled_exc_class():
                seen.append(f"{name} cancelled")
                raise

        with anyio.move_on_after(0.2):
            async with anyio.create_task_group() as group:
                for delay_s, name in ((0.1, "b"), (0.05, "a"), (60, "d"), (0.0, "first")):
                    group.start_soon(after, delay_s, name)
        seen.append("end")
        return seen

    assert run_in_virtual_time(program) == anyio.run(program) == ["first", "a", "b", "d cancelled", "end"]


def test_a_whole_turn_takes_no_time_and_records_the_same_times_each_run() -> None:
    async def sleep() -> None:
        await anyio.sleep(3600)

    async def turn() -> tuple[float, list[tuple[float, str]]]:
        watch = TraceWatch(clock=anyio.current_time)
        runner = Runner(
            llm=offline_endpoint(reply_in_chat),
            servers={"mine": FunctionTools({"sleep": sleep})},
            limits=TurnLimits(tool_call_timeout_s=30),
            recorder=watch.recorder,
        )
        outcome = await runner.run_turn_async(TurnRequest(system="s", user="call mine.sleep"))
        assert outcome.tool_calls[0].settlement == "timed_out"
        return outcome.duration_s, [(each.t, type(each.body).__name__) for each in watch.envelopes]

    duration_s, times = run_in_virtual_time(turn)
    assert duration_s == 30
    assert {name: t for t, name in times}["ToolTimedOut"] == 30
    assert run_in_virtual_time(turn) == (duration_s, times)


@virtual_time
async def test_a_task_that_sleeps_for_ever_can_be_cancelled_and_is_a_deadlock_alone() -> None:
    with anyio.move_on_after(5) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert anyio.current_time() == 5
    with pytest.raises(Deadlock, match="nothing can wake them"):
        await anyio.to_thread.run_sync(run_in_virtual_time, anyio.sleep_forever)
