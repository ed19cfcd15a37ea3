"""Every kind of tool server keeps the same contract with the session actor, so that no stand-in can drift."""

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from transport_servers import QUICK
from turns import settlement

from grue.actors.mcp_session import SessionActor
from grue.config.settings import GameConfiguration
from grue.hosts.servers import think
from grue.hosts.zork.manager import MCPManager
from grue.hosts.zork.manager_connection import connect_manager
from grue.messages import (
    CallTools,
    CloseSession,
    OpenSession,
    ServerCall,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolCalled,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
)
from grue.runtime.actor import Mailbox, Supervisor
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Recorder
from grue.testing import faulty_server
from grue.testing.doubles import MockMCPManager
from grue.testing.fake_tools import FakeToolServer
from grue.testing.leftovers import assert_nothing_left
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.function_tools import FunctionTools
from grue.tool_sessions.server_specs import StdioServer
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.client_options import ClientOptions

pytestmark = pytest.mark.anyio

SERVER = "tools"
THOUGHT = {"thought": "A lamp!", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
ECHOED = {"text": "hi"}  # the faulty server's first tool is echo
COMMANDS = {
    "well": (sys.executable, "-I", "-S", think.__file__),
    "erring": faulty_server.argv("--error-at", "call"),
    "stuck": faulty_server.argv("--silent-at", "call"),
    "refusing": faulty_server.argv("--exit-at", "start", "--stderr", "told to refuse"),
}


def process(mode: str, tmp_path: Path) -> Connect:
    command, *args = COMMANDS[mode]
    server = StdioServer(name=SERVER, command=command, args=tuple(args))
    registry = ProcessRegistry()
    return lambda note: McpClient(server, registry, ClientOptions(limits=QUICK))


def functions(mode: str, tmp_path: Path) -> Connect:
    async def think(
        thought: str,
        thoughtNumber: int,  # noqa: N803 - the tool's own names
        totalThoughts: int,  # noqa: N803
        nextThoughtNeeded: bool,  # noqa: N803
    ) -> dict[str, Any]:
        if mode == "erring":
            raise RuntimeError("told to fail")
        if mode == "stuck":
            await anyio.sleep_forever()
        return {"thoughtNumber": thoughtNumber}

    tools = FunctionTools({"think": think})
    return lambda note: tools.connect(SERVER)


def mock_manager(mode: str, tmp_path: Path) -> Connect:
    manager = MockMCPManager(SERVER)
    manager.set_tool_result(f"{SERVER}.think", {"thoughtNumber": 1})
    if mode == "erring":
        manager.set_tool_error(f"{SERVER}.think", "told to fail")
    if mode == "stuck":
        manager.set_timeout(f"{SERVER}.think")
    if mode == "refusing":
        manager.connect_error = OSError("told to refuse")
    return connect_manager(manager, SERVER)


def facade(mode: str, tmp_path: Path) -> Connect:
    command, *args = COMMANDS[mode]
    servers = {"mcpServers": {SERVER: {"command": command, "args": args}}}
    (tmp_path / "mcp_config.json").write_text(json.dumps(servers))
    return connect_manager(MCPManager(GameConfiguration(project_dir=tmp_path)), SERVER)


def fake(mode: str, tmp_path: Path) -> Connect:
    server = FakeToolServer(SERVER)
    schema = {"type": "object", "properties": {"thought": {"type": "string"}}}
    server.answers("think", {"thoughtNumber": 1}, schema=schema)
    if mode == "erring":
        server.refuses("think", "told to fail")
    if mode == "stuck":
        server.times_out("think")
    if mode == "refusing":
        server.fails_to_start(99)
    return server


KINDS: dict[str, Callable[[str, Path], Connect]] = {
    "a process": process,
    "functions": functions,
    "MockMCPManager": mock_manager,
    "MCPManager": facade,
    "FakeToolServer": fake,
}


class Session(NamedTuple):
    actor: SessionActor
    inbox: Mailbox[Any]

    async def tell(self, command: Any) -> None:
        await self.actor.mailbox.send(command, sender="test")

    async def hear(self) -> Any:
        with anyio.fail_after(60):
            return await settlement(self.inbox)

    async def open(self) -> Any:
        await self.tell(OpenSession(server=SERVER, turn=1, timeout_s=50.0))
        return await self.hear()

    async def call(self, *tools: str, timeout_s: float = 50.0) -> list[Any]:
        calls = tuple(
            ServerCall(call_id=f"call_{number}", tool=tool, arguments=ECHOED if tool == "echo" else THOUGHT)
            for number, tool in enumerate(tools)
        )
        await self.tell(CallTools(server=SERVER, batch=1, calls=calls, timeout_s=timeout_s))
        return [await self.hear() for _ in calls]

    async def close(self) -> Any:
        await self.tell(CloseSession(server=SERVER))
        return await self.hear()


@asynccontextmanager
async def session(connect: Connect, recorder: Recorder | None = None) -> AsyncIterator[Session]:
    async with Supervisor(recorder or Recorder()) as supervisor:
        inbox = supervisor.mailbox("agent")
        actor = SessionActor(supervisor.mailbox(SERVER), agent=inbox, connect=connect, note=supervisor.note)
        supervisor.start(actor)
        yield Session(actor, inbox)


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Connect]:
    return lambda mode: request.param(mode, tmp_path)


