"""A spare, a server's next process started between two turns: which turn uses it, and when it ends."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from lifetimes import ECHO, ONCE, QUICK, STUBBORN, Episode, episode, living, settlements
from transport_servers import faulty

from grue.errors import TurnTimedOut
from grue.messages import (
    OpenSession,
    ServerEnded,
    SessionOpened,
    SessionPrewarmed,
    ToolCalled,
    ToolReturned,
)
from grue.runtime.processes.descendants import live_members
from grue.runtime.trace.recorder import Envelope

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")


@pytest.mark.parametrize("flags", [(), STUBBORN, (*STUBBORN, "--grandchild")])
def test_p9_the_older_process_is_gone_before_a_turns_first_call(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    """By the trace's order, and by the process table at the moment of the call."""
    alive_at_call: list[list[int]] = []
    used: list[int] = []

    def look(envelope: Envelope[Any], line: bytes) -> None:
        match envelope.body:
            case SessionOpened(pid=int(pid)):
                used.append(pid)
            case ToolCalled():
                alive_at_call.append([pid for pid in used[:-1] if live_members(pid)])

    servers = {"faulty": faulty(*flags)}
    with episode("ahead", tmp_path, *ONCE * 3, servers=servers, process_limits=QUICK) as played:
        played.runner.recorder.add(look)
        for _ in range(3):
            assert settlements(played.turn()) == ["returned"]
    assert alive_at_call == [[], [], []]
    bodies = [(type(item.body), getattr(item.body, "pid", None)) for item in played.envelopes]
    calls = [place for place, (kind, _) in enumerate(bodies) if kind is ToolCalled]
    for older, call in zip(played.pids, calls[1:], strict=False):
        assert bodies.index((ServerEnded, older)) < call
    expected = "killed" if flags else "polite"
    assert {body.ending for body in played.said(ServerEnded)} == {expected}


@pytest.mark.slow
def test_a_spare_is_used_in_its_turn_only_and_by_one(tmp_path: Path) -> None:
    log = tmp_path / "log-{pid}"
    with episode("ahead", tmp_path, *ONCE * 3, servers={"faulty": faulty("--record", str(log))}) as played:
        for turn in range(3):
            played.turn()
            if turn < 2:
                wait_for_spares(played, turn + 1)
    assert played.pids[1:] == [body.pid for body in played.said(SessionPrewarmed)][:2]
    for number, pid in enumerate(played.pids, start=1):
        lines = Path(str(log).format(pid=pid)).read_text().splitlines()
        methods = [json.loads(line).get("method") for line in lines]
        assert methods.count("tools/call") == 1
        assert methods.count("initialize") == methods.count("tools/list") == 1
        turns = [item.turn for item in played.envelopes if getattr(item.body, "pid", 0) == pid]
        assert turns[-2:] == [number, 0], "opened in its turn, and ended outside any"
    order = played.said(SessionPrewarmed, OpenSession, ToolCalled)
    for place, body in enumerate(order[:-1]):
        if isinstance(body, SessionPrewarmed):
            assert isinstance(order[place + 1], OpenSession), "never used before its turn"


def wait_for_spares(played: Episode, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(played.said(SessionPrewarmed)) < count:
        assert time.monotonic() < deadline, "no spare"
        time.sleep(0.005)


def test_the_last_spare_ends_with_the_episode_unused(tmp_path: Path) -> None:
    with episode("ahead", tmp_path, *ONCE) as played:
        played.turn()
        wait_for_spares(played, 1)
        (spare,) = played.said(SessionPrewarmed)
        assert live_members(spare.pid)
    assert not live_members(spare.pid)
    assert [body.ending for body in played.said(ServerEnded) if body.pid == spare.pid] == ["polite"]


@pytest.mark.slow
def test_a_failed_turn_prepares_nothing_and_the_next_one_opens_its_own(tmp_path: Path) -> None:
    servers = {"faulty": living(tmp_path, "1", "--silent-at", "call")}
    with episode("ahead", tmp_path, ECHO, *ONCE, servers=servers, process_limits=QUICK) as played:
        with pytest.raises(TurnTimedOut):
            played.turn(turn_timeout_s=5.0)
        played.turn()
    ready = [item.turn for item in played.envelopes if isinstance(item.body, SessionPrewarmed)]
    assert len(ready) <= 1, "only after the turn that was completed"
    assert len(played.said(ToolReturned)) == 1
