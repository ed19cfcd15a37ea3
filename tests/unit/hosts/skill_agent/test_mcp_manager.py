"""`McpManager`: names, results and failures, with servers that are fakes or real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from transport_servers import faulty

from grue import FunctionTools, MCPError, Recorder, StdioServer
from grue.errors import MCPConfigError, MCPServerStartupError, ToolCallTimedOut, ToolServerDied
from grue.hosting import Envelope, Listing
from grue.hosts.skill_agent import McpManager, McpToolInfo
from grue.hosts.skill_agent.facts import McpConnectionFailed, McpServerAbsent, McpToolShadowed
from grue.messages import OpenSession, SessionOpened, ToolCalled, ToolCallResult, ToolReturned
from grue.testing.fake_tools import FakeToolServer
from grue.testing.leftovers import assert_nothing_left


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with assert_nothing_left():
        yield


def recorded() -> tuple[Recorder, list[Envelope[Any]]]:
    recorder = Recorder()
    seen: list[Envelope[Any]] = []
    recorder.add(lambda envelope, _: seen.append(envelope))
    return recorder, seen


def fake(name: str, *tools: str) -> FakeToolServer:
    server = FakeToolServer(name)
    for tool in tools:
        server.answers(tool, f"{tool} of {name}")
    return server


def test_the_tools_of_all_servers_are_listed_and_called_by_their_bare_names() -> None:
    with McpManager() as manager:
        listed = manager.connect_all({"a": fake("a", "look"), "b": fake("b", "dig")})
        assert [(tool.server_name, tool.name) for tool in listed] == [("a", "look"), ("b", "dig")]
        assert manager.tools == listed
        result = manager.call_tool("dig", {"deep": True})
        assert (result.server_name, result.tool_name, result.is_error) == ("b", "dig", False)
        assert result.raw_text == "dig of b"
        assert manager.call_tool("a.look").raw_text == "look of a"


def test_the_tools_of_a_server_have_its_name_their_description_and_their_schema() -> None:
    schema = {"type": "object", "properties": {"deep": {"type": "boolean"}}, "required": ["deep"]}
    server = FakeToolServer("b")
    server.answers("dig", "earth", description="Dig a hole.", schema=schema)
    with McpManager() as manager:
        (look, dig) = manager.connect_all({"a": fake("a", "look"), "b": server})
        assert manager.tools == [look, dig]
    assert (look.server_name, look.name, look.description) == ("a", "look", "")
    assert dig == McpToolInfo("b", "dig", "Dig a hole.", schema)
    real = faulty()
    with McpManager() as manager:
        tools = {tool.name: tool for tool in manager.connect_all({"real": real})}
    assert tools["echo"].server_name == "real"
    assert tools["echo"].description
    assert "text" in tools["echo"].input_schema["properties"]


def test_of_two_tools_with_one_name_the_later_server_has_it_and_a_warning_names_both() -> None:
    recorder, seen = recorded()
    with McpManager(recorder=recorder) as manager:
        listed = manager.connect_all({"a": fake("a", "look"), "b": fake("b", "look")})
        assert [tool.name for tool in listed] == ["a.look", "look"]
        assert manager.call_tool("look").server_name == "b"
        assert manager.call_tool("a.look").server_name == "a"
        assert manager.call_tool("b.look").server_name == "b"
    (shadowed,) = (each.body for each in seen if isinstance(each.body, McpToolShadowed))
    assert (shadowed.tool, shadowed.server, shadowed.shadowed) == ("look", "b", "a")
    (line,) = shadowed.log_lines()
    assert (line.level, line.event) == ("warning", "mcp_tool_shadowed")


def test_a_full_name_means_its_server_though_another_server_has_a_tool_with_a_dot() -> None:
    with McpManager() as manager:
        manager.connect_all({"a": fake("a", "look"), "b": fake("b", "a.look")})
        assert manager.call_tool("a.look").server_name == "a"
        assert manager.call_tool("b.a.look").raw_text == "a.look of b"
        assert [tool.name for tool in manager.tools] == ["look", "b.a.look"]


def test_an_unknown_name_is_an_error_result() -> None:
    with McpManager() as manager:
        manager.connect_all({"a": fake("a", "look")})
        result = manager.call_tool("nope")
        assert (result.server_name, result.tool_name, result.is_error) == ("", "nope", True)
        assert result.raw_text == "Unknown MCP tool: nope. Available tools: look"
        assert result.content == [{"type": "text", "text": result.raw_text}]


def test_an_error_that_a_tool_reports_is_a_result() -> None:
    server = fake("a")
    server.answers("fail", ToolCallResult(content="no", is_error=True, error_message="no such file"))
    with McpManager() as manager:
        manager.connect_all({"a": server})
        result = manager.call_tool("fail")
    assert result.is_error
    assert result.raw_text == "no such file"


def test_a_result_has_the_servers_own_content_blocks() -> None:
    with McpManager() as manager:
        manager.connect_all({"real": faulty()})
        result = manager.call_tool("echo", {"text": "one\ntwo"})
    assert result.content == [{"type": "text", "text": "one\ntwo"}]
    assert result.raw_text == "one\ntwo"


def test_a_server_can_be_a_mapping_with_command_args_and_env() -> None:
    command = faulty()
    entry = {"command": command.command, "args": list(command.args), "env": {"GREETING": "hello"}}
    with McpManager() as manager:
        manager.connect_all({"s": entry, "off": {**entry, "disabled": True}})
        assert manager.servers == ("s",)
        assert manager.call_tool("environ", {"name": "GREETING"}).raw_text == "hello"


def test_a_timeout_raises() -> None:
    with McpManager() as manager:
        manager.connect_all({"s": faulty("--silent-at", "call")})
        with pytest.raises(ToolCallTimedOut, match=r"timed out after 0\.2s"):
            manager.call_tool("echo", {"text": "x"}, timeout=0.2)


def test_the_call_that_meets_a_servers_death_raises_and_so_does_every_later_one() -> None:
    recorder, seen = recorded()
    with McpManager(recorder=recorder) as manager:
        manager.connect_all({"s": faulty("--exit-at", "call"), "other": fake("other", "look")})
        for _ in range(3):
            with pytest.raises(ToolServerDied):
                manager.call_tool("echo", {"text": "x"})
        assert manager.call_tool("look").raw_text == "look of other"
    sent = [each.body for each in seen if isinstance(each.body, ToolCalled) and each.body.server == "s"]
    assert len(sent) == 1, "the call is never repeated"


def test_a_server_killed_between_calls_is_noticed_by_the_next_call() -> None:
    recorder, seen = recorded()
    with McpManager(recorder=recorder) as manager:
        manager.connect_all({"s": faulty()})
        (opened,) = (each.body for each in seen if isinstance(each.body, SessionOpened))
        assert opened.pid is not None
        os.kill(opened.pid, signal.SIGKILL)
        with pytest.raises(ToolServerDied):
            manager.call_tool("echo", {"text": "x"})


@pytest.mark.slow
def test_a_dead_server_can_be_connected_once_more_and_only_once() -> None:
    recorder, seen = recorded()
    with McpManager(recorder=recorder, reconnect=True) as manager:
        manager.connect_all({"s": faulty("--exit-at", "call")})
        for _ in range(4):
            with pytest.raises(ToolServerDied):
                manager.call_tool("echo", {"text": "x"})
    assert sum(isinstance(each.body, OpenSession) for each in seen) == 2
    assert sum(isinstance(each.body, ToolCalled) for each in seen) == 2


@pytest.mark.slow
def test_if_the_third_of_three_fails_the_others_are_closed_and_it_raises() -> None:
    manager = McpManager()
    servers = {"a": faulty(), "b": faulty(), "c": faulty("--exit-at", "start", "--stderr", "no disk")}
    with assert_nothing_left(), pytest.raises(MCPServerStartupError, match="no disk"):
        manager.connect_all(servers)
    assert manager.tools == []
    with pytest.raises(MCPError, match="not connected"):
        manager.call_tool("echo", {"text": "x"})
    assert manager.connect_all({"a": faulty()}), "it can be used again"
    manager.close_all()


def test_a_server_that_cannot_be_connected_can_be_skipped_with_an_event() -> None:
    recorder, seen = recorded()
    with McpManager(recorder=recorder, on_connect_failure="skip") as manager:
        manager.connect_all(
            {"bad": faulty("--exit-at", "start", "--stderr", "no disk"), "a": fake("a", "look")}
        )
        assert manager.servers == ("a",)
        assert manager.call_tool("look").raw_text == "look of a"
    (failed,) = (each.body for each in seen if isinstance(each.body, McpConnectionFailed))
    assert failed.server_name == "bad"
    assert "no disk" in failed.error
    assert failed.goes_on_with == ("a",)
    assert failed.log_lines()[0].event == "mcp_connection_failed"
    assert "\n" not in failed.summary()


def test_a_server_that_may_be_absent_is_left_out_without_a_warning() -> None:
    recorder, seen = recorded()
    absent = StdioServer(name="files", command="grue-no-npx")
    with McpManager(recorder=recorder, optional={"files"}) as manager:
        manager.connect_all({"files": absent, "a": fake("a", "look")})
        missing = manager.call_tool("files.read").raw_text
        assert missing.startswith("Unknown MCP tool: files.read. The server 'files' could not be used: ")
        assert manager.servers == ("a",)
    (fact,) = (each.body for each in seen if isinstance(each.body, McpServerAbsent))
    assert fact.server_name == "files"
    assert (fact.mark(), fact.severity()) == ("", "")
    assert [(line.event, line.level) for line in fact.log_lines()] == [("mcp_connection_failed", "info")]
    required = McpManager(optional={"other"})
    with pytest.raises(MCPServerStartupError):
        required.connect_all({"files": absent, "a": fake("a", "look")})


def test_an_npm_package_that_may_be_absent_is_looked_for_without_starting_npx(tmp_path: Path) -> None:
    npx = tmp_path / "npx"
    npx.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    npx.chmod(0o755)
    recorder, seen = recorded()
    files = StdioServer(
        name="files", command=str(npx), args=("--no-install", "@org/absent"), env={"HOME": str(tmp_path)}
    )
    with McpManager(recorder=recorder, optional={"files"}) as manager:
        manager.connect_all({"files": files, "a": fake("a", "look")})
        assert manager.servers == ("a",)
    (fact,) = (each.body for each in seen if isinstance(each.body, McpServerAbsent))
    assert "the npm package @org/absent is not installed" in fact.error
    assert "npm install --global @org/absent" in fact.error
    assert not (tmp_path / "started").exists()


def test_closing_twice_does_nothing_and_connecting_twice_is_an_error() -> None:
    manager = McpManager()
    manager.close_all()
    manager.connect_all({"a": fake("a", "look")})
    with pytest.raises(MCPError, match="connected already"):
        manager.connect_all({"a": fake("a", "look")})
    manager.close_all()
    manager.close_all()
    assert manager.tools == []


def test_without_servers_nothing_is_started() -> None:
    before = {*threading.enumerate()}
    with McpManager() as manager:
        assert manager.connect_all({}) == []
        assert {*threading.enumerate()} <= before, "another test's thread may end meanwhile"


def test_it_can_be_used_inside_a_running_event_loop() -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def use() -> str:
        with McpManager() as manager:
            manager.connect_all({"sums": FunctionTools([add])})
            return manager.call_tool("add", {"a": 2, "b": 3}).raw_text

    assert asyncio.run(use()) == "5"


@pytest.mark.slow
def test_500_calls_from_8_threads_over_3_servers_each_get_their_own_answer() -> None:
    recorder, seen = recorded()
    names = ("a", "b", "c")
    wrong: list[object] = []

    def work(thread: int) -> None:
        for number in range(thread, 500, 8):
            server = names[number % 3]
            result = manager.call_tool(f"{server}.echo", {"text": f"{number}"})
            if (result.server_name, result.raw_text) != (server, f"{number}"):
                wrong.append((number, result))

    with McpManager(recorder=recorder) as manager:
        manager.connect_all(dict.fromkeys(names, faulty()))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    running: set[str] = set()
    most, calls = 0, 0
    for envelope in seen:
        if isinstance(envelope.body, ToolCalled):
            assert envelope.body.server not in running, "calls to one server run one at a time"
            running.add(envelope.body.server)
            calls += 1
        elif isinstance(envelope.body, ToolReturned):
            running.discard(envelope.sender)
        most = max(most, len(running))
    assert calls == 500
    assert most == 3, "calls to different servers run in parallel"


NEVER_CLOSED = """
import sys
from grue.hosts.skill_agent import McpManager
from grue.testing import faulty_server
command, *args = faulty_server.argv("--ignore-eof", "--ignore-term")
manager = McpManager()
manager.connect_all({"s": {"command": command, "args": args}})
print(manager.call_tool("echo", {"text": "hi"}).raw_text)
"""


@pytest.mark.slow
def test_a_manager_that_is_never_closed_leaves_nothing_alive() -> None:
    left = subprocess.run(
        [sys.executable, "-W", "error", "-c", NEVER_CLOSED],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (left.returncode, left.stdout, left.stderr) == (0, "hi\n", "")


WITHOUT_MCP = """
import sys, importlib.metadata
real = importlib.metadata.version
def version(name):
    if name == "mcp":
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
from grue.transports.mcp import sdk_version
sdk_version._version_by_folder = lambda: ""
from grue.hosts.skill_agent import McpManager
manager = McpManager()
assert "mcp" not in sys.modules
try:
    manager.connect_all({"s": {"command": "true"}})
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_the_package_mcp_only_connect_all_raises_with_the_command_that_installs_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_MCP],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.stderr == ""
    assert "pip install 'mcp>=2.3,<3'" in ran.stdout


@pytest.mark.timeout(60)
def test_a_signal_handler_may_close_a_manager_that_is_connecting() -> None:
    handled = threading.Event()

    class Struck(FakeToolServer):
        async def open(self, timeout_s: float) -> Listing:
            os.kill(os.getpid(), signal.SIGUSR1)
            await anyio.to_thread.run_sync(handled.wait)
            return await super().open(timeout_s)

    with McpManager() as manager:

        def close(number: int, frame: object) -> None:
            manager.close_all()
            handled.set()

        before = signal.signal(signal.SIGUSR1, close)
        try:
            manager.connect_all({"a": Struck("a")})
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert manager.servers == ("a",)


def test_an_unknown_word_for_what_follows_a_failed_connect_is_refused() -> None:
    with pytest.raises(MCPConfigError, match="on_connect_failure= is 'raise' or 'skip', not 'abort'"):
        McpManager(on_connect_failure="abort")  # type: ignore[arg-type]
