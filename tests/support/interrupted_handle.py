"""A program that is interrupted while it waits for a turn's handle, and then waits again for the handle.

    python interrupted_handle.py BASE_URL LIFETIME WHERE, which is plain | loop

It prints `waiting` when it waits in `TurnHandle.result` and the test may send SIGINT. Then it prints whether
the turn goes on, and the answer.
"""

import asyncio
import contextlib
import sys
import threading
import time
from types import FrameType
from typing import Any

from grue import LlmSettings, Runner, TurnHandle, TurnRequest


def say(text: object) -> None:
    print(text, flush=True)


def say_when_waiting(thread: int) -> None:
    """Print `waiting` as soon as the thread waits in `TurnHandle.result`."""
    while not _waits(sys._current_frames()[thread]):
        time.sleep(0.001)
    say("waiting")


def _waits(frame: FrameType | None) -> bool:
    lock = frame is not None and frame.f_code.co_filename == threading.__file__
    while frame is not None and frame.f_code is not TurnHandle.result.__code__:
        frame = frame.f_back
    return lock and frame is not None


def interrupted(handle: TurnHandle[Any]) -> None:
    watch = threading.Thread(target=say_when_waiting, args=(threading.get_ident(),))
    watch.start()
    try:
        handle.result()
    except KeyboardInterrupt:
        say("over" if handle.done() else "goes on")
    watch.join()


async def interrupted_in_a_loop(handle: TurnHandle[Any]) -> None:
    interrupted(handle)


def main(base_url: str, keep: str, where: str) -> None:
    settings = LlmSettings(base_url=base_url, model="m")
    with Runner(llm=settings, keep=keep) as runner:  # type: ignore[arg-type]  # the test's to choose
        handle = runner.start_turn(TurnRequest[str](system="s", user="u"))
        if where == "loop":
            # asyncio has noticed the Ctrl-C, too, and raises KeyboardInterrupt again when `run` ends.
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(interrupted_in_a_loop(handle))
        else:
            interrupted(handle)
        say(handle.result().response)


if __name__ == "__main__":
    main(*sys.argv[1:])
