"""The rows of a trace for tables."""

from pathlib import Path

import pytest

from grue.messages import RunTurn, TurnCompleted
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.recorder import Recorder
from grue.tracing.tables import TurnRow, trace_rows

pytestmark = pytest.mark.made_up_trace


def test_a_turn_lasts_as_long_as_it_took_also_if_the_wall_clock_was_set_back(tmp_path: Path) -> None:
    clock, wall_clock = iter((0.0, 1.0, 3.5)), iter((1000.0, 400.0))
    recorder = Recorder(clock=clock.__next__, wall_clock=wall_clock.__next__)
    with TraceWriter(tmp_path / "trace.jsonl", episode="e") as writer:
        recorder.add(writer)
        begun = recorder.record(RunTurn(turn=1, system="", user=""), sender="host", receiver="agent", turn=1)
        ended = TurnCompleted(turn=1, kind="answered", answer="x")
        recorder.record(ended, sender="agent", receiver="host", turn=1, cause=begun.seq)
    (row,) = trace_rows(tmp_path / "trace.jsonl", "e")
    assert isinstance(row, TurnRow)
    assert (row.began_at, row.duration_s) == (1000.0, 2.5)
