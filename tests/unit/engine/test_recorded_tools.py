"""What a fork keeps of the turn that it goes on from."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

from grue.engine.recorded_tools import TurnRecord
from grue.runtime.trace.recorder import Envelope, Recorder


class Said:
    """A message of which a record needs nothing."""


def test_messages_that_a_fork_does_not_need_are_not_kept_for_it() -> None:
    bodies: list[weakref.ref[Said]] = []

    def recorded() -> Iterator[Envelope[Any]]:
        body = Said()
        bodies.append(weakref.ref(body))
        yield Recorder().record(body, sender="agent")

    record = TurnRecord(tuple(recorded()), 0, {})
    gc.collect()
    assert [body() for body in bodies] == [None]
    assert record.settled == {}