async def test_it_lists_its_tools_by_canonical_names(kind: Callable[[str], Connect]) -> None:
    async with session(kind("well")) as tools:
        opened = await tools.open()
        await tools.close()
    assert isinstance(opened, SessionOpened)
    assert [tool.name for tool in opened.tools] == [f"{SERVER}.think"]
    assert [(tool.server, tool.tool) for tool in opened.tools] == [(SERVER, "think")]
    assert opened.tools[0].input_schema["type"] == "object"
    assert "thought" in opened.tools[0].input_schema["properties"]


async def test_it_answers_calls_in_their_order(
    kind: Callable[[str], Connect], request: pytest.FixtureRequest
) -> None:
    async with session(kind("well")) as tools:
        await tools.open()
        settled = await tools.call("think", "no such tool", "think")
        await tools.close()
    assert [each.call_id for each in settled] == ["call_0", "call_1", "call_2"]
    assert all(isinstance(each, ToolReturned) for each in settled)
    # The documents' mock answers for any tool.
    fails = "MockMCPManager" not in request.node.name
    assert [each.result.is_error for each in settled] == [False, fails, False]
    assert settled[0].result.content["thoughtNumber"] == 1


async def test_an_error_is_a_result_with_a_message(kind: Callable[[str], Connect]) -> None:
    async with session(kind("erring")) as tools:
        opened = await tools.open()
        (settled,) = await tools.call(opened.tools[0].tool)
        await tools.close()
    assert isinstance(settled, ToolReturned)
    assert settled.result.is_error
    assert settled.result.error_message


async def test_p24_a_timeout_settles_the_rest_as_skipped(kind: Callable[[str], Connect]) -> None:
    async with session(kind("stuck")) as tools:
        tool = (await tools.open()).tools[0].tool
        settled = await tools.call(tool, tool, tool, timeout_s=0.2)
        closed = await tools.close()
    assert [type(each) for each in settled] == [ToolTimedOut, ToolSkipped, ToolSkipped]
    assert isinstance(closed, SessionClosed)


async def test_p9_closing_leaves_nothing(kind: Callable[[str], Connect]) -> None:
    connect = kind("well")
    with assert_nothing_left():
        async with session(connect) as tools:
            await tools.open()
            closed = await tools.close()
    assert isinstance(closed, SessionClosed)


async def test_p9_a_session_cancelled_in_a_call_leaves_nothing(kind: Callable[[str], Connect]) -> None:
    connect = kind("stuck")
    recorder, calling = Recorder(), anyio.Event()
    recorder.add(lambda envelope, _: calling.set() if isinstance(envelope.body, ToolCalled) else None)

    async def call_for_ever() -> None:
        async with session(connect, recorder) as tools:
            tool = (await tools.open()).tools[0].tool
            await tools.call(tool, timeout_s=60.0)
            await anyio.sleep_forever()  # a mock's timeout takes no time

    with assert_nothing_left():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call_for_ever)
            with anyio.fail_after(60):
                await calling.wait()
            tasks.cancel_scope.cancel()


async def test_it_opens_a_second_session(kind: Callable[[str], Connect]) -> None:
    async with session(kind("well")) as tools:
        for _ in range(2):
            assert isinstance(await tools.open(), SessionOpened)
            (settled,) = await tools.call("think")
            assert not settled.result.is_error
            assert isinstance(await tools.close(), SessionClosed)


@pytest.mark.parametrize("make", [process, mock_manager, facade], ids=["process", "mock", "facade"])
async def test_a_failure_to_start_says_why(make: Callable[[str, Path], Connect], tmp_path: Path) -> None:
    async with session(make("refusing", tmp_path)) as tools:
        failed = await tools.open()
    assert isinstance(failed, StartupFailed)
    assert failed.failure.phase == "initialize"
    told = f"{failed.failure.cause}\n{failed.failure.stderr_tail}"
    assert "told to refuse" in told
