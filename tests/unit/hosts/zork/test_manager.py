"""The façade `MCPManager`, over real server processes."""

import asyncio
import gc
import json
import logging
import math
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from promises import GUARD_S, within
from slow_imports import SlowImports

from grue import StdioServer
from grue.config.settings import GameConfiguration
from grue.errors import MCPConfigError, MCPError, MCPServerStartupError, TraceError
from grue.hosting import Envelope
from grue.hosts.zork.manager import MCPManager
from grue.messages import SessionOpened, ToolCalled, ToolCallResult
from grue.protocol.turn.connection import Disabled, Proven, Untried
from grue.runtime.processes.descendants import live_members
from grue.testing import faulty_server
from grue.testing.leftovers import assert_nothing_left
from grue.transports.mcp.client import McpClient

pytestmark = pytest.mark.anyio

ECHO = "box.echo"
SHELL_QUOTED_SERVER = shlex.join(faulty_server.argv())


def manager(folder: Path, *flags: str, logger: logging.Logger | None = None, **entry: Any) -> MCPManager:
    command, *args = faulty_server.argv(*flags)
    servers = {"mcpServers": {"box": {"command": command, "args": args, **entry}}}
    (folder / "mcp_config.json").write_text(json.dumps(servers))
    return MCPManager(GameConfiguration(project_dir=folder, mcp_tool_call_timeout_seconds=GUARD_S), logger)


def bodies(of: MCPManager, kind: type) -> list[Any]:
    """Return a list that grows with every recorded message of a kind."""
    seen: list[Any] = []
    of.recorder.add(
        lambda envelope, _: seen.append(envelope.body) if isinstance(envelope.body, kind) else None
    )
    return seen


def heard(of: MCPManager, kind: type) -> asyncio.Event:
    """Return an event that is set when a message of a kind is recorded."""
    event = asyncio.Event()
    of.recorder.add(lambda envelope, _: event.set() if isinstance(envelope.body, kind) else None)
    return event


# --- Configuration ---


def test_r2_1_it_loads_the_configuration_when_it_is_made(tmp_path: Path) -> None:
    box = manager(tmp_path, env={"DISABLE_THOUGHT_LOGGING": "true"})
    assert (box.server_name, box.server_config.command) == ("box", sys.executable)
    assert isinstance(box.tool_server, StdioServer)
    assert box.tool_server.env == {"DISABLE_THOUGHT_LOGGING": "true"}
    assert (box.is_disabled, box.connection, box.timeout_seconds) == (False, Untried(), GUARD_S)


def test_r2_2_without_the_file_it_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(MCPConfigError, match="MCP is enabled but config file not found"):
        MCPManager(GameConfiguration(project_dir=tmp_path))


def test_r2_6_it_uses_the_first_server_and_names_the_others(tmp_path: Path) -> None:
    servers = {"mcpServers": {name: {"command": "true"} for name in ("one", "two", "three")}}
    (tmp_path / "mcp_config.json").write_text(json.dumps(servers))
    several = MCPManager(GameConfiguration(project_dir=tmp_path))
    assert (several.server_name, several.ignored_servers) == ("one", ("two", "three"))


# --- Schemas and names ---


@pytest.mark.parametrize(
    "tool",
    [
        {
            "name": "think",
            "description": "Think.",
            "inputSchema": {"type": "object", "properties": {"a": {}}},
        },
        SimpleNamespace(
            name="think", description="Think.", inputSchema={"type": "object", "properties": {"a": {}}}
        ),
        SimpleNamespace(
            name="think", description="Think.", input_schema={"type": "object", "properties": {"a": {}}}
        ),
    ],
    ids=["dict", "old SDK", "new SDK"],
)
def test_p33_a_schema_is_translated(tool: object, tmp_path: Path) -> None:
    assert manager(tmp_path)._translate_schema(tool, server_name="box") == {
        "type": "function",
        "function": {
            "name": "box.think",
            "description": "Think.",
            "parameters": {"type": "object", "properties": {"a": {}}},
        },
    }


def test_p35_a_name_is_split_at_its_first_dot(tmp_path: Path) -> None:
    split = manager(tmp_path)._parse_tool_name

    @given(st.text().filter(lambda text: "." not in text), st.text())
    def is_split(server: str, tool: str) -> None:
        assert split(f"{server}.{tool}") == (server, tool)

    is_split()
    with pytest.raises(ValueError, match=r"Invalid tool name format: think\. Expected format: {server_name}"):
        split("think")


# --- Sessions ---


