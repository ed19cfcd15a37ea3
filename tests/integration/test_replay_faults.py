"""Every row of the fault matrix, recorded and replayed: what a faulty server leads to is derived again."""

from pathlib import Path

import pytest

from grue import Recorder, TraceWriter
from grue.testing import fault_turns
from grue.testing.fault_turns import Fault, drive_turn
from grue.testing.faults import FAULTS
from grue.tracing.reading import open_episode
from grue.tracing.replay import replay

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

TURNS = [
    # The trace of a long message takes seconds to replay.
    pytest.param(fault, id=fault.name, marks=pytest.mark.slow if fault.name.endswith("-mb") else ())
    for fault in FAULTS
    if fault.drive is None
]


@pytest.mark.parametrize("fault", TURNS)
def test_a_faulty_turn_replays(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, episode="fault")

    def recorder() -> Recorder:
        made = Recorder()
        made.add(writer)
        return made

    monkeypatch.setattr(fault_turns, "Recorder", recorder)
    try:
        drive_turn(fault)
    finally:
        writer.close()
    (turn,) = replay(open_episode(path))
    assert (turn.end, turn.divergence) == ("finished", None)
    derived = [e for e in open_episode(path) if e.sender == "agent" and e.receiver != "agent"]
    assert turn.compared >= len(derived) >= 2, "all that the agent said, and what its session said"
