import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import anyio
import pytest
from promises import within

from grue.runtime.processes.process_group import ExitWatch

pytestmark = pytest.mark.anyio

Start = Callable[[str], tuple[subprocess.Popen[bytes], ExitWatch]]


@pytest.fixture(params=["descriptor", "waitid"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a shell script and a watch on it: as it is here, and as on a system without pidfds."""
    if request.param == "waitid":

        def refuse(pid: int, flags: int = 0) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    started: list[tuple[subprocess.Popen[bytes], ExitWatch]] = []

    def start(script: str) -> tuple[subprocess.Popen[bytes], ExitWatch]:
        process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE)
        started.append((process, ExitWatch(process.pid)))
        assert (started[-1][1].descriptor() is None) == (request.param == "waitid")
        return started[-1]

    yield start
    for process, watch in started:
        watch.close()
        process.kill()
        process.communicate()


async def test_an_exit_is_seen_and_not_reaped(start: Start) -> None:
    process, watch = start("read _; exit 3")
    assert not watch.exited_within(0)
    assert process.stdin
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.wait)
        process.stdin.close()
    assert watch.exited_within(0)
    assert process.wait() == 3  # would be lost, had the watch reaped it


async def test_waiting_can_be_cancelled(start: Start) -> None:
    _, watch = start("read _")
    threads = {*threading.enumerate()}
    with anyio.move_on_after(0.05) as scope:
        await watch.wait()
    assert scope.cancelled_caught
    assert {*threading.enumerate()} <= threads, "another test's thread may end meanwhile"


def test_blocking_wait_keeps_its_limit(start: Start) -> None:
    process, watch = start("read _")
    before = time.monotonic()
    with within(1):
        assert not watch.exited_within(0.05)
    assert time.monotonic() - before > 0.04
    assert process.stdin
    process.stdin.close()
    assert watch.exited_within(60)


async def test_an_exit_before_the_watch_counts(start: Start) -> None:
    process, first = start("exit 0")
    assert first.exited_within(60)
    late = ExitWatch(process.pid)
    with anyio.fail_after(60):
        await late.wait()
    late.close()
    late.close()
