"""A program that is interrupted while it waits for a call in an episode's loop. It prints what still runs.

python interrupted_episode.py WHERE, which is plain | loop | bare loop | early | resisting | caught |
between | closing | exiting
"""

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
from anyio.abc import TaskGroup

from grue.runtime.loops import loop_thread
from grue.runtime.loops.interrupts import defer_interrupts
from grue.runtime.loops.loop_thread import EpisodeLoop

# These times are longer than the test waits, so the clean-up ends in time only if it is forced
# (`force_kill`).
loop_thread.interrupts.INTERRUPT_GRACE_S = loop_thread.CLOSE_GRACE_S = 1000.0

hurried = threading.Event()
started = threading.Event()


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.asynccontextmanager
async def nothing(_group: TaskGroup) -> AsyncIterator[None]:
    yield


@contextlib.asynccontextmanager
async def slow_to_leave(_group: TaskGroup) -> AsyncIterator[None]:
    try:
        yield
    finally:
        say("leaving")
        await resist()


async def work() -> None:
    say("working")
    started.set()
    try:
        await anyio.sleep(1000)
    finally:
        say("cleaned up")


async def resisting_work() -> None:
    say("working")
    try:
        await anyio.sleep(1000)
    finally:
        say("resisting")
        await resist()
        say("cleaned up")


async def resist() -> None:
    with anyio.CancelScope(shield=True):
        while not hurried.is_set():  # noqa: ASYNC110 - set by another thread
            await anyio.sleep(0.01)


def force_kill() -> None:
    hurried.set()


async def inside(loop: EpisodeLoop) -> None:
    loop.submit(work).wait()


async def interrupted_before_it_waits(loop: EpisodeLoop) -> None:
    call = loop.submit(work)
    started.wait()
    signal.raise_signal(signal.SIGINT)
    call.wait()


def main(where: str) -> None:
    hold: Any = slow_to_leave if where in ("closing", "exiting") else nothing
    loop = EpisodeLoop(hold, on_exit=lambda: say("last word"), force_kill=force_kill)
    if where == "exiting":
        return
    with contextlib.closing(loop):
        if where == "loop":
            asyncio.run(inside(loop))
        elif where == "early":
            asyncio.run(interrupted_before_it_waits(loop))
        elif where == "bare loop":
            with contextlib.closing(asyncio.new_event_loop()) as bare:
                bare.run_until_complete(inside(loop))
        elif where == "caught":
            # Defer interrupts, as the runner does: a signal between `submit` and `wait` would leave the work
            # running.
            with contextlib.suppress(KeyboardInterrupt), defer_interrupts():
                loop.submit(work).wait()
            say(f"next: {loop.submit(answer).wait()}")
        elif where == "between":
            say("working")
            # Wait in short steps: if a signal arrives right before a wait, CPython notices it only after that
            # wait.
            for _ in range(100_000):
                time.sleep(0.01)
        elif where != "closing":
            loop.submit(resisting_work if where == "resisting" else work).wait(force_kill=force_kill)


async def answer() -> int:
    return 42


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        say("KeyboardInterrupt")
        sys.exit(130)
