"""Turns that lease sessions from a pool which prewarms beside them: any order of starts, deaths and cancels.

The time is virtual. The test plays the turns, and its servers know which turn each of their processes is for.
"""

import contextlib
import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self

import anyio
from example_counts import examples
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from scripted_server import LISTED
from turns import failure

from grue.messages import JsonObject, ServerName, ToolCallResult, ToolDefinition
from grue.runtime.trace.recorder import Recorder
from grue.testing.actor_harness import run_in_virtual_time
from grue.tool_sessions.connection import ConnectionStatus, Listing
from grue.tool_sessions.failures import ServerFailed
from grue.tool_sessions.session_pool import LeasedConnection, SessionPool, Sessions

SERVERS = ("a", "b")


class Fate(Struct, frozen=True):
    """What becomes of one process: how long it starts and ends, when it dies, whether it starts at all."""

    start_s: float
    end_s: float
    dies_after_s: float
    starts: Literal["well", "fails", "hangs"]


class TurnPlan(Struct, frozen=True):
    """One turn: its servers, what it does with them, when it is cancelled, and the pause after it."""

    servers: tuple[str, ...]
    does: tuple[str, ...]
    cut_after_s: float
    pause_s: float


starts = st.sampled_from([0.0, 0.005, 0.3, 2.0])
ends = st.sampled_from([0.01, 2.0, 5.0])
pauses = st.sampled_from([0.0, 0.0, 0.3, 9.0])
fates = st.builds(
    Fate,
    start_s=starts,
    end_s=ends,
    dies_after_s=st.sampled_from([0.02, 1.0, 1e9, 1e9, 1e9]),
    starts=st.sampled_from(["well", "well", "well", "fails", "hangs"]),
)
plans = st.builds(
    TurnPlan,
    servers=st.sampled_from([SERVERS, ("a",), ("a",), ()]),
    does=st.lists(st.sampled_from(["think", "call", "reconnect"]), max_size=5).map(tuple),
    cut_after_s=st.sampled_from([0.0, 0.01, 0.5, 1e9]),
    pause_s=pauses,
)


