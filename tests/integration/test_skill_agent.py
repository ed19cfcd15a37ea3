"""S's sequence diagram with real server processes, and what can befall a run in the middle of it."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from langfuse_stand_in import StandIn
from msgspec.structs import replace
from otlp_receiver import OtlpReceiver
from real_servers import npm_server
from skill_runs import Events, act, call, finish, run, scripted
from transport_servers import faulty

from grue import StdioServer
from grue.cli.run import EXAMPLE, RunOptions, _choose_model
from grue.hosting import LangfuseObserver
from grue.hosts.skill_agent import AgentConfig, McpManager, Orchestrator, load_config
from grue.hosts.skill_agent.facts import McpServersConnected, McpServersDisconnected, RunEnded, RunStarted
from grue.hosts.zork.bundled import bundled_server
from grue.messages import (
    OpenSession,
    RunTurn,
    SessionClosed,
    SessionOpened,
    ToolCalled,
    ToolReturned,
    TurnCompleted,
)
from grue.runtime.trace.recorder import Recorder
from grue.testing.actor_harness import TraceWatch
from grue.testing.leftovers import assert_nothing_left

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with assert_nothing_left():
        yield


def test_the_sequence_of_connecting_calling_and_closing_line_by_line(tmp_path: Path) -> None:
    think = bundled_server()
    thought = {"thought": "a", "thoughtNumber": 1, "totalThoughts": 2, "nextThoughtNeeded": True}
    replies = [
        act(call("think", **thought)),
        act(call("echo", text="x"), call("think", **{**thought, "thoughtNumber": 2})),
        act(finish()),
    ]
    servers = {"files": faulty(), "think": think}
    done = run(replies, folder=tmp_path / "run", config={"servers": servers})
    assert done.statuses == ["completed"] * 4
    watch = TraceWatch.of(tmp_path / "run")
    # connect_all: both servers are started before either has answered; initialize and tools/list follow.
    watch.in_order(RunStarted, OpenSession, OpenSession, SessionOpened, SessionOpened, McpServersConnected)
    watch.in_order(McpServersConnected, RunTurn, TurnCompleted)
    # call_tool: routed to the server, over the session that is open.
    watch.in_order(TurnCompleted, ToolCalled, ToolReturned, RunTurn, ToolCalled, ToolReturned, ToolCalled)
    # close_all: both sessions end, then the run.
    watch.in_order(ToolReturned, SessionClosed, SessionClosed, McpServersDisconnected, RunEnded)
    watch.happened(OpenSession, times=2)
    watch.happened(SessionClosed, times=2)
    lines = [json.loads(line) for line in (tmp_path / "run" / "trace.jsonl").read_text().splitlines()[1:]]
    pids = [line["body"]["pid"] for line in lines if line["body"]["type"] == "SessionOpened"]
    assert len(set(pids)) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    called = [line["body"]["server"] for line in lines if line["body"]["type"] == "ToolCalled"]
    assert called == ["think", "files", "think"]


@pytest.mark.slow
def test_a_server_that_is_killed_in_the_middle_of_a_run_fails_its_steps_only() -> None:
    recorder, pids = Recorder(), {}

    def watch(envelope: Any, line: bytes) -> None:
        if isinstance(envelope.body, SessionOpened):
            pids[envelope.body.server] = envelope.body.pid
        if isinstance(envelope.body, ToolReturned) and envelope.sender == "a" and pids.get("a"):
            os.kill(pids.pop("a"), signal.SIGKILL)

    recorder.add(watch)
    replies = [
        act(call("a.echo", text="1")),
        act(call("a.echo", text="2"), call("b.echo", text="3")),
        act(finish()),
    ]
    done = run(replies, config={"servers": {"a": faulty(), "b": faulty()}}, recorder=recorder)
    assert done.statuses == ["completed", "failed", "completed", "completed"]
    assert done.events.names.count("mcp_tool_call_failed") == 1
    reconnected = {"servers": {"a": faulty("--exit-at", "call")}, "reconnect": True}
    again = run([act(call("echo", text="1"), call("echo", text="2")), act(finish())], config=reconnected)
    assert again.statuses == ["failed", "failed", "completed"]


def test_ctrl_c_in_the_middle_of_a_call_ends_the_run_within_seconds(tmp_path: Path) -> None:
    recorder, events = Recorder(), Events()

    def press(envelope: Any, line: bytes) -> None:
        if isinstance(envelope.body, ToolCalled):
            os.kill(os.getpid(), signal.SIGINT)

    recorder.add(press)
    with scripted(act(call("echo", text="x"))) as (_, llm):
        config = AgentConfig(llm=llm, servers={"s": faulty("--silent-at", "call")})
        agent = Orchestrator(config, folder=tmp_path / "run", on_event=events, recorder=recorder)
        with pytest.raises(KeyboardInterrupt):
            agent.run("Do it.")
    assert events.names[-1] == "mcp_servers_disconnected"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["reason"] == "interrupted"


def test_the_npm_server_for_files_reads_and_writes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    server: StdioServer = npm_server("filesystem", str(tmp_path))
    with McpManager() as manager:
        names = [tool.name for tool in manager.connect_all({"files": server})]
        assert "read_text_file" in names
        assert manager.call_tool("read_text_file", {"path": str(tmp_path / "a.txt")}).raw_text == "hello"
        manager.call_tool("write_file", {"path": str(tmp_path / "b.txt"), "content": "bye"})
        assert manager.call_tool("read_text_file", {"path": "/etc/passwd"}).is_error
    assert (tmp_path / "b.txt").read_text() == "bye"


def test_the_example_uses_the_npm_server_for_files_where_node_is_there(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE.parent, tmp_path / "agent")
    workspace = tmp_path / "agent" / "workspace"
    (workspace / "report.md").unlink(missing_ok=True)
    config = load_config(tmp_path / "agent" / "agent.yaml")
    files, npx = npm_server("filesystem", str(workspace)), config.servers["files"]
    assert isinstance(npx, StdioServer)
    assert (npx.command, npx.args[-1], files.args[-1]) == ("npx", str(workspace), str(workspace))
    config.servers["files"] = replace(files, name="files")
    _choose_model(config, RunOptions(offline=True))
    result = Orchestrator(config).run(config.task)
    assert result.succeeded, result.detail
    assert "read_multiple_files" in [step.target for step in result.steps]
    assert "| **sum** | 45.5 |" in (workspace / "report.md").read_text()


@pytest.mark.slow
def test_opentelemetry_shows_each_call_in_the_turn_that_made_it() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install 'grue[otel]'")
    http = pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        reason="OpenTelemetry: pip install 'grue[otel]'",
    )
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from grue.hosting import OtelObserver

    replies = [
        act(call("echo", text="x"), call("echo", text="y")),
        act(call("echo", text="z")),
        act(finish()),
    ]
    provider, recorder = sdk.TracerProvider(shutdown_on_exit=False), Recorder()
    with OtlpReceiver() as receiver:
        exporter = http.OTLPSpanExporter(endpoint=f"{receiver.url}/v1/traces")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        observer = OtelObserver(provider)
        recorder.add(observer)
        run(replies, config={"servers": {"s": faulty()}}, recorder=recorder)
        assert observer.close(60.0)
        provider.shutdown()
    root = receiver.one("invoke_workflow")  # without the task: the observer was not told to send texts
    assert "Do it." not in str(receiver.spans)
    assert receiver.children(receiver.one("agent-tool-calling-session")) == []
    turns = [span for span in receiver.children(root) if span.name == "invoke_agent agent"]
    assert [[span.name for span in receiver.children(turn)] for turn in turns] == [
        ["chat scripted", "execute_tool s.echo", "execute_tool s.echo"],
        ["chat scripted", "execute_tool s.echo"],
        ["chat scripted"],
    ]
    assert {span.trace_id for span in receiver.spans} == {root.trace_id}


@pytest.mark.slow
def test_langfuse_shows_each_call_in_the_turn_that_made_it() -> None:
    client, recorder = StandIn(), Recorder()
    observer = LangfuseObserver(client)
    recorder.add(observer)
    run([act(call("echo", text="x")), act(finish())], config={"servers": {"s": faulty()}}, recorder=recorder)
    assert observer.close(30.0)
    assert observer.statistics().failed == 0
    assert client.tree() == [
        ("client", "episode"),
        ("episode", "agent-tool-calling-session"),
        ("episode", "turn 1"),
        ("turn 1", "Agent"),
        ("turn 1", "mcp-tool-s.echo"),
        ("episode", "turn 2"),
        ("turn 2", "Agent"),
    ]
    assert sorted(client.ended()) == sorted(name for _, name in client.tree())
    root = client.ending("episode")
    assert "Do it." in root["input"]
    assert root.get("level") is None
    first, second = (
        told.given for told in client.log if told.what == "start" and told.given["name"] == "Agent"
    )
    assert second["input"][: len(first["input"])] == first["input"]
    assert [message["role"] for message in second["input"]] == ["system", "user", "assistant", "user"]