async def test_p9_a_session_from_connect_to_disconnect_in_three_tasks(tmp_path: Path) -> None:
    box = manager(tmp_path)
    with assert_nothing_left():
        await asyncio.create_task(box.connect_session())
        schemas = await asyncio.create_task(box.get_tool_schemas())
        result = await asyncio.create_task(box.call_tool(ECHO, {"text": "hello"}))
        await asyncio.create_task(box.disconnect_session())
    assert [schema["function"]["name"] for schema in schemas] == [ECHO, "box.fail", "box.environ"]
    assert (result.content, result.is_error) == ("hello", False)
    assert box.connection == Proven()


async def test_importing_the_sdk_does_not_count_against_the_start_up_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowImports(monkeypatch)
    box = manager(tmp_path, startup_timeout_seconds=60)
    await box.connect_session()
    await box.disconnect_session()
    assert slow.deadlines == [math.inf]


async def test_p7_the_environment_is_the_systems_and_the_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {"FROM_OUTSIDE": "out", "OPENAI_API_KEY": "out", "FROM_CONFIG": "in", "FROM_BOTH": "in"}
    for name in ("FROM_OUTSIDE", "OPENAI_API_KEY", "FROM_BOTH"):
        monkeypatch.setenv(name, "out")
    box = manager(tmp_path, env={"FROM_CONFIG": "in", "FROM_BOTH": "in"})
    await box.connect_session()
    found = {name: (await box.call_tool("box.environ", {"name": name})).content for name in expected}
    await box.disconnect_session()
    assert found == expected


async def test_every_failure_but_a_timeout_is_a_result(tmp_path: Path) -> None:
    box = manager(tmp_path)
    before = await box.call_tool(ECHO, {"text": "x"})
    await box.connect_session()
    results = [
        await box.call_tool("box.fail", {}),
        await box.call_tool("echo", {}),
        await box.call_tool("box.nothing", {}),
        await box.call_tool("elsewhere.echo", {}),
        await box.call_tool(ECHO, ["no", "object"]),  # type: ignore[arg-type]  # what is tested
    ]
    await box.disconnect_session()
    messages = [result.error_message or "" for result in (before, *results)]
    for message, expected in zip(
        messages,
        [
            "Tool call failed: no session",
            "told to fail",
            "Invalid tool name format: echo. Expected format: {server_name}.{tool_name}",
            "Unknown MCP tool: box.nothing. Available tools: box.echo",
            "Unknown MCP tool: elsewhere.echo",
            "Tool call failed: the arguments must be a JSON object, not list",
        ],
        strict=True,
    ):
        assert message.startswith(expected)
    assert all(result.is_error for result in (before, *results))


async def test_p25_a_timeout_raises_and_the_session_goes_on(tmp_path: Path) -> None:
    box = manager(tmp_path, "--slow-call", "0.3")
    await box.connect_session()
    with pytest.raises(TimeoutError, match=r"Tool call timed out after 0\.1s"):
        await box.call_tool(ECHO, {"text": "late"}, timeout_seconds=0.1)
    assert (await box.call_tool(ECHO, {"text": "in time"})).to_dict() == {"content": "in time"}
    await box.disconnect_session()


async def test_calls_made_at_once_are_served_one_by_one(tmp_path: Path) -> None:
    record = tmp_path / "record"
    box = manager(tmp_path, "--record", str(record))
    await box.connect_session()
    texts = ["a", "b", "c"]
    results = await asyncio.gather(*(box.call_tool(ECHO, {"text": text}) for text in texts))
    await box.disconnect_session()
    assert [result.content for result in results] == texts
    calls = [json.loads(line) for line in record.read_text().splitlines()]
    assert [call["params"]["arguments"]["text"] for call in calls if call["method"] == "tools/call"] == texts


async def test_a_cancelled_caller_takes_back_its_own_call_only(tmp_path: Path) -> None:
    record = tmp_path / "record"
    box = manager(tmp_path, "--slow-call", "0.3", "--record", str(record))
    called = heard(box, ToolCalled)
    await box.connect_session()
    caller = asyncio.create_task(box.call_tool(ECHO, {"text": "cancelled"}))
    waiting = asyncio.create_task(box.call_tool(ECHO, {"text": "waited"}))
    await asyncio.wait_for(called.wait(), GUARD_S)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (await waiting).to_dict() == {"content": "waited"}
    await box.disconnect_session()
    methods = [json.loads(line)["method"] for line in record.read_text().splitlines()]
    assert methods.count("notifications/cancelled") == 1


