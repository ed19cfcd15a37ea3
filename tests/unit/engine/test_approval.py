"""Whether a turn may be parked: what its trace lacks is known before that is decided."""

import threading

import anyio
import anyio.lowlevel
from plain_messages import Said

from grue.engine.approval import Parking
from grue.runtime.trace.recorder import Recorder


def test_a_secret_that_is_still_being_looked_for_counts() -> None:
    recorder, opened = Recorder(), threading.Event()
    recorder.hide("KEY", "made-up-secret-value")
    recorder.add(lambda *_: opened.wait(60))  # the thread that looks for secrets in long messages waits here
    parking, found = Parking(recorder), []

    async def ask() -> None:
        found.append(await parking.is_redacted(1))

    async def turn() -> None:
        recorder.record(Said("made-up-secret-value" + "x" * 200_000), sender="x", turn=1)
        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await anyio.lowlevel.checkpoint()
            opened.set()

    anyio.run(turn)
    assert found == [True]
