"""The agent loop with servers, and with an injected function where there is no `mcp`."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import injected_loop
import msgspec
import pytest
from commands import environment

from grue import HttpServer, LlmSettings, ShellTool, StdioServer, TurnLimits
from grue.hosts.agent_loop import AgentLoop
from grue.messages import (
    CloseSession,
    OpenSession,
    ServerEnded,
    ServerNoted,
    SessionClosed,
    SessionOpened,
    SessionPrewarmed,
    ToolReturned,
)
from grue.testing.actor_harness import TraceWatch
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

DEADLINE_S = 150


@pytest.mark.slow
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
    assert read[0] == "hello"
    assert unknown.format("mcp.files.write") in read[1]
    assert unknown.format("files.read") in read[2]
    assert len(files.calls) == 3


def test_functions_and_commands_stand_beside_mcp_tools(nothing_left: None, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("Buy bread.", encoding="utf-8")

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    calls = tool_calls_reply(
        ("tools.add", {"a": 2, "b": 3}),
        ("shell.run", {"argv": ["cat", "note.txt"]}),
        ("mcp.files.read", {"path": "note.txt"}),
        ("shell.run", {"argv": ["rm", "note.txt"]}),
    )
    with (
        ScriptedLlmServer([calls, text_reply("done")]) as llm,
        AgentLoop(
            LlmSettings(base_url=llm.base_url, model="m"),
            tools=[add, ShellTool(folder=tmp_path, commands=["cat"])],
            invoke_mcp_tool=lambda name, arguments: f"{name} {arguments['path']}",
        ) as loop,
    ):
        assert loop.run("Go.") == "done"
        assert loop.last_outcome is not None
        added, printed, read, refused = (call.result for call in loop.last_outcome.tool_calls)
    assert added.content == 5
    assert isinstance(printed.content, dict)
    assert printed.content["stdout"] == "Buy bread."
    assert read.content == "files.read note.txt"
    assert refused.is_error
    assert (tmp_path / "note.txt").exists()


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


SHOP = """
from grue.testing.mock_server import MockServer

shop = MockServer("shop")

@shop.tool()
def price(article: str) -> dict[str, int]:
    "Return the price of an article."
    return {"euros": len(article)}
"""
SCHEMA = {"type": "object", "properties": {"article": {"type": "string"}}, "required": ["article"]}
DESCRIPTION = "Return the price of an article."
OF_SESSIONS = (OpenSession, SessionOpened, CloseSession, SessionClosed, SessionPrewarmed, ServerEnded)
OF_THIS_RUN = {"elapsed_s", "duration_s", "conversation", "address", "request_id"}


def invoked(tmp_path: Path, running: ExitStack) -> dict[str, Any]:
    def invoke(name: str, arguments: dict[str, Any]) -> dict[str, int]:
        return {"euros": len(arguments["article"])}

    listed = {"name": "shop.price", "description": DESCRIPTION, "inputSchema": SCHEMA}
    return {"invoke_mcp_tool": invoke, "mcp_tools": [listed]}


def faked(tmp_path: Path, running: ExitStack) -> dict[str, Any]:
    shop = FakeToolServer("shop")
    shop.answers("price", {"euros": 4}, {"euros": 5}, description=DESCRIPTION, schema=SCHEMA)
    return {"servers": {"shop": shop}}


def over_stdio(tmp_path: Path, running: ExitStack) -> dict[str, Any]:
    (tmp_path / "mine.py").write_text(SHOP, encoding="utf-8")
    args = ("-m", "grue", "mock-server", f"{tmp_path / 'mine.py'}:shop", "--stdio")
    return {"servers": {"shop": StdioServer(name="shop", command=sys.executable, args=args)}}


def over_http(tmp_path: Path, running: ExitStack) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(SHOP, names)
    url = running.enter_context(names["shop"].serve_http())
    return {"servers": {"shop": HttpServer(name="shop", url=url)}}


def converse(how: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Have a conversation of two inputs; return its trace, and the tools and messages of each request."""
    script = [
        tool_calls_reply(("mcp.shop.price", {"article": "lamp"}), content="Let me look.", ids=["a"]),
        text_reply("Four euros."),
        tool_calls_reply(("mcp.shop.price", {"article": "chair"}), ("mcp.shop.price", "{"), ids=["b", "c"]),
        text_reply("Five."),
    ]
    watch = TraceWatch()
    with ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        limits = TurnLimits(server_startup_timeout_s=60.0)
        with AgentLoop(settings, recorder=watch.recorder, limits=limits, **how) as loop:
            assert loop.run("What is a lamp?") == "Four euros."
            assert loop.run("And a chair?") == "Five."
        asked = [(_untitled(request.body["tools"]), request.body["messages"]) for request in llm.requests]
    return told(watch), asked


def told(watch: TraceWatch) -> list[Any]:
    """The trace without what differs from session to session."""
    kept = [each for each in watch.envelopes if not isinstance(each.body, (*OF_SESSIONS, ServerNoted))]
    places = {each.seq: place for place, each in enumerate(kept)}
    lines = []
    for each in kept:
        body = msgspec.json.decode(msgspec.json.encode(each.body))
        parties = [_party(each.sender), _party(each.receiver)]
        # The first request of a turn is caused by the last session that has opened, which is not here.
        cause = places.get(each.cause) if each.cause is not None else None
        lines.append((type(each.body).__name__, parties, each.turn, cause, _plain(body)))
    return lines


def _untitled(offered: Any) -> Any:
    """The tools without the titles that pydantic writes into a schema."""
    if isinstance(offered, list):
        return [_untitled(each) for each in offered]
    if not isinstance(offered, dict):
        return offered
    return {key: _untitled(each) for key, each in offered.items() if key != "title"}


def _party(name: str) -> str:
    return "mcp" if name.startswith("mcp") else name


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "server" in value and "tool" in value:  # a listed tool, or a call
        bare = f"{value['server']}.{value['tool']}"
        return bare if "input_schema" in value else (bare, value["call_id"], value["arguments"])
    value = {key: _plain(each) for key, each in value.items() if key not in OF_THIS_RUN}
    if "calls" in value and "server" in value:  # a batch
        names = [f"{value['server']}.{call['tool']}" for call in value["calls"]]
        value = {**value, "server": "mcp", "calls": names}
    if "servers" in value:
        value["servers"] = ["mcp"]
    return value


@pytest.mark.slow
def test_one_conversation_has_the_same_trace_whatever_serves_its_tools(
    nothing_left: None, tmp_path: Path
) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    found = {}
    for served in (invoked, faked, over_stdio, over_http):
        with ExitStack() as running:
            found[served.__name__] = converse(served(tmp_path, running))
    trace, asked = found["invoked"]
    assert len(asked) == 4
    for name, (others, other_asked) in found.items():
        assert other_asked == asked, name
        for line, expected in zip(others, trace, strict=True):
            assert line == expected, name