async def test_disconnecting_ends_a_call_that_is_under_way(tmp_path: Path) -> None:
    box = manager(tmp_path, "--silent-at", "call")
    called = heard(box, ToolCalled)
    await box.connect_session()
    call = asyncio.create_task(box.call_tool(ECHO, {"text": "x"}, timeout_seconds=60))
    await asyncio.wait_for(called.wait(), GUARD_S)
    with assert_nothing_left(), within(5, "the time limit of the call or of the start"):
        await box.disconnect_session()
    assert (await call).is_error


async def test_a_dead_server_gives_error_results(tmp_path: Path) -> None:
    box = manager(tmp_path, "--exit-at", "call", "--exit-status", "7")
    await box.connect_session()
    first, second = await box.call_tool(ECHO, {"text": "x"}), await box.call_tool(ECHO, {"text": "x"})
    await box.disconnect_session()
    assert "exit status 7" in (first.error_message or "")
    assert second.is_error


async def test_a_crashed_owner_gives_error_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def crash(*args: object) -> None:
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr(McpClient, "call_with_blocks", crash)
    box = manager(tmp_path)
    with assert_nothing_left():
        await box.connect_session()
        with within(5, "the time limit of the call or of the start"):
            results = [await box.call_tool(ECHO, {"text": "x"}), await box.call_tool(ECHO, {"text": "x"})]
        await box.disconnect_session()
    assert "nobody foresaw this" in (results[0].error_message or "")
    assert results[1].is_error


async def test_a_session_that_cannot_be_recorded_raises_the_trace_error(tmp_path: Path) -> None:
    fails_at: type = ToolCalled

    def fail(envelope: Envelope[Any], line: bytes) -> None:
        if isinstance(envelope.body, fails_at):
            raise TraceError("no space left on device")

    box = manager(tmp_path)
    box.recorder.add(fail)
    with assert_nothing_left():
        await box.connect_session()
        for _ in range(2):
            with pytest.raises(TraceError, match="no space left"):
                await box.call_tool(ECHO, {"text": "x"})
        with pytest.raises(TraceError, match="no space left"):
            await box.get_tool_schemas()
        await box.disconnect_session()
        fails_at = SessionOpened
        with pytest.raises(TraceError, match="no space left"):
            await box.connect_session()


async def test_a_crash_while_connecting_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def crash(*args: object) -> None:
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr(McpClient, "open", crash)
    box = manager(tmp_path)
    with assert_nothing_left(), pytest.raises(MCPError, match="nobody foresaw this"):
        await box.connect_session()
    assert not box.is_disabled


async def test_disconnecting_ends_a_connect_that_is_under_way(tmp_path: Path) -> None:
    box = manager(tmp_path, "--silent-at", "initialize")
    with assert_nothing_left():
        connecting = asyncio.create_task(box.connect_session())
        await asyncio.sleep(0)
        with within(5, "the time limit of the call or of the start"):
            await box.disconnect_session()
        with pytest.raises(MCPError, match="ended"):
            await connecting


async def test_a_second_connect_is_refused_and_harmless(tmp_path: Path) -> None:
    box = manager(tmp_path)
    await box.disconnect_session()
    await box.connect_session()
    with pytest.raises(MCPError, match="is open already"):
        await box.connect_session()
    assert not (await box.call_tool(ECHO, {"text": "x"})).is_error
    await box.disconnect_session()
    await box.disconnect_session()
    with pytest.raises(MCPError, match="no session"):
        await box.get_tool_schemas()


# --- Failing to connect ---


def counted(folder: Path, fails: str) -> MCPManager:
    """Return a manager whose server counts its starts and fails when the shell's condition `fails` holds."""
    script = f"echo >> {folder}/starts; if {fails}; then exit 3; fi; exec {SHELL_QUOTED_SERVER}"
    servers = {"mcpServers": {"box": {"command": "sh", "args": ["-c", script]}}}
    (folder / "mcp_config.json").write_text(json.dumps(servers))
    return MCPManager(GameConfiguration(project_dir=folder))


def starts(folder: Path) -> int:
    return len((folder / "starts").read_text().splitlines())


async def test_r6_1_the_first_connect_has_one_try(tmp_path: Path) -> None:
    box = counted(tmp_path, "true")
    with pytest.raises(MCPServerStartupError, match="Failed to start MCP server 'box'") as raised:
        await box.connect_session()
    assert (raised.value.server, raised.value.exit_status, starts(tmp_path)) == ("box", 3, 1)
    assert not box.is_disabled
    await box.disconnect_session()


