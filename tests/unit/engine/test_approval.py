"""Whether a turn may be parked, and which changed arguments a parked turn is resumed with."""

import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from plain_messages import Said

from grue.engine.approval import Parking, check_changes
from grue.errors import ChangeRefused
from grue.policies import ApprovalQuestion
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


@pytest.mark.parametrize("value", [Path("old.txt"), "\ud800", float("nan")])
def test_changed_arguments_that_json_cannot_express_are_refused(value: object) -> None:
    question = ApprovalQuestion(
        call_id="c1", name="box.delete", arguments={}, arguments_digest="a", definition_digest="d"
    )
    with pytest.raises(ChangeRefused, match="JSON cannot express them"):
        check_changes([question], [question.change({"name": value})])
