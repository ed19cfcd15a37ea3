"""Calls outside turns on the kept session of an episode: shared with a turn, replaced when it is lost."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace
from scripted_server import LISTED, ScriptedConnection, ScriptedServer
from turns import tool

from grue.errors import MCPError
from grue.messages import ServerName
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.connection import ConnectionStatus
from grue.tool_sessions.failures import ServerFailed
from grue.tool_sessions.session_pool import LeasedConnection, SessionPool, SharedSession

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

A = ServerName("a")


class Bench:
    """A pool that keeps its sessions; the test plays turns and calls outside them."""

    def __init__(self, *connects: str) -> None:
        self.server = ScriptedServer(*connects)
        self.made: list[ScriptedConnection] = []
        self.pool: SessionPool

    def connect(self, note: object) -> ScriptedConnection:
        self.made.append(self.server.connect(note))
        return self.made[-1]

    @asynccontextmanager
    async def episode(self) -> AsyncIterator["Bench"]:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                self.pool = SessionPool(group, Recorder(), "kept")
                yield self
                group.cancel_scope.cancel()

    def shared(self) -> SharedSession:
        return SharedSession(self.pool, A, self.connect)

    def lease(self, turn: int = 1) -> LeasedConnection:
        return self.pool.lend(A, self.connect, turn)


async def call(shared: SharedSession, name: str = "look") -> None:
    async with shared:
        await shared.open(60)
        async with shared.exclusive():
            await shared.call_with_blocks(name, {}, 1.0)


async def test_a_call_opens_the_session_and_a_turn_leases_it() -> None:
    async with Bench("ok").episode() as bench:
        await call(bench.shared())
        async with bench.lease() as leased:
            await leased.open(60)
            await leased.call("think", {}, 60)
        await call(bench.shared())
        assert bench.server.log == ["enter", "open", "call look", "call think", "call look"]


async def test_a_turn_opens_the_session_and_a_call_uses_it_meanwhile_between_batches() -> None:
    async with Bench("ok").episode() as bench, bench.lease() as leased:
        await leased.open(60)
        async with anyio.create_task_group() as group, leased.exclusive():
            group.start_soon(call, bench.shared())
            await anyio.wait_all_tasks_blocked()
            await leased.call("think", {}, 60)
            await leased.call("think", {}, 60)
        assert bench.server.log == ["enter", "open", "call think", "call think", "call look"]


async def test_a_turn_waits_for_a_call_before_it_looks_at_the_tools() -> None:
    async with Bench("ok").episode() as bench:
        shared = bench.shared()
        await shared.open(60)
        opened: list[str] = []

        async def turn() -> None:
            async with bench.lease() as leased:
                await leased.open(60)
                opened.append("turn")

        async with anyio.create_task_group() as group, shared.exclusive():
            group.start_soon(turn)
            await anyio.wait_all_tasks_blocked()
            opened.append("call")
        assert opened == ["call", "turn"]


async def test_a_session_that_has_died_is_replaced_for_calls_and_turns() -> None:
    async with Bench("ok", "ok").episode() as bench:
        await call(bench.shared())
        bench.made[0].died = True
        await call(bench.shared())
        async with bench.lease() as leased:
            await leased.open(60)
        assert len(bench.made) == 2


async def test_a_session_that_dies_in_a_turn_is_replaced_by_the_one_of_a_call() -> None:
    async with Bench("ok", "ok").episode() as bench:
        async with bench.lease() as leased:
            await leased.open(60)
            bench.made[0].died = True
            await call(bench.shared())
        async with bench.lease(turn=2) as leased:
            await leased.open(60)
            await leased.call("think", {}, 60)
        assert len(bench.made) == 2


async def test_of_two_sessions_that_were_opened_at_once_one_is_kept_and_the_other_closed() -> None:
    async with Bench("ok", "ok").episode() as bench:
        async with bench.lease() as leased:
            await call(bench.shared())
            await leased.open(60)
        await bench.pool.wait_closed()
        assert bench.server.did("leave") == ["leave"]
        await call(bench.shared())
        assert len(bench.made) == 2


class NotStartedYet(ScriptedConnection):
    """As an MCP client: it is not alive until its process has started."""

    @property
    def status(self) -> ConnectionStatus:
        return replace(super().status, alive=self.entered and super().status.alive)


async def test_calls_that_come_while_the_session_is_opened_wait_for_it() -> None:
    bench = Bench()
    made: list[ScriptedConnection] = []

    def connect(_note: object) -> ScriptedConnection:
        made.append(NotStartedYet(bench.server, "slow to enter"))
        return made[-1]

    async with bench.episode(), anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(call, SharedSession(bench.pool, A, connect))
    assert len(made) == 1
    assert bench.server.did("call") == ["call look"] * 4


async def test_a_session_that_cannot_be_opened_is_tried_again_by_the_next_call() -> None:
    async with Bench("fail", "ok").episode() as bench:
        with pytest.raises(ServerFailed):
            await call(bench.shared())
        await call(bench.shared())
        assert bench.server.did("call") == ["call look"]


async def test_each_user_learns_once_that_the_tools_have_changed() -> None:
    async with Bench("ok").episode() as bench, bench.lease() as leased:
        await leased.open(60)
        shared = bench.shared()
        await shared.open(60)
        new = (*LISTED, tool("a.jump"))
        bench.server.relisted = new
        assert await shared.refresh_tools(1.0) == new
        bench.server.relisted = None
        assert await shared.refresh_tools(1.0) is None
        assert await leased.refresh_tools(1.0) == new, "the server has announced it to the other one"
        assert await leased.refresh_tools(1.0) is None


async def test_it_hands_the_session_back_and_takes_requests_only_where_the_server_does() -> None:
    async with Bench("ok").episode() as bench:
        shared = bench.shared()
        assert shared.status.ending == "handed_over"
        await shared.open(60)
        assert shared.status.pid == 4711
        assert (await shared.call("look", {}, 60)).is_error is False
        with pytest.raises(MCPError, match="takes tool calls only"):
            await shared.request("ping", {}, 1.0)
        assert bench.server.did("leave") == []