async def test_p27_a_later_connect_is_retried_once_and_then_given_up(tmp_path: Path) -> None:
    box = counted(tmp_path, f"test -e {tmp_path}/broken")
    await box.connect_session()
    await box.disconnect_session()
    (tmp_path / "broken").touch()
    for _ in range(2):
        with pytest.raises(MCPServerStartupError, match="disabled for the rest of the episode"):
            await box.connect_session()
        assert starts(tmp_path) == 3
    assert isinstance(box.connection, Disabled)
    assert box.is_disabled


async def test_p26_a_retry_that_succeeds_leaves_the_next_turn_its_own(tmp_path: Path) -> None:
    box = counted(tmp_path, f"test -e {tmp_path}/broken && rm {tmp_path}/broken")
    for turn in range(3):
        if turn:
            (tmp_path / "broken").touch()
        await box.connect_session()
        await box.disconnect_session()
    assert (starts(tmp_path), box.connection) == (5, Proven())


async def test_a_cancelled_connect_leaves_nothing(tmp_path: Path) -> None:
    box = manager(tmp_path, "--silent-at", "initialize")
    with within(5, "well before the start-up limit"), assert_nothing_left():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.connect_session(), 0.3)
        await box.disconnect_session()
    assert box.connection == Untried()


# --- Being lost ---


def test_p9_a_loop_that_ends_without_a_disconnect_leaves_nothing(tmp_path: Path) -> None:
    box = manager(tmp_path)
    opened = bodies(box, SessionOpened)
    with assert_nothing_left():
        asyncio.run(box.connect_session())
    assert not live_members(opened[0].pid)

    async def again() -> ToolCallResult:
        late = await box.call_tool(ECHO, {"text": "x"})
        await box.connect_session()
        await box.disconnect_session()
        return late

    assert asyncio.run(again()).is_error


LOST = """
import asyncio, gc, sys
from pathlib import Path
from grue.config.settings import GameConfiguration
from grue.hosts.zork.manager import MCPManager

box = MCPManager(GameConfiguration(project_dir=Path(sys.argv[1])))
box.recorder.add(lambda envelope, _: print(getattr(envelope.body, "pid", None) or "", flush=True))
loop = asyncio.new_event_loop()
loop.run_until_complete(box.connect_session())
"""


@pytest.mark.slow
def test_p9_an_interpreter_that_ends_without_anything_leaves_nothing(tmp_path: Path) -> None:
    manager(tmp_path, "--ignore-eof", "--ignore-term")
    ended = subprocess.run(
        [sys.executable, "-c", LOST, str(tmp_path)], capture_output=True, text=True, timeout=150, check=True
    )
    pid = int(ended.stdout.split()[0])
    assert not live_members(pid)


async def test_p9_a_manager_that_is_lost_leaves_nothing(tmp_path: Path) -> None:
    box: MCPManager | None = manager(tmp_path, "--ignore-eof", "--ignore-term")
    opened = bodies(box, SessionOpened)
    await box.connect_session()
    box = None
    gc.collect()
    assert not live_members(opened[0].pid)
    (owner,) = (task for task in asyncio.all_tasks() if task.get_name() == "grue-mcp-box")
    owner.cancel()
    await asyncio.wait({owner})


# --- The logger ---


async def test_p37_a_malformed_tool_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    box = manager(tmp_path, "--malformed-tool", logger=logging.getLogger("test_manager"))
    await box.connect_session()
    assert len(await box.get_tool_schemas()) == 3
    await box.disconnect_session()
    records: list[Any] = [record for record in caplog.records if record.name == "test_manager"]
    assert [record.event_type for record in records] == ["mcp_bad_tool"] * 3


async def test_the_logger_gets_the_required_records_without_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("test_manager")
    box = manager(tmp_path, logger=logger, env={"BOX_TOKEN": "a-very-secret-token"})
    with caplog.at_level(logging.INFO, logger.name):
        await box.connect_session()
        await box.call_tool(ECHO, {"text": "a-very-secret-token"})
        await box.call_tool("box.fail", {})
        await box.disconnect_session()
    records: list[Any] = [record for record in caplog.records if record.name == "test_manager"]
    assert [record.event_type for record in records] == [
        "mcp_tool_call",
        "mcp_tool_result",
        "mcp_tool_call",
        "mcp_tool_result",
        "mcp_tool_error",
    ]
    assert (records[0].tool_name, records[0].server_name) == (ECHO, "box")
    assert "a-very-secret-token" not in repr([record.__dict__ for record in records])
