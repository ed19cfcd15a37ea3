"""Assert that code keeps a time limit, but only if the machine is fast and idle enough.

On a busy or slow machine, a time says nothing about the code. There, code may take up to `GUARD_S`, so only
code that waits for the wrong thing fails. For this, a test lets whatever the code must not wait for take
longer than `GUARD_S`.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio

GUARD_S = 60.0
"""Longer than anything takes that a test waits for, on a slow machine with all its tests to run at once."""

_LEAST_S = 1.0
_CALM = 0.05
_PRESSURE = (Path("/proc/pressure/cpu"), Path("/proc/pressure/io"), Path("/proc/pressure/memory"))
_LOOP_S = 0.05
"""What `_loop_s` takes at most on a machine that is fast enough to keep promises."""


@contextlib.contextmanager
def within(seconds: float, otherwise: str = "") -> Iterator[None]:
    """Assert that the block takes less than `seconds`. `otherwise` tells the error what would take longer.

    If the machine is slow, or some process waited for a processor or a disk for more than a twentieth of the
    time, the limit is `GUARD_S`.
    """
    assert seconds >= _LEAST_S, "a shorter promise needs another way to be tried: an event, a message, a call"
    began, waited_before_s = time.monotonic(), _waited_s()
    yield
    took_s = time.monotonic() - began
    if took_s >= seconds:
        waited_s = _waited_s() - waited_before_s
        calm = waited_s < _CALM * took_s and _loop_s() < _LOOP_S
        assert took_s < (seconds if calm else GUARD_S), f"{took_s:.2f} s, {waited_s:.2f} s busy; {otherwise}"


async def cancelled_when(true: Callable[[], object], work: Callable[[], Awaitable[object]]) -> None:
    """Run `work`, and cancel it as soon as `true()` is true. Fail if `work` ends before that."""

    async def cancel(scope: anyio.CancelScope) -> None:
        while not true():  # noqa: ASYNC110 - nothing tells us
            await anyio.sleep(0.005)
        scope.cancel()

    with anyio.fail_after(GUARD_S):
        async with anyio.create_task_group() as group:
            group.start_soon(cancel, group.cancel_scope)
            await work()
            raise AssertionError("it was to be cancelled, and ended by itself")


def _waited_s() -> float:
    """Return how many seconds, since the boot, some task has waited for a processor, a disk or memory."""
    waited_us = 0
    for path in _PRESSURE:
        try:
            line = path.read_text()
        except OSError:  # not Linux, or an old version of it: treat the machine as busy
            return time.monotonic()
        waited_us += int(line.partition("total=")[2].split()[0])
    return waited_us / 1e6


def _loop_s() -> float:
    """Return the seconds that a fixed loop takes now. A hypervisor or a CPU quota can slow it down."""
    began = time.monotonic()
    for _ in range(300_000):
        pass
    return time.monotonic() - began
