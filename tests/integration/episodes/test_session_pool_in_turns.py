"""Sessions that are opened ahead, as turns find them: their limits, and the older ones on their way out."""

import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from patient_turns import wait_until
from transport_servers import STUBBORN, faulty, shell
from worded_turns import WordedModel, ask

from grue import FunctionTools, Recorder, TurnLimits
from grue.actors.agent import AgentActor
from grue.engine import turn_actors
from grue.messages import ServerEnded, SessionOpened, SessionPrewarmed, ToolCalled
from grue.runtime.processes.descendants import live_members
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.trace.recorder import Envelope
from grue.testing import faulty_server
from grue.tool_sessions.session_pool import SessionPool

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

SLOW_TO_DIE = ProcessLimits(exit_grace_s=0.25, term_grace_s=0.1)


class Watch:
    """An observer that counts, at each message of a kind, the older turns' processes that are alive."""

    def __init__(self, kind: type) -> None:
        self.alive: list[int] = []
        self.seen: list[Any] = []
        self._kind = kind

    def __call__(self, envelope: Envelope[Any], _line: bytes) -> None:
        self.seen.append(envelope.body)
        if isinstance(envelope.body, self._kind):
            self.alive.append(sum(bool(live_members(pid)) for pid in self.used[:-1]))

    @property
    def used(self) -> list[int]:
        """Processes of the sessions that turns have used."""
        return [body.pid for body in self.of(SessionOpened) if body.pid]

    def of(self, kind: type) -> list[Any]:
        return [body for body in self.seen if isinstance(body, kind)]

    @property
    def recorder(self) -> Recorder:
        recorder = Recorder()
        recorder.add(self)
        return recorder


@pytest.mark.slow
def test_p9_a_function_is_called_when_the_older_process_is_gone(model: WordedModel) -> None:
    watch, calls = Watch(ToolCalled), 3
    at_call: list[int] = []

    def look() -> int:
        at_call.append(sum(bool(live_members(pid)) for pid in watch.used[:-1]))
        return len(at_call)

    servers = {"faulty": faulty(*STUBBORN), "f": FunctionTools({"look": look})}
    options = {"servers": servers, "recorder": watch.recorder, "process_limits": SLOW_TO_DIE}
    with model.runner("ahead", **options) as runner:
        for _ in range(calls):
            (call,) = runner.run_turn(ask("call f.look")).tool_calls
            assert call.settlement == "returned"
    assert len(watch.used) == calls
    assert at_call == watch.alive == [0] * calls, "by the process table, then and when it was recorded"


@pytest.mark.slow
def test_turns_that_call_nothing_do_not_pile_up_processes(model: WordedModel) -> None:
    watch = Watch(SessionOpened)
    options = {"servers": {"faulty": faulty(*STUBBORN)}, "recorder": watch.recorder}
    with model.runner("ahead", process_limits=SLOW_TO_DIE, **options) as runner:
        for _ in range(4):
            runner.run_turn(ask())
    assert len(watch.alive) == 4
    assert max(watch.alive) <= 1, "that of the turn before"


@pytest.mark.slow
def test_a_spare_ends_as_the_runner_says_whatever_limit_the_turn_before_had(
    model: WordedModel, tmp_path: Path
) -> None:
    """The server saves something when its input ends, for which a short turn leaves it no time."""
    saved = tmp_path / "saved"
    server = shell(f"{shlex.join(faulty_server.argv())}; sleep 0.4; echo saved >> {shlex.quote(str(saved))}")
    watch = Watch(ToolCalled)
    with model.runner(
        "ahead",
        servers={"shell": server},
        recorder=watch.recorder,
        limits=TurnLimits(teardown_s=0.5),
        process_limits=ProcessLimits(exit_grace_s=15.0, term_grace_s=0.2),
    ) as runner:
        runner.run_turn(ask("call shell.echo", turn_timeout_s=60))
        wait_until(lambda: watch.of(SessionPrewarmed))
        for _ in range(2):
            runner.run_turn(ask("call shell.echo"))
        ended = watch.of(ServerEnded)
    assert [(body.pid, body.ending) for body in ended[:2]] == [(pid, "polite") for pid in watch.used[:2]]
    assert saved.read_text().splitlines()[:2] == ["saved"] * 2


@pytest.mark.slow
def test_the_time_for_closing_is_neither_the_agents_nor_a_pooled_sessions(
    model: WordedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_s: list[tuple[str, float]] = []
    lend = SessionPool.lend

    def noted_lend(pool: SessionPool, name: str, connect: Any, turn: int, deadline: float) -> Any:
        left_s.append(("session", deadline - time.monotonic()))
        return lend(pool, name, connect, turn, deadline)

    def noted_agent(*args: Any, deadline: float, **more: Any) -> AgentActor:
        left_s.append(("agent", deadline - time.monotonic()))
        return AgentActor(*args, deadline=deadline, **more)

    monkeypatch.setattr(SessionPool, "lend", noted_lend)
    monkeypatch.setattr(turn_actors, "AgentActor", noted_agent)
    limits = TurnLimits(turn_timeout_s=600.0, teardown_s=200.0)
    with model.runner("kept", servers={"faulty": faulty()}, limits=limits) as runner:
        runner.run_turn(ask("call faulty.echo"))
    assert [who for who, _ in sorted(left_s)] == ["agent", "session"]
    assert all(0 < left <= 400.0 for _, left in left_s)
