"""`start="beside_turn"`: the next turn's processes start while a turn waits for its model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patient_turns import ASK, wait_until
from transport_servers import STUBBORN, faulty

from grue import LlmSettings, Runner
from grue.errors import MCPConfigError
from grue.messages import (
    PrewarmLost,
    RunTurn,
    ServerEnded,
    ServerName,
    SessionClosed,
    SessionOpened,
    SessionPrewarmed,
    ToolCalled,
    TurnCompleted,
)
from grue.runtime.processes.descendants import live_members
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.recorder import Envelope
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.session_pool import SessionPool

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

QUICK = ProcessLimits(exit_grace_s=0.2, term_grace_s=0.2)


class Seen:
    """What was recorded, and the processes that were alive at each tool call."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.at_calls: list[tuple[list[int], list[int]]] = []

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        self.bodies.append(envelope.body)
        if isinstance(envelope.body, ToolCalled):
            used, spare = ([each.pid for each in self.of(kind)] for kind in (SessionOpened, SessionPrewarmed))
            own = self.servers_of_turn
            older = [pid for pid in used[:-own] if live_members(pid)]
            younger = [pid for pid in spare if pid not in used and live_members(pid)]
            self.at_calls.append((older, younger))

    servers_of_turn = 1

    def of(self, *kinds: type) -> list[Any]:
        return [body for body in self.bodies if isinstance(body, kinds)]


def answering_when(ready: Callable[[], object], *calls: str) -> Callable[[LlmRequest], LlmReply]:
    """Return a script: these calls, then `done`. It says nothing before it is `ready`."""

    def answer(request: LlmRequest) -> LlmReply:
        wait_until(ready)
        if request.messages[-1]["role"] == "tool":
            return text_reply("done")
        return tool_calls_reply(*((f"{server}.echo", {"text": "hi"}) for server in calls))

    return answer


def runner(llm: ScriptedLlmServer, seen: Seen, *flags: str, names: str = "a", **more: Any) -> Runner:
    options = {"keep": "loop", "start": "beside_turn", "process_limits": QUICK, **more}
    settings = LlmSettings(base_url=llm.base_url, model="m")
    made = Runner(llm=settings, servers={name: faulty(*flags) for name in names}, **options)
    made.recorder.add(seen)
    return made


@pytest.mark.parametrize("when", ["before", "beside"])
def test_p9_at_a_call_the_next_turns_processes_are_alive_and_no_older_ones(when: str, tmp_path: Path) -> None:
    seen = Seen()
    seen.servers_of_turn = 2

    def spares_are_ready() -> bool:
        return len(seen.of(SessionPrewarmed)) >= 2 * len(seen.of(RunTurn))

    script = answering_when(spares_are_ready, "a", "b")
    options = {"names": "ab", "start": ("beside_turn", when), "trace": tmp_path / "trace.jsonl"}
    with (
        assert_nothing_left(),
        ScriptedLlmServer(script) as llm,
        runner(llm, seen, *STUBBORN, **options) as runs,
    ):
        for _ in range(3):
            calls = runs.run_turn(ASK).tool_calls
            assert [call.settlement for call in calls] == ["returned", "returned"]
    assert [older for older, _ in seen.at_calls] == [[]] * 6
    assert [len(younger) for _, younger in seen.at_calls] == [2] * 6
    spares = [body.pid for body in seen.of(SessionPrewarmed)]
    assert {body.pid for body in seen.of(SessionOpened)[2:]} == {*spares[:4]}
    assert {body.ending for body in seen.of(SessionClosed)} == {"handed_over"}
    assert not seen.of(PrewarmLost)
    used = [body.pid for body in seen.of(SessionOpened)]
    assert {body.pid for body in seen.of(ServerEnded)} == {*spares, *used}


