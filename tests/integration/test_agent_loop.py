"""The agent loop with servers, and with an injected function where there is no `mcp`."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import injected_loop
from commands import environment

from grue import LlmSettings, StdioServer
from grue.hosts.agent_loop import AgentLoop
from grue.messages import SessionOpened, ToolReturned
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply
from grue.testing.trace_watch import TraceWatch

DEADLINE_S = 150


def test_with_an_injected_function_neither_mcp_nor_the_order_of_imports_matters() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", injected_loop.__file__],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert {*lines} == {"['one', 'two'] [('files.read', {'path': 'a'})] mcp=False"}


def test_a_server_is_called_by_its_prefixed_name_inside_and_outside_of_inputs(
    nothing_left: None, fake_tool_session: Callable[[str], FakeToolServer]
) -> None:
    files = fake_tool_session("files")
    files.answers("read", "hello")
    calls = tool_calls_reply(("mcp.files.read", {"path": "a"}), ("mcp.files.write", {}), ("files.read", {}))
    script = [calls, text_reply("one"), calls, text_reply("two")]
    with ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with AgentLoop(settings, servers={"files": files}) as loop:
            assert [loop.run("first"), loop.run("second")] == ["one", "two"]
            assert [tool.name for tool in loop.runner.tools()] == ["mcp.files.read"]
            assert loop.runner.call("mcp.files.read").content == "hello"
        offered: Any = llm.requests[0].body["tools"]
        read = [message["content"] for message in llm.requests[1].messages if message["role"] == "tool"]
    assert [tool["function"]["name"] for tool in offered] == ["mcp.files.read"]
    unknown = "Unknown MCP tool: {}. Available tools: mcp.files.read"
    assert read[0] == '{"content":"hello"}'
    assert unknown.format("mcp.files.write") in read[1]
    assert unknown.format("files.read") in read[2]
    assert len(files.calls) == 3


def test_a_servers_process_lives_from_input_to_input_and_ends_with_the_loop(
    nothing_left: None, faulty_mcp_server: Callable[..., StdioServer]
) -> None:
    watch = TraceWatch()
    call = tool_calls_reply(("mcp.files.echo", {"text": "hi"}))
    with ScriptedLlmServer([call, text_reply("one"), call, text_reply("two")]) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        servers = {"files": faulty_mcp_server()}
        with AgentLoop(settings, servers=servers, recorder=watch.recorder) as loop:
            assert [loop.run("first"), loop.run("second")] == ["one", "two"]
    opened = [each.body for each in watch.envelopes if isinstance(each.body, SessionOpened)]
    assert [each.server for each in opened] == ["mcp.files"] * 2
    assert opened[0].pid == opened[1].pid is not None
    watch.happened(ToolReturned, times=2)
