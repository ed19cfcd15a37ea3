"""Whole turns and the Zork manager with servers that are reached by URL."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from faulty_http_server import faulty_http_server
from http_servers import real_http_server

from grue import FailurePolicy, HttpServer, LlmSettings, Runner, ServerOptions, TraceWriter, TurnRequest
from grue.actors import mcp_session
from grue.config.settings import GameConfiguration
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPError, MCPRequestError, MCPServerStartupError
from grue.hosts.zork.agent import ZorkAgent
from grue.hosts.zork.manager import MCPManager
from grue.messages import ConnectFailed, PrewarmLost, SessionPrewarmed
from grue.policies import TurnLimits
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

TOKEN = "hunter2hunter2"
NOBODY = "http://127.0.0.1:9/mcp"


def reply(asked: LlmRequest) -> LlmReply:
    """Call `echo` twice in one reply where it is on offer, then answer."""
    named = next((name for name in asked.tool_names if "echo" in name), None)
    if named is None or asked.messages[-1]["role"] == "tool":
        return text_reply("done")
    return tool_calls_reply((named, {"text": TOKEN}), (named, {"text": "two"}))


@pytest.fixture
def llm() -> Iterator[LlmSettings]:
    with ScriptedLlmServer(reply) as server:
        yield LlmSettings(base_url=server.base_url, model="scripted")


def far(url: str, **more: Any) -> dict[str, HttpServer]:
    return {"far": HttpServer(name="far", url=url, **more)}


def asked() -> TurnRequest[str]:
    return TurnRequest(system="Use the tool.", user="Go on.")


@pytest.mark.parametrize("flags", [(), ("--transport", "sse")], ids=" ".join)
@pytest.mark.slow
def test_turns_over_http_leave_nothing_and_their_trace_has_no_secret(
    flags: tuple[str, ...], llm: LlmSettings, tmp_path: Path
) -> None:
    recorder = Recorder()
    writer = TraceWriter(tmp_path / "trace", episode="e")
    recorder.add(writer)
    with real_http_server("--token", TOKEN, *flags) as url:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        servers = far(f"{url}?token={TOKEN}", transport="sse" if flags else "http", headers=headers)
        with Runner(llm=llm, servers=servers, recorder=recorder) as runner:
            runner.run_turn(asked())
            for _ in range(2):
                with assert_nothing_left():
                    outcome = runner.run_turn(asked())
                assert (outcome.kind, outcome.response) == ("answered", "done")
                assert [call.result.content for call in outcome.tool_calls] == [TOKEN, "two"]
    writer.close()
    trace = (tmp_path / "trace").read_text()
    assert '"pid":null' in trace
    assert TOKEN not in trace


@pytest.mark.slow
def test_p26_p27_a_session_is_lost_and_the_server_given_up_when_it_does_not_come_back(
    llm: LlmSettings,
) -> None:
    with faulty_http_server("--status", "call=404") as url:
        runner = Runner(llm=llm, servers=far(url))
        outcome = runner.run_turn(asked())
        assert [call.settlement for call in outcome.tool_calls] == ["died", "skipped"]
        assert "session lost" in str(outcome.tool_calls[0].result.error_message)
        assert not runner.disabled
    outcome = runner.run_turn(asked())
    assert outcome.kind == "degraded"
    assert "connection refused" in runner.disabled["far"]


@pytest.mark.parametrize("keep", ["nothing", "loop"])
@pytest.mark.slow
def test_a_server_that_was_down_is_tried_again_when_its_wait_is_over(
    llm: LlmSettings, monkeypatch: pytest.MonkeyPatch, keep: Any
) -> None:
    """The waits are 30 s and then 60 s, by a clock that the test sets."""
    gone_by_s = [0.0]
    monkeypatch.setattr(mcp_session, "current_time", lambda: gone_by_s[0])
    tried: list[ConnectFailed] = []

    def note(envelope: Envelope[Any], _line: bytes) -> None:
        if isinstance(envelope.body, ConnectFailed):
            tried.append(envelope.body)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    policy = FailurePolicy(first_connect="disable", retry_disabled_s=30.0)
    servers = far(f"http://127.0.0.1:{port}/mcp")
    with Runner(llm=llm, servers=servers, policy=policy, keep=keep) as runner:
        runner.recorder.add(note)

        def turn(later_s: float) -> tuple[str, int]:
            gone_by_s[0] += later_s
            return runner.run_turn(asked()).kind, len(tried)

        assert [turn(0), turn(20), turn(11)] == [("degraded", 1), ("degraded", 1), ("degraded", 2)]
        with real_http_server("--port", str(port)):
            assert [turn(0), turn(50)] == [("degraded", 2)] * 2
            assert [turn(11), turn(0)] == [("answered", 2)] * 2
            assert not runner.disabled


@pytest.mark.parametrize("kept", [False, True], ids=["ahead", "kept"])
@pytest.mark.slow
def test_a_session_that_its_server_forgets_between_turns_is_replaced(kept: bool, llm: LlmSettings) -> None:
    recorder, ready, lost = Recorder(), threading.Event(), []

    def look(envelope: Envelope[Any], _line: bytes) -> None:
        if isinstance(envelope.body, SessionPrewarmed):
            ready.set()
        if isinstance(envelope.body, PrewarmLost):
            lost.append(envelope.body.cause)

    recorder.add(look)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        url = first.enter_context(real_http_server())
        ways: dict[bool, dict[str, Any]] = {
            False: {"keep": "loop", "start": "after_turn"},
            True: {"keep": "sessions"},
        }
        how = {**ways[kept], "recorder": recorder}
        runner = stack.enter_context(Runner(llm=llm, servers=far(url), **how))
        assert runner.run_turn(asked()).kind == "answered"
        assert kept or ready.wait(60)
        first.close()
        stack.enter_context(real_http_server("--port", str(urlsplit(url).port)))
        outcome = runner.run_turn(asked())
    assert (outcome.kind, [call.settlement for call in outcome.tool_calls]) == ("answered", ["returned"] * 2)
    assert lost == ["its server no longer knows of it"]


def test_r6_1_a_first_connect_that_is_refused_ends_the_episode(llm: LlmSettings) -> None:
    with pytest.raises(MCPServerStartupError) as caught, assert_nothing_left():
        Runner(llm=llm, servers=far(f"{NOBODY}?key={TOKEN}")).run_turn(asked())
    assert str(caught.value).splitlines() == [
        "Failed to reach MCP server 'far': connection refused by 127.0.0.1:9",
        f"URL: {NOBODY}",
        "Check that the server is running and that `url` has its host and port.",
    ]


def test_p25_a_server_s_own_limit_is_the_one_that_is_told(llm: LlmSettings) -> None:
    with faulty_http_server("--silent-at", "call") as url:
        servers = far(url, options=ServerOptions(call_timeout_s=0.2))
        outcome = Runner(llm=llm, servers=servers, limits=TurnLimits(tool_call_timeout_s=9)).run_turn(asked())
    first, second = outcome.tool_calls
    assert (first.settlement, second.settlement) == ("timed_out", "skipped")
    assert first.result.error_message == "Tool call timed out after 0.2s"


@pytest.mark.anyio
@pytest.mark.slow
async def test_r2_1_the_zork_manager_takes_a_server_by_url(tmp_path: Path) -> None:
    with real_http_server("--token", TOKEN) as url:
        entry = {"url": url, "headers": {"Authorization": f"Bearer {TOKEN}"}, "tools": {"exclude": ["fail"]}}
        (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"far": entry}}))
        manager = MCPManager(GameConfiguration(project_dir=tmp_path))
        assert isinstance(manager.tool_server, HttpServer)
        await manager.connect_session()
        names = [schema["function"]["name"] for schema in await manager.get_tool_schemas()]
        assert names == ["far.echo", "far.slow", "far.big", "far.chatty"]
        assert (await manager.call_tool("far.echo", {"text": "hi"})).content == "hi"
        await manager.disconnect_session()


@pytest.mark.slow
def test_the_zork_agent_takes_a_server_by_url(llm: LlmSettings) -> None:
    config = GameConfiguration(mcp_enabled=True, client_base_url=llm.base_url, agent_model="gpt-4")
    with real_http_server() as url:
        agent = ZorkAgent(config=config, mcp_manager=far(url)["far"])
        agent.get_action_with_reasoning("West of House")
    assert agent.last_outcome is not None
    assert [call.name for call in agent.last_outcome.tool_calls] == ["far.echo"] * 2


@pytest.mark.slow
def test_a_method_that_is_no_valid_text_ends_no_session() -> None:
    with real_http_server() as url, ToolClient({"far": HttpServer(name="far", url=url)}) as client:
        with pytest.raises(MCPRequestError, match="refused x\N{REPLACEMENT CHARACTER}"):
            client.request("far", "x\udc80")
        with pytest.raises(MCPError, match="method is a text, such as"):
            client.request("far", 3)  # type: ignore[arg-type]  # as the test says
        assert client.call("far.echo", {"text": "hi"}).content == "hi"