@pytest.mark.parametrize(("keep", "start"), [("nothing", "beside_turn"), ("loop", "after_turn")])
@pytest.mark.slow
def test_map_keeps_one_spare_a_slot_and_starts_none_for_turns_that_do_not_come(keep: str, start: str) -> None:
    seen = Seen()
    waiting: set[int] = set()
    most = 0

    def count(envelope: Envelope[Any], _line: bytes) -> None:
        nonlocal most
        match envelope.body:
            case SessionPrewarmed(pid=int(pid)):
                waiting.add(pid)
            case SessionOpened(pid=int(pid)) | ServerEnded(pid=int(pid)):
                waiting.discard(pid)
        most = max(most, len(waiting))

    script = answering_when(lambda: True, "a")
    options = {"keep": keep, "start": start}
    with assert_nothing_left(), ScriptedLlmServer(script) as llm, runner(llm, seen, **options) as runs:
        runs.recorder.add(count)
        items = list(runs.map([ASK] * 7, concurrency=2))
    assert [item.outcome.kind for item in items if item.outcome] == ["answered"] * 7
    assert 1 <= most <= 2
    assert len(seen.of(TurnCompleted)) == 7
    assert not seen.of(PrewarmLost)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The servers of the spares that were begun: those that are not ready yet are killed unrecorded."""
    begun: list[str] = []
    prepare = SessionPool.prepare

    def counted(pool: SessionPool, server: ServerName, *how: Any) -> None:
        begun.append(server)
        prepare(pool, server, *how)

    monkeypatch.setattr(SessionPool, "prepare", counted)
    return begun


@pytest.mark.parametrize("known", [True, False], ids=["a list", "a generator"])
def test_map_starts_no_process_for_turns_that_do_not_come(known: bool, prepared: list[str]) -> None:
    """The two turns that run are the last ones: a spare of either would never be used."""
    seen = Seen()
    script = answering_when(lambda: len(seen.of(SessionOpened)) == 2, "a")
    asks = [ASK] * 2
    with assert_nothing_left(), ScriptedLlmServer(script) as llm, runner(llm, seen, keep="nothing") as runs:
        items = list(runs.map(asks if known else (each for each in asks), concurrency=2))
    assert [item.outcome.kind for item in items if item.outcome] == ["answered"] * 2
    assert prepared == []
    assert {body.pid for body in seen.of(ServerEnded)} == {body.pid for body in seen.of(SessionOpened)}


@pytest.mark.slow
def test_map_starts_no_process_for_a_turn_after_the_last_though_nobody_takes_its_results(
    prepared: list[str],
) -> None:
    seen = Seen()

    def is_prepared() -> bool:
        """The second turn's process is there before the first has ended: it could start one at once."""
        return bool(seen.of(SessionPrewarmed))

    script = answering_when(is_prepared, "a")
    with assert_nothing_left(), ScriptedLlmServer(script) as llm, runner(llm, seen, keep="nothing") as runs:
        items = runs.map([ASK] * 2, concurrency=1)
        next(items)
        wait_until(lambda: len(seen.of(TurnCompleted)) == 2)
        assert len(list(items)) == 1
    assert prepared == ["a"]
    assert len(seen.of(ServerEnded)) == 2


@pytest.mark.slow
def test_map_starts_one_spare_for_the_one_turn_that_waits(prepared: list[str]) -> None:
    seen = Seen()

    def is_prepared() -> bool:
        return len(seen.of(SessionOpened)) >= 2 and bool(seen.of(SessionPrewarmed))

    script = answering_when(is_prepared, "a")
    with assert_nothing_left(), ScriptedLlmServer(script) as llm, runner(llm, seen, keep="nothing") as runs:
        items = list(runs.map([ASK] * 3, concurrency=2))
    assert [item.outcome.kind for item in items if item.outcome] == ["answered"] * 3
    assert prepared == ["a"]
    assert not seen.of(PrewarmLost)


@pytest.mark.slow
def test_a_single_turn_of_map_starts_one_process() -> None:
    seen = Seen()
    script = answering_when(lambda: True, "a")
    with assert_nothing_left(), ScriptedLlmServer(script) as llm, runner(llm, seen, keep="nothing") as runs:
        (item,) = runs.map([ASK])
        assert item.outcome is not None
    assert len(seen.of(ServerEnded)) == 1


def test_what_cannot_be_is_refused() -> None:
    settings = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    with pytest.raises(MCPConfigError, match='Write keep="sessions", or keep="loop", start="beside_turn"'):
        Runner(llm=settings, keep="sessions", start="beside_turn")
    with pytest.raises(MCPConfigError, match="write it for single servers, in their options"):
        Runner(llm=settings, keep="loop", start=("after_turn", "when_called"))
    for unknown in ("besides", True, ("beside", "after_turn"), ("after_turn",) * 2, ("after_turn",) * 3):
        with pytest.raises(MCPConfigError, match=r"or a pair such as .* not"):
            Runner(llm=settings, keep="loop", start=unknown)  # type: ignore[arg-type]  # refused
