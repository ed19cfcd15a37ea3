"""Sessions outside turns: the pages of a listing, what is recorded of a request, and what ends with them."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from scripted_server import ScriptedConnection, ScriptedServer

from grue.engine.outside_turns.server_sessions import ServerSessions
from grue.errors import MCPError, MCPRequestError, MCPServerStartupError, ToolServerDied, TraceError
from grue.messages import (
    CallTools,
    CloseSession,
    JsonObject,
    Message,
    OpenSession,
    ServerName,
    ServerRequested,
    SessionClosed,
    ToolCalled,
    ToolCallResult,
    ToolReturned,
)
from grue.policies import TurnLimits
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.fake_tools import FakeToolServer
from grue.tool_sessions.connection import ConnectionStatus
from grue.tool_sessions.failures import ToolRefusedError

pytestmark = [pytest.mark.anyio, pytest.mark.virtual_time]

A = ServerName("a")
Answer = Callable[[str, JsonObject], JsonObject]


class AnsweringConnection(ScriptedConnection):
    """A connection that takes requests, and answers them as the test says."""

    def __init__(self, server: ScriptedServer, answer: Answer) -> None:
        super().__init__(server, "ok")
        self._answer = answer

    async def request(self, method: str, params: JsonObject, timeout_s: float) -> JsonObject:
        del timeout_s
        self._server.log.append(f"{method} {params.get('cursor', '')}".strip())
        return self._answer(method, params)


class Bench:
    """A server that answers requests; the test plays the host."""

    def __init__(self, answer: Answer) -> None:
        self.server = ScriptedServer()
        self.recorded: list[Any] = []
        recorder = Recorder()
        recorder.add(lambda envelope, _: self.recorded.append(envelope.body))
        self.sessions = ServerSessions(
            servers={A: lambda _: AnsweringConnection(self.server, answer)},
            recorder=recorder,
            limits=TurnLimits(server_startup_timeout_s=5.0),
        )

    async def all_pages(self) -> tuple[JsonObject, ...]:
        return await self.sessions.run(
            lambda sessions: sessions.request_all("a", "prompts/list", {"extra": 1}, 5.0)
        )

    @property
    def requested(self) -> list[ServerRequested]:
        return [body for body in self.recorded if isinstance(body, ServerRequested)]


async def test_all_pages_are_read_in_one_session_with_the_other_parameters() -> None:
    pages: dict[object, JsonObject] = {
        None: {"prompts": [{"name": "one"}, "no object"], "nextCursor": "2"},
        "2": {"prompts": [{"name": "two"}]},
    }
    bench = Bench(lambda _method, params: pages[params.get("cursor")] if params["extra"] == 1 else {})
    assert await bench.all_pages() == ({"name": "one"}, {"name": "two"})
    assert bench.server.log == ["enter", "open", "prompts/list", "prompts/list 2", "leave"]


@pytest.mark.parametrize(
    ("page", "items"),
    [
        ({"prompts": [{}], "nextCursor": "same"}, 1),
        ({"prompts": [{}, {}], "nextCursor": ""}, 2),
        ({"prompts": "none", "nextCursor": [7]}, 0),
        ({}, 0),
    ],
)
async def test_odd_pages_end_the_listing(page: JsonObject, items: int) -> None:
    assert len(await Bench(lambda _method, _params: page).all_pages()) == items


async def test_a_listing_without_an_end_is_ended() -> None:
    def page(_method: str, params: JsonObject) -> JsonObject:
        return {"prompts": [{}], "nextCursor": f"{params.get('cursor', '')}x"}

    assert len(await Bench(page).all_pages()) == 100


async def test_each_request_is_recorded_with_its_error() -> None:
    def answer(method: str, _params: JsonObject) -> JsonObject:
        if method == "prompts/get":
            raise ToolRefusedError("no such prompt", code=-32602)
        return {}

    bench = Bench(answer)

    async def use(sessions: ServerSessions) -> None:
        await sessions.request("a", "ping", {}, 5.0)
        with pytest.raises(MCPRequestError, match="refused prompts/get: no such prompt") as refused:
            await sessions.request("a", "prompts/get", {"name": "x"}, 5.0)
        assert refused.value.code == -32602

    await bench.sessions.run(use)
    assert [(body.method, bool(body.error)) for body in bench.requested] == [
        ("ping", False),
        ("prompts/get", True),
    ]


@pytest.mark.parametrize(
    "method", ["tools/call", "initialize", "subscriptions/listen", "resources/subscribe"]
)
async def test_what_cannot_be_sent_as_a_request_is_refused_before_a_server_starts(method: str) -> None:
    bench = Bench(lambda _method, _params: {})
    with pytest.raises(MCPError, match=method):
        await bench.sessions.run(lambda sessions: sessions.request("a", method, {}, 5.0))
    assert bench.server.log == []


async def test_a_cancelled_call_closes_its_session() -> None:
    bench = Bench(lambda _method, _params: {})
    bench.server.tools["look"] = "hang"
    with anyio.move_on_after(10) as scope:

        async def use(sessions: ServerSessions) -> None:
            await sessions.call("a.look", {}, 60.0)

        async with anyio.create_task_group() as group:
            group.start_soon(bench.sessions.run, use)
            with anyio.fail_after(60):
                while "call look" not in bench.server.log:  # noqa: ASYNC110 - the server has no event for it
                    await anyio.sleep(0.001)
            group.cancel_scope.cancel()
    assert not scope.cancelled_caught
    assert bench.server.log[-1] == "leave"


@pytest.mark.parametrize("error", [TraceError("No space left"), SystemExit("No space left")])
@pytest.mark.parametrize("refused", [CloseSession, SessionClosed])
async def test_sessions_whose_close_cannot_be_recorded_are_closed_and_raise_one_flat_error(
    error: BaseException, refused: type[Message]
) -> None:
    bench = Bench(lambda _method, _params: {})

    def refuse(envelope: Envelope[Any], _: bytes) -> None:
        if isinstance(envelope.body, refused):
            raise error

    bench.sessions.recorder.add(refuse)
    with pytest.raises(type(error), match="No space left"):
        await bench.sessions.run(lambda sessions: sessions.tools())
    assert bench.server.log[-1] == "leave"


class Cave:
    """Sessions with a fake server, and what they record."""

    def __init__(self, max_reconnects: int | None = 0) -> None:
        self.server = FakeToolServer("a")
        self.recorded: list[Envelope[Any]] = []
        recorder = Recorder()
        recorder.add(lambda envelope, _: self.recorded.append(envelope))
        self.sessions = ServerSessions(
            servers={A: self.server},
            recorder=recorder,
            limits=TurnLimits(server_startup_timeout_s=5.0),
            max_reconnects=max_reconnects,
        )

    def times(self, kind: type) -> int:
        return sum(isinstance(envelope.body, kind) for envelope in self.recorded)

    async def dig(self, *, turn: int = 0) -> object:
        return (await self.sessions.call("a.dig", {}, 5.0, turn=turn)).content

    async def dies(self) -> None:
        self.server.dies("dig")
        with pytest.raises(ToolServerDied):
            await self.dig()


async def test_a_call_to_a_server_that_has_died_is_not_sent() -> None:
    cave = Cave()
    await cave.dies()
    with pytest.raises(ToolServerDied, match=r"the server ended during tools/call"):
        await cave.dig()
    assert (cave.times(OpenSession), cave.times(ToolCalled)) == (1, 1)
    await cave.sessions.close()


@pytest.mark.parametrize(("most", "sessions"), [(1, 2), (None, 3)])
async def test_a_server_that_has_died_is_connected_again_as_often_as_the_limit_says(
    most: int | None, sessions: int
) -> None:
    cave = Cave(most)
    await cave.dies()
    cave.server.answers("dig", "a hole")
    assert await cave.dig() == "a hole"
    await cave.dies()
    cave.server.answers("dig", "a hole")
    if most is None:
        assert await cave.dig() == "a hole"
    else:
        with pytest.raises(ToolServerDied):
            await cave.dig()
    assert cave.times(OpenSession) == sessions
    await cave.sessions.close()


async def test_calls_at_the_same_time_count_one_reconnect_of_the_server_that_has_died() -> None:
    cave = Cave(2)
    for _ in range(2):
        await cave.dies()
        cave.server.answers("dig", "a hole")
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(cave.dig)
    assert cave.times(OpenSession) == 3
    await cave.sessions.close()


async def test_a_call_that_waited_for_the_one_during_which_the_server_died_has_the_next_session() -> None:
    cave = Cave(1)
    cave.server.dies("dig")
    cave.server.answers("dig", "a hole")
    await cave.sessions.connect([A])
    results: list[object] = []

    async def dig() -> None:
        try:
            results.append(await cave.dig())
        except ToolServerDied:
            results.append("died")

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(dig)
    assert results == ["died", "a hole", "a hole"]
    assert (cave.times(OpenSession), cave.times(ToolCalled)) == (2, 3)
    await cave.sessions.close()


class Asked(FakeToolServer):
    """A server that also takes requests."""

    async def request(self, method: str, params: JsonObject, timeout_s: float) -> JsonObject:
        return {"method": method}


async def test_a_request_that_waited_for_such_a_call_has_the_next_session_too() -> None:
    cave = Cave(1)
    cave.server = Asked("a")
    cave.sessions.servers = {A: cave.server}
    cave.server.dies("dig")
    await cave.sessions.connect([A])
    async with anyio.create_task_group() as group:
        group.start_soon(cave.dies)
        await anyio.lowlevel.checkpoint()
        assert await cave.sessions.request("a", "ping", {}, 5.0) == {"method": "ping"}
    assert cave.times(OpenSession) == 2
    await cave.sessions.close()


class Collapsing(FakeToolServer):
    """A server whose process is gone for a minute before a call learns of it."""

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        if not self.calls:
            self.status = ConnectionStatus(alive=False)
            await anyio.sleep(60)
            self.status = ConnectionStatus()
        return await super().call(tool, arguments, timeout_s)


async def test_a_call_during_which_the_server_died_is_not_said_to_be_cancelled() -> None:
    cave = Cave(1)
    cave.server = Collapsing("a")
    cave.sessions.servers = {A: cave.server}
    async with anyio.create_task_group() as group:
        group.start_soon(cave.dies)
        await anyio.sleep(1)
        cave.server.answers("dig", "a hole")
        assert await cave.dig() == "a hole"
    await cave.sessions.close()


@pytest.mark.parametrize(("most", "sessions"), [(1, 1), (None, 2)])
async def test_tools_are_those_of_a_new_session_if_any_number_is_allowed(
    most: int | None, sessions: int
) -> None:
    cave = Cave(most)
    await cave.dies()
    assert [tool.name for tool in await cave.sessions.tools()] == ["a.dig"]
    assert cave.times(OpenSession) == sessions
    await cave.sessions.close()


async def test_a_server_that_could_not_be_connected_again_is_left_alone() -> None:
    cave = Cave(1)
    await cave.dies()
    cave.server.fails_to_start()
    for _ in range(2):
        with pytest.raises(MCPServerStartupError, match="told to fail"):
            await cave.dig()
    assert cave.server.sessions == 2
    await cave.sessions.close()


async def test_a_call_is_recorded_in_the_turn_that_its_host_names() -> None:
    cave = Cave()
    cave.server.answers("dig", "a hole")
    await cave.dig(turn=3)
    await cave.dig()
    turns = {
        kind: [envelope.turn for envelope in cave.recorded if isinstance(envelope.body, kind)]
        for kind in (OpenSession, CallTools, ToolCalled, ToolReturned)
    }
    assert turns == {OpenSession: [0], CallTools: [3, 0], ToolCalled: [3, 0], ToolReturned: [3, 0]}
    await cave.sessions.close()


async def test_a_request_to_a_server_that_has_died_raises_a_request_error_and_is_recorded_with_it() -> None:
    cave = Cave()
    await cave.dies()
    with pytest.raises(MCPRequestError, match="the server ended during tools/call"):
        await cave.sessions.request("a", "ping", {}, 5.0)
    (note,) = (each.body for each in cave.recorded if isinstance(each.body, ServerRequested))
    assert note.error == "the server ended during tools/call"
    await cave.sessions.close()
