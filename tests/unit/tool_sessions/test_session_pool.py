"""Sessions that outlive turns: prepared, lent, lost, left behind, kept; whatever happens to their owners."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from scripted_server import LISTED, ScriptedConnection, ScriptedServer
from turns import tool

from grue.messages import PrewarmLost, ServerEnded, ServerName
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions import session_pool
from grue.tool_sessions.connection import ConnectionStatus
from grue.tool_sessions.failures import ServerFailed
from grue.tool_sessions.session_pool import LeasedConnection, SessionPool, Sessions

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

A = ServerName("a")


class Bench:
    """A pool in a group; the test plays the turns."""

    def __init__(self, server: ScriptedServer, sessions: Sessions = "ahead") -> None:
        self.server = server
        self.envelopes: list[Envelope[Any]] = []
        self.pool: SessionPool
        self.made: list[ScriptedConnection] = []
        self._sessions = sessions

    def connect(self, note: object) -> ScriptedConnection:
        made = self.server.connect(note)
        self.made.append(made)
        return made

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[SessionPool]:
        recorder = Recorder()
        recorder.add(lambda envelope, _line: self.envelopes.append(envelope))
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                self.pool = SessionPool(group, recorder, self._sessions)
                yield self.pool
                group.cancel_scope.cancel()

    def prepare(self, timeout_s: float = 10.0, *, at_once: bool = True) -> None:
        self.pool.prepare(A, self.connect, timeout_s)
        if at_once:
            self.pool._waiting[A].wanted.set()

    def lend(self, turn: int = 1, deadline: float = float("inf")) -> LeasedConnection:
        self.pool.begin_turn()
        return self.pool.lend(A, self.connect, turn, deadline)

    async def turn(self, *tools: str, turn: int = 1) -> None:
        """Borrow, open, call, give back."""
        async with self.lend(turn) as lent:
            await lent.open(60)
            for name in tools:
                await lent.call(name, {}, 60)

    async def cut_turn(self, turn: int) -> None:
        """Borrow, open, have the next one prepared, and be cancelled."""
        with anyio.CancelScope() as scope:
            async with self.lend(turn) as lent:
                await lent.open(60)
                self.prepare()
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
                await anyio.sleep_forever()

    def notes(self, kind: type) -> list[Any]:
        return [item.body for item in self.envelopes if isinstance(item.body, kind)]

    @property
    def noted(self) -> list[str]:
        return [type(item.body).__name__ for item in self.envelopes]


# --- Ahead ---


async def test_what_was_prepared_serves_the_next_turn_and_is_left_behind_it() -> None:
    bench = Bench(ScriptedServer())
    async with bench.episode() as pool:
        bench.prepare()
        await anyio.wait_all_tasks_blocked()
        assert bench.server.log == ["enter", "open"]
        await bench.turn("look")
        assert bench.server.did("leave") == [], "it ends behind its turn"
        await pool.wait_closed()
    assert bench.server.log == ["enter", "open", "call look", "leave"]
    assert bench.noted == ["SessionPrewarmed", "ServerEnded"]
    assert bench.notes(ServerEnded)[0].ending == "polite"
    assert [item.turn for item in bench.envelopes] == [0, 0]


async def test_a_turn_that_finds_nothing_prepared_opens_its_own_and_nobody_calls_that_a_spare() -> None:
    bench = Bench(ScriptedServer())
    async with bench.episode() as pool:
        await bench.turn("look")
        await pool.wait_closed()
    assert bench.noted == ["ServerEnded"]


async def test_the_host_has_its_decision_first_unless_the_next_turn_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_pool, "_HOST_FIRST_S", 60.0)
    bench = Bench(ScriptedServer("ok"))
    async with bench.episode():
        bench.prepare(at_once=False)
        await anyio.wait_all_tasks_blocked()
        assert bench.server.log == []
        await bench.turn("look")
    assert bench.server.log == ["enter", "open", "call look", "leave"]


async def test_a_used_server_ends_when_the_host_has_its_decision_or_somebody_waits_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_pool, "_HOST_FIRST_S", 60.0)
    bench = Bench(ScriptedServer("ok"))
    async with bench.episode() as pool:
        bench.prepare()
        await bench.turn("look")
        await anyio.wait_all_tasks_blocked()
        assert bench.server.log == ["enter", "open", "call look"]
        before = anyio.current_time()
        await pool.wait_closed()
        assert anyio.current_time() - before < 1
    assert bench.server.log == ["enter", "open", "call look", "leave"]


async def test_preparing_twice_opens_one() -> None:
    bench = Bench(ScriptedServer("ok", "ok"))
    async with bench.episode():
        bench.prepare()
        bench.prepare()
        await anyio.wait_all_tasks_blocked()
    assert bench.server.log == ["enter", "open", "leave"]


async def test_a_turn_that_comes_early_waits_for_what_is_being_opened() -> None:
    bench = Bench(ScriptedServer("slow to enter"))
    async with bench.episode():
        bench.prepare()
        async with bench.lend() as lent:
            listing = await lent.open(60)
    assert listing.tools == LISTED
    assert len(bench.made) == 1


@pytest.mark.parametrize(
    ("way", "cause"), [("fail", "it ended"), ("fail on entering", "it ended"), ("hang", "it ended")]
)
async def test_a_spare_that_fails_is_told_and_another_one_opened(way: str, cause: str) -> None:
    bench = Bench(ScriptedServer(way, "ok"))
    async with bench.episode():
        bench.prepare(timeout_s=0.01)
        await bench.turn("look")
    assert bench.notes(PrewarmLost) == [PrewarmLost(server=A, cause=cause)]
    assert bench.server.log[-2:] == ["call look", "leave"]


async def test_a_spare_that_is_not_ready_when_the_turns_time_is_up_is_left_at_once() -> None:
    bench = Bench(ScriptedServer("hang", "ok"))
    async with bench.episode():
        bench.prepare(timeout_s=60)
        async with bench.lend(deadline=anyio.current_time() + 0.01) as lent:
            await lent.open(60)
            await lent.call("look", {}, 60)
    assert bench.notes(PrewarmLost) == [PrewarmLost(server=A, cause="it was not ready in time")]
    # Left while the other one was opened, and gone before the call.
    assert bench.server.log.index("leave") < bench.server.log.index("call look")


async def test_a_spare_that_died_while_it_waited_is_told_and_another_one_opened() -> None:
    bench = Bench(ScriptedServer("ok", "ok"))
    async with bench.episode():
        bench.prepare()
        await anyio.wait_all_tasks_blocked()
        bench.made[0].died = True
        await bench.turn("look")
    assert bench.notes(PrewarmLost) == [PrewarmLost(server=A, cause="its process has ended")]
    log = bench.server.log
    assert log.index("leave") < log.index("call look"), "what is left of it is gone before the call"
    assert len(bench.made) == 2


async def test_where_another_one_fails_too_the_turn_is_told_as_ever() -> None:
    bench = Bench(ScriptedServer("fail", "fail", "ok"))
    async with bench.episode():
        bench.prepare()
        with pytest.raises(ServerFailed):
            await bench.turn()
        await bench.turn("look")
    assert len(bench.notes(PrewarmLost)) == 1
    assert len(bench.made) == 3


async def test_each_of_two_attempts_has_the_whole_limit_but_no_time_beyond_the_turns() -> None:
    bench = Bench(ScriptedServer("fail", "ok", "ok"))
    async with bench.episode():
        bench.prepare(timeout_s=7.0)
        async with bench.lend() as lent:
            await lent.open(60)
        async with bench.lend(deadline=anyio.current_time() + 1.0) as lent:
            await lent.open(60)
            await lent.call("look", {}, 30.0)
    spare, whole, cut, call = bench.server.limits_s
    assert (spare, whole) == (7.0, 60)
    assert 0 < cut <= 1.0
    assert 0 < call <= 1.0


# --- Listings ---


async def test_what_changed_while_it_waited_is_what_the_turn_is_offered() -> None:
    bench = Bench(ScriptedServer())
    async with bench.episode():
        bench.prepare()
        await anyio.wait_all_tasks_blocked()
        bench.server.relisted = (tool("a.added"),)
        async with bench.lend() as lent:
            listing = await lent.open(60)
    assert listing.tools == (tool("a.added"),)
    assert listing.protocol_version == "2025-11-25"


async def test_a_kept_sessions_new_tools_are_the_next_turns_too() -> None:
    bench = Bench(ScriptedServer(), "kept")
    async with bench.episode():
        async with bench.lend() as lent:
            assert (await lent.open(60)).tools == LISTED
            bench.server.relisted = (tool("a.added"),)
            assert await lent.refresh_tools(1.0) == (tool("a.added"),)
            assert await lent.refresh_tools(1.0) is None
        async with bench.lend(2) as lent:
            assert (await lent.open(60)).tools == (tool("a.added"),)


# --- The end behind a turn ---


async def test_p9_the_first_call_waits_until_every_older_process_is_gone() -> None:
    bench = Bench(ScriptedServer("ok", "ok", "ok"))
    async with bench.episode():
        await bench.turn()
        await bench.turn()
        await bench.turn("look", turn=3)
        assert bench.server.log.count("leave") == 2
        assert bench.server.log[-1] == "call look"


async def test_turns_without_a_call_leave_no_more_than_one_behind_them() -> None:
    bench = Bench(ScriptedServer(*["ok"] * 5))
    async with bench.episode() as pool:
        for turn in range(1, 6):
            await bench.turn(turn=turn)
            assert bench.server.log.count("leave") >= turn - 1
            assert len(pool._leaving) <= 1


async def test_the_older_one_is_gone_before_a_batch_of_calls_is_recorded() -> None:
    bench = Bench(ScriptedServer("ok", "ok"))
    async with bench.episode():
        await bench.turn()
        async with bench.lend(2) as lent:
            await lent.open(60)
            assert not bench.server.did("leave")
            await lent.refresh_tools(1.0)
            assert bench.server.did("leave")


async def test_nothing_to_bury_is_no_wait() -> None:
    bench = Bench(ScriptedServer())
    async with bench.episode() as pool:
        await pool.wait_closed()


# --- Kept ---


async def test_a_kept_session_serves_turn_after_turn_and_ends_with_the_episode() -> None:
    bench = Bench(ScriptedServer(), "kept")
    async with bench.episode():
        for turn in (1, 2, 3):
            await bench.turn("look", turn=turn)
            await anyio.sleep(10)
    assert bench.server.log == ["enter", "open", *["call look"] * 3, "leave"]
    assert bench.noted == ["ServerEnded"]
    assert bench.notes(ServerEnded)[0].elapsed_s < 1, "how long its end took, not its life"


async def test_a_kept_session_that_broke_is_not_used_again() -> None:
    bench = Bench(ScriptedServer("ok", "ok", tools={"think": "die"}), "kept")
    async with bench.episode():
        with pytest.raises(ServerFailed):
            await bench.turn("think")
        await bench.turn("look", turn=2)
    assert len(bench.made) == 2
    assert not bench.notes(PrewarmLost)


async def test_a_kept_session_that_failed_a_call_is_left_though_its_turn_and_its_process_went_on() -> None:
    bench = Bench(ScriptedServer("ok", "ok", tools={"think": "die"}), "kept")
    async with bench.episode():
        async with bench.lend() as lent:
            await lent.open(60)
            with pytest.raises(ServerFailed):
                await lent.call("think", {}, 60)
            assert lent.status.alive
        await bench.turn("look", turn=2)
    assert len(bench.made) == 2


async def test_a_kept_session_whose_turn_was_cut_short_is_not_used_again() -> None:
    bench = Bench(ScriptedServer("ok", "ok", tools={"think": "hang"}), "kept")
    async with bench.episode(), anyio.create_task_group() as turns:
        turns.start_soon(bench.turn, "think")
        await anyio.wait_all_tasks_blocked()
        turns.cancel_scope.cancel()
    async with bench.episode():
        await bench.turn("look", turn=2)
    assert len(bench.made) == 2


async def test_a_kept_session_that_died_between_turns_is_replaced_and_told() -> None:
    bench = Bench(ScriptedServer("ok", "ok"), "kept")
    async with bench.episode():
        await bench.turn("look")
        bench.made[0].died = True
        await bench.turn("look", turn=2)
    assert bench.notes(PrewarmLost) == [PrewarmLost(server=A, cause="its process has ended")]


# --- Cancelled, or crashed ---


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "not prepared"])
async def test_a_turn_cancelled_while_it_opens_leaves_at_once_what_it_opened(prepared: bool) -> None:
    bench = Bench(ScriptedServer("hang", "ok"))
    async with bench.episode() as pool:
        if prepared:
            bench.prepare(timeout_s=60)
        async with anyio.create_task_group() as turns:
            turns.start_soon(bench.turn)
            await anyio.wait_all_tasks_blocked()
            turns.cancel_scope.cancel()
        await pool.wait_closed()  # long before its limit for opening has passed
        assert bench.server.log == ["enter", "open", "leave"]
        await bench.turn("look", turn=2)
    assert not bench.notes(PrewarmLost)


async def test_a_turn_cancelled_in_a_call_or_before_it_hands_over_what_it_used() -> None:
    bench = Bench(ScriptedServer("ok", "ok", tools={"look": "hang"}))
    async with bench.episode() as pool:
        await bench.turn()
        async with anyio.create_task_group() as turns:
            turns.start_soon(bench.turn, "look")
            await anyio.wait_all_tasks_blocked()
            turns.cancel_scope.cancel()
        await pool.wait_closed()
    assert len(bench.server.did("leave")) == 2
    assert len(bench.notes(ServerEnded)) == 2


@pytest.mark.parametrize("phase", ["entering", "opening", "waiting", "leaving"])
async def test_an_episode_that_ends_leaves_nothing_open(phase: str) -> None:
    way = {"entering": "slow to enter", "opening": "hang"}.get(phase, "ok")
    bench = Bench(ScriptedServer(way))
    async with bench.episode():
        bench.prepare()
        await anyio.wait_all_tasks_blocked()
        if phase == "leaving":
            await bench.turn()
    entered = bench.made[0].entered
    assert bench.server.did("leave") == ["leave"] * entered
    assert len(bench.notes(ServerEnded)) == (phase in ("waiting", "leaving"))


async def test_an_owner_that_crashes_while_leaving_is_told_and_ends_nothing_else() -> None:
    bench = Bench(ScriptedServer("fail on leaving", "ok"))
    async with bench.episode():
        await bench.turn("look")
        await bench.turn("look", turn=2)
    (crash,) = bench.notes(ActorFailed)
    assert (crash.actor, crash.error) == ("a", "LookupError: while leaving")
    assert len(bench.notes(ServerEnded)) == 2


async def test_an_owner_that_crashes_while_opening_ends_the_turn_that_needs_it() -> None:
    bench = Bench(ScriptedServer("bug", "bug", "ok"))
    async with bench.episode():
        bench.prepare()
        with pytest.raises(LookupError, match="while opening"):
            await bench.turn()
        await bench.turn("look", turn=2)
    assert bench.notes(PrewarmLost) == [PrewarmLost(server=A, cause="its session crashed")]
    assert len(bench.notes(ActorFailed)) == 2


async def test_what_a_turn_sees_of_a_connection_in_its_hands() -> None:
    bench = Bench(ScriptedServer())
    async with bench.episode():
        async with bench.lend() as lent:
            assert lent.status == ConnectionStatus(alive=False, ending="handed_over")
            await lent.open(60)
            assert lent.status == ConnectionStatus(pid=4711, ending="handed_over")
        assert lent.status == ConnectionStatus(alive=False, ending="handed_over")


# --- Beside ---


async def test_a_session_that_was_opened_beside_a_turn_serves_the_next_one_only() -> None:
    bench = Bench(ScriptedServer("ok", "ok", "ok"), "beside")
    async with bench.episode() as pool:
        async with bench.lend() as first:
            await first.open(60)
            bench.prepare()
            await anyio.wait_all_tasks_blocked()
            again = pool.lend(A, bench.connect, 1)
            await again.open(60)
            assert len(bench.made) == 3, "the turn that opens another one gets a new one"
            async with again:
                await again.call("look", {}, 60)
        bench.server.log.clear()
        await bench.turn("think", turn=2)
    assert len(bench.made) == 3
    assert bench.server.did("call") == ["call think"]
    assert not bench.server.did("enter")


async def test_p9_a_younger_process_is_alive_at_a_call_and_an_older_one_is_not() -> None:
    bench = Bench(ScriptedServer("ok", "ok", "ok"), "beside")
    async with bench.episode():
        async with bench.lend() as first:
            await first.open(60)
            bench.prepare()
        async with bench.lend(2) as second:
            await second.open(60)
            bench.prepare()
            assert not bench.made[0].status.exit, "it closes in the background"
            await second.call("look", {}, 60)
            assert [made.status.alive for made in bench.made] == [False, True, True]
            assert bench.made[2].entered


async def test_a_session_that_hangs_while_it_opens_does_not_keep_the_turn_beside_it() -> None:
    bench = Bench(ScriptedServer("ok", "hang", "ok"), "beside")
    async with bench.episode():
        async with bench.lend() as lent:
            await lent.open(60)
            bench.prepare(timeout_s=3600)
            await anyio.wait_all_tasks_blocked()
            begun = anyio.current_time()
            await lent.call("look", {}, 60)
        assert anyio.current_time() - begun < 60
        async with bench.lend(2, deadline=anyio.current_time() + 0.01) as lent:
            await lent.open(60)
    assert bench.notes(PrewarmLost) == [PrewarmLost(server=A, cause="it was not ready in time")]


async def test_processes_of_three_turns_are_alive_at_most_though_turns_are_cancelled() -> None:
    bench = Bench(ScriptedServer(*["slow to leave"] * 9), "beside")
    async with bench.episode():
        for turn in range(1, 8):
            await bench.cut_turn(turn)
    assert bench.server.most_open == 3
    assert len(bench.made) == 8


async def test_where_no_turn_is_expected_nothing_is_opened_for_it() -> None:
    bench = Bench(ScriptedServer(), "beside")
    async with bench.episode() as pool:
        assert pool.lacks(A)
        pool.expects_turn = lambda asked: asked is not pool
        assert not pool.lacks(A)
        assert not pool.has_spares