class Process:
    """A connection to a server's process. `turn` is the turn that uses it; 0: none yet, it is a spare."""

    def __init__(self, play: "Play", fate: Fate, turn: int) -> None:
        self.turn = turn
        self.was_spare = not turn
        self.made_in = play.turn
        self.lives = False
        self._dies_at = float("inf")
        self._play = play
        self._fate = fate

    @property
    def generation(self) -> int:
        """Number of the turn that it is for."""
        return self.turn or max(self.made_in + 1, self._play.turn)

    @property
    def status(self) -> ConnectionStatus:
        return ConnectionStatus(alive=anyio.current_time() < self._dies_at, pid=4711, ending="none")

    async def __aenter__(self) -> Self:
        self.lives = True
        self._play.processes.append(self)
        generations = {process.generation for process in self._play.processes if process.lives}
        self._play.most = max(self._play.most, len(generations))
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(self._fate.end_s)
        self.lives = False

    async def open(self, timeout_s: float) -> Listing:
        with anyio.move_on_after(timeout_s):
            await anyio.sleep(1e9 if self._fate.starts == "hangs" else self._fate.start_s)
            if self._fate.starts == "well":
                self._dies_at = anyio.current_time() + self._fate.dies_after_s
                return Listing(tools=LISTED, protocol_version="2025-11-25")
        raise ServerFailed(failure(phase="initialize"))

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        if not self.status.alive:
            raise ServerFailed(failure(phase="call"))
        self._play.at_call(self)
        await anyio.sleep(0.01)
        return ToolCallResult(tool)

    async def refresh_tools(self, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        return None


class Play:
    """Turns with a pool, one after the other, and what was seen of their processes."""

    def __init__(self, sessions: Sessions, fates: Sequence[Fate]) -> None:
        self.turn = 0
        self.most = 0
        self.calls = 0
        self.processes: list[Process] = []
        self._sessions = sessions
        self._fates = itertools.cycle(fates)

    def at_call(self, used: Process) -> None:
        """No process of an older turn is alive at a call, and the one that is called is for this turn."""
        self.calls += 1
        assert used.turn == self.turn
        assert {process.turn for process in self.processes if process.lives} <= {0, self.turn}

    async def run(self, turns: Sequence[TurnPlan]) -> None:
        async with anyio.create_task_group() as group:
            pool = SessionPool(group, Recorder(), self._sessions)
            for self.turn, plan in enumerate(turns, start=1):
                pool.begin_turn()
                with anyio.move_on_after(plan.cut_after_s):
                    await self._turn(pool, plan)
                    if self._sessions == "ahead":
                        self._prepare(pool, plan)
                await anyio.sleep(plan.pause_s)
            group.cancel_scope.cancel()

    def _connect(self, turn: int) -> Any:
        return lambda _note: Process(self, next(self._fates), turn)

    def _prepare(self, pool: SessionPool, plan: TurnPlan) -> None:
        for name in map(ServerName, plan.servers):
            if pool.lacks(name):
                pool.prepare(name, self._connect(0), 1.0)

    async def _turn(self, pool: SessionPool, plan: TurnPlan) -> None:
        async with contextlib.AsyncExitStack() as sessions:
            open_ones = [await self._open(pool, ServerName(name), sessions) for name in plan.servers]
            for deed in plan.does:
                if deed == "think" and self._sessions == "beside":
                    self._prepare(pool, plan)
                    await anyio.sleep(0.3)
                elif deed == "reconnect" and plan.servers:
                    open_ones[0] = await self._open(pool, ServerName(plan.servers[0]), sessions)
                elif deed == "call":
                    for one in open_ones:
                        await self._call(one)

    async def _open(
        self, pool: SessionPool, name: ServerName, sessions: contextlib.AsyncExitStack
    ) -> LeasedConnection | None:
        """Open a session as a session actor does: a failed attempt is followed by another one."""
        for _ in range(2):
            lent = pool.lend(name, self._connect(self.turn), self.turn)
            if lent.owned is not None:
                spare: Any = lent.owned.connection
                assert spare.made_in < self.turn, "a turn uses no session that was opened beside it"
                spare.turn = self.turn
            await sessions.enter_async_context(lent)
            with contextlib.suppress(ServerFailed):
                await lent.open(1.0)
                return lent
        return None

    async def _call(self, lent: LeasedConnection | None) -> None:
        if lent is not None:
            with contextlib.suppress(ServerFailed):
                await lent.refresh_tools(1.0)
                await lent.call("look", {}, 1.0)


def played(sessions: Sessions, turns: Sequence[TurnPlan], fates: Sequence[Fate]) -> Play:
    play = Play(sessions, fates)
    run_in_virtual_time(lambda: play.run(turns))
    return play


IDLE = TurnPlan(servers=SERVERS, does=(), cut_after_s=0.0, pause_s=0.0)
"""A turn that is cancelled at once. A spare that was prepared for it is there for a later turn."""

episodes = settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])


@given(
    st.sampled_from(["beside", "ahead"]),
    st.lists(plans, min_size=1, max_size=8),
    st.lists(fates, min_size=1, max_size=9),
)
@example(
    "ahead",
    [replace(IDLE, cut_after_s=0.5), IDLE, IDLE, replace(IDLE, pause_s=0.3)],
    [Fate(start_s=0.0, end_s=0.01, dies_after_s=0.02, starts="well")],
)
@episodes
def test_p9_older_processes_are_never_alive_at_a_call_and_three_generations_at_most(
    sessions: Sessions, turns: list[TurnPlan], fates: list[Fate]
) -> None:
    play = played(sessions, turns, fates)
    assert play.most <= 3
    assert not any(process.lives for process in play.processes), "nothing outlives the episode"


def test_the_turns_of_these_tests_do_call_and_do_find_spares() -> None:
    well = Fate(start_s=0.3, end_s=2.0, dies_after_s=1e9, starts="well")
    turn = TurnPlan(servers=SERVERS, does=("think", "call"), cut_after_s=1e9, pause_s=0.0)
    play = played("beside", [turn] * 3, [well])
    assert play.calls == 6
    assert play.most == 3
    assert sum(process.was_spare for process in play.processes) == 6
