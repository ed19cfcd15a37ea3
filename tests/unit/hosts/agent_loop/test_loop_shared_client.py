"""`list_mcp_tools` and `invoke_mcp_tool`: one client for all threads, closed at the exit at the latest."""

import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grue import FunctionTools, HttpServer, LlmSettings, StdioServer
from grue.errors import MCPConfigError, MCPServerStartupError
from grue.hosts.agent_loop import (
    AgentLoop,
    configure_mcp_client,
    invoke_mcp_tool,
    list_mcp_tools,
    reset_mcp_client,
)
from grue.hosts.agent_loop.loop import VARIABLE, _tool_server
from grue.testing import faulty_server
from grue.testing.fake_tools import FakeToolServer
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

DEADLINE_S = 150


@pytest.fixture(autouse=True)
def client() -> Iterator[None]:
    with assert_nothing_left():
        reset_mcp_client()
        yield
        reset_mcp_client()


def echoing() -> FakeToolServer:
    server = FakeToolServer("mcp")
    server.answers("echo", "hello", description="Say it again.")
    return server


def test_it_lists_and_calls_by_the_name_with_and_without_the_prefix() -> None:
    server = echoing()
    configure_mcp_client(server)
    assert server.sessions == 0, "made at the first call"
    assert [(tool.name, tool.description) for tool in list_mcp_tools()] == [("mcp.echo", "Say it again.")]
    assert invoke_mcp_tool("echo", {"text": "a"}).content == "hello"
    assert invoke_mcp_tool("mcp.echo").content == "hello"
    assert server.calls == [("echo", {"text": "a"}), ("echo", {})]
    assert server.sessions == 1
    assert "Unknown MCP tool: mcp.sing" in str(invoke_mcp_tool("sing").error_message)


def test_all_threads_have_one_client() -> None:
    server = echoing()
    configure_mcp_client(server)
    together = threading.Barrier(8)

    def work(number: int) -> Any:
        together.wait(DEADLINE_S)
        return invoke_mcp_tool("echo", {"n": number}).content if number % 2 else len(list_mcp_tools())

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [1, "hello"] * 4
    assert server.sessions == 1


@pytest.mark.slow
def test_a_server_that_died_is_started_again_for_the_next_call(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    configure_mcp_client(faulty_server.argv("--exit-at", "call", "--only-in", "1", str(tmp_path / "lives")))
    died = invoke_mcp_tool("echo", {"text": "hi"})
    assert "exit" in str(died.error_message)
    assert invoke_mcp_tool("echo", {"text": "hi"}).content == "hi"


def test_a_server_that_does_not_start_is_an_error_and_is_tried_again() -> None:
    server = echoing()
    configure_mcp_client(server)
    server.fails_to_start()
    with pytest.raises(MCPServerStartupError):
        invoke_mcp_tool("echo")
    assert invoke_mcp_tool("echo").content == "hello"


def test_tools_of_a_server_that_does_not_start_are_an_error_each_time() -> None:
    server = echoing()
    configure_mcp_client(server)
    server.fails_to_start(2)
    for _ in range(2):
        with pytest.raises(MCPServerStartupError):
            list_mcp_tools()
    assert [tool.name for tool in list_mcp_tools()] == ["mcp.echo"]


def test_another_configuration_closes_the_client_and_a_reset_forgets_it() -> None:
    configure_mcp_client(echoing())
    assert list_mcp_tools()
    configure_mcp_client(FunctionTools({"add": lambda: 1}))
    assert [tool.name for tool in list_mcp_tools()] == ["mcp.add"]
    reset_mcp_client()
    with pytest.raises(MCPConfigError, match=VARIABLE):
        list_mcp_tools()


@pytest.mark.parametrize(
    ("given", "server"),
    [
        ("http://127.0.0.1:8000/mcp?a=b&c", HttpServer(name="mcp", url="http://127.0.0.1:8000/mcp?a=b&c")),
        (" http://127.0.0.1:8000/mcp\n", HttpServer(name="mcp", url="http://127.0.0.1:8000/mcp")),
        ("npx -y 'my server'", StdioServer(name="mcp", command="npx", args=("-y", "my server"))),
        (["serve", "http://x"], StdioServer(name="mcp", command="serve", args=("http://x",))),
        ("serve --url http://x", StdioServer(name="mcp", command="serve", args=("--url", "http://x"))),
    ],
)
def test_a_url_or_a_command_is_enough(given: Any, server: object) -> None:
    assert _tool_server(given) == server


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "server is empty"), ([], "server is empty"), ("serve 'notes", "No closing quotation")],
)
def test_a_text_that_is_no_command_is_refused(text: str | list[str], problem: str) -> None:
    with pytest.raises(MCPConfigError, match=problem):
        configure_mcp_client(text)


def test_the_environment_may_name_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    monkeypatch.setenv(VARIABLE, shlex.join(faulty_server.argv()))
    assert invoke_mcp_tool("echo", {"text": "hi"}).content == "hi"


def test_an_agent_loop_may_use_it() -> None:
    configure_mcp_client(echoing())
    with ScriptedLlmServer([tool_calls_reply(("mcp.echo", {"text": "a"})), text_reply("done")]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop(settings, invoke_mcp_tool=invoke_mcp_tool, mcp_tools=list_mcp_tools()) as loop:
            assert loop.run("Go.") == "done"
            assert loop.last_outcome is not None
            assert loop.last_outcome.tool_calls[0].result.content == "hello"


FORGETFUL = """
import os, sys, threading
from grue.hosts.agent_loop import configure_mcp_client, invoke_mcp_tool

def say(text):
    print(invoke_mcp_tool("echo", {"text": text}).content, flush=True)

configure_mcp_client(sys.argv[1:])
say("hi")
"""
THREAD = "threading.Thread(target=say, args=['thread']).start()"
FORK = "child = os.fork(); say('child' if child == 0 else 'parent'); child and os.waitpid(child, 0)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("raise SystemExit(3)", 3, {"hi"}),
        pytest.param(THREAD, 0, {"hi", "thread"}, marks=pytest.mark.slow),
        pytest.param(FORK, 0, {"hi", "child", "parent"}, marks=pytest.mark.slow),
    ],
    ids=["exit", "thread", "fork"],
)
def test_a_program_that_forgets_it_ends_and_so_does_the_server(end: str, status: int, said: set[str]) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            f"{FORGETFUL}\n{end}",
            *faulty_server.argv("--ignore-eof"),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")
    assert {*done.stdout.split()} == said
