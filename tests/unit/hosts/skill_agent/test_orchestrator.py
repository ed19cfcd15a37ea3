"""A run from its task to its end: each box of S's life-cycle chart, and each row of its error table."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from skill_runs import Events, act, call, finish, run, scripted
from transport_servers import faulty

from grue import MCPError, Recorder, ToolPolicy, ToolRule
from grue.errors import MCPConfigError, MissingDependencyError
from grue.hosting import open_episode, read_episode
from grue.hosts.skill_agent import ActionContext, ActionRegistry, AgentConfig, McpManager, Orchestrator
from grue.hosts.skill_agent.facts import McpToolCallCompleted, McpToolCallStarted, RunEnded
from grue.messages import ServerNoted, ToolCalled, ToolCallResult, ToolReturned
from grue.testing.fake_tools import FakeToolServer
from grue.testing.leftovers import assert_nothing_left
from grue.tracing.counts import count_episode
from grue.tracing.turn_slices import split_turns

CALLED = ["mcp_tool_call_started", "mcp_tool_call_completed"]


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with assert_nothing_left():
        yield


class GoUp(msgspec.Struct):
    """The parameters of an action that changes the working directory."""


def cave() -> FakeToolServer:
    server = FakeToolServer("cave")
    schema = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
    server.answers("look", "dark", description="Look around", schema=schema)
    server.answers("fail", ToolCallResult(content="no", is_error=True, error_message="no such file"))
    return server


def test_a_run_carries_out_actions_until_finish(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    ran = run(
        [
            act(("list_files", {}), ("read_file", {"path": "a.txt"})),
            act(("write_file", {"path": "b.txt", "content": "HELLO"}), ("respond", {"text": "Half way."})),
            act(("note", {"text": "b.txt is written"}), finish("All done.")),
        ],
        config={"workspace": tmp_path},
    )
    assert (ran.result.reason, ran.result.answer) == ("finished", "All done.")
    assert ran.result.succeeded
    assert (ran.result.responses, ran.result.notes) == (("Half way.",), ("b.txt is written",))
    assert ran.statuses == ["completed"] * 6
    assert (tmp_path / "b.txt").read_text() == "HELLO"
    assert ran.results(1)[1]["output"] == "hello"
    assert ran.said(0) == "TASK:\nDo it."
    assert (ran.result.turns, ran.result.requests) == (3, 3)


# --- The life cycle ---


@pytest.mark.parametrize("config", [{}, {"mcp_enabled": False, "servers": {"cave": cave()}}])
def test_without_mcp_there_are_no_tools_in_the_prompt_and_no_events(config: dict[str, object]) -> None:
    ran = run([act(finish())], config=config)
    assert ran.events.names == []
    assert "MCP_TOOLS:" not in str(ran.requests[0][0]["content"])


def test_connected_tools_are_in_the_prompt_exactly_so_and_a_call_has_its_events() -> None:
    server = FakeToolServer("cave")
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    server.answers("read_file", "dark", description="Read a file from the filesystem", schema=schema)
    ran = run([act(call("read_file", path="/tmp/x")), act(finish())], config={"servers": {"cave": server}})
    expected = """MCP_TOOLS:
[
  {
    "name": "read_file",
    "description": "Read a file from the filesystem",
    "server": "cave",
    "input_schema": {
      "type": "object",
      "properties": {
        "path": {
          "type": "string"
        }
      },
      "required": [
        "path"
      ]
    }
  }
]"""
    assert str(ran.requests[0][0]["content"]).endswith(expected)
    assert ran.events.names == ["mcp_servers_connected", *CALLED, "mcp_servers_disconnected"]
    assert ran.events.fields("mcp_servers_connected") == {
        "servers": ("cave",),
        "tools": ("read_file",),
        "tool_count": 1,
    }
    assert ran.events.fields("mcp_tool_call_completed")["status"] == "completed"
    assert server.calls == [("read_file", {"path": "/tmp/x"})]
    (result,) = ran.results()
    assert (result["target"], result["output"]) == ("read_file", "dark")


@pytest.mark.slow
def test_a_tool_call_stands_in_the_turn_of_its_action(tmp_path: Path) -> None:
    replies = [act(("note", {"text": "x"})), act(call("look")), act(finish())]
    run(replies, folder=tmp_path / "run", config={"servers": {"cave": cave()}})
    envelopes = [*open_episode(tmp_path / "run")]
    called = [each.turn for each in envelopes if isinstance(each.body, ToolCalled | ToolReturned)]
    assert called == [2, 2]
    (turn,) = (each for each in split_turns(envelopes) if each.turn == 2)
    assert any(isinstance(each.body, ToolCalled) for each in turn.envelopes)
    slowest = count_episode(open_episode(tmp_path / "run")).slowest_turns
    assert {each.turn: each.tool_calls for each in slowest} == {1: 0, 2: 1, 3: 0}


def test_servers_that_cannot_be_connected_leave_a_run_without_mcp() -> None:
    servers = {"cave": cave(), "bad": faulty("--exit-at", "start", "--stderr", "no disk")}
    ran = run([act(call("look")), act(finish())], config={"servers": servers})
    assert ran.events.names == ["mcp_connection_failed", "mcp_tool_call_failed"]
    failed = ran.events.fields("mcp_connection_failed")
    assert failed["server_name"] == "bad"
    assert "no disk" in failed["error"]
    assert "MCP_TOOLS:" not in str(ran.requests[0][0]["content"])
    assert ran.results()[0]["error"] == "No MCP server is connected."
    assert ran.result.reason == "finished"


def test_without_the_package_mcp_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise MissingDependencyError("Install it: pip install 'grue[mcp]'")

    monkeypatch.setattr("grue.engine.tool_servers.require_mcp", absent)
    ran = run([act(finish())], config={"servers": {"s": faulty()}})
    assert ran.result.succeeded
    assert "pip install" in ran.events.fields("mcp_connection_failed")["error"]


@pytest.mark.parametrize("connects", [True, False])
def test_a_pattern_that_a_server_which_is_absent_might_match_is_not_noted(connects: bool) -> None:
    rules = [
        ToolRule(tools=("web.get", "w*", "shelf.look", "cave.lok", "agent.wirte_file"), verdict="deny"),
        ToolRule(tools=("cave.look", "agent.*")),
    ]
    web, bad = FakeToolServer("web"), cave()
    web.fails_to_start()
    if not connects:
        bad.fails_to_start()
    config = {
        "servers": {"web": web, "cave": bad},
        "optional_servers": frozenset(["web"]),
        "policy": ToolPolicy(rules=tuple(rules)),
    }
    recorder = Recorder()
    notes: list[str] = []
    recorder.watch({ServerNoted: lambda note: notes.append(note.text)})
    assert run([act(finish())], config=config, recorder=recorder).result.succeeded
    unknown = ["shelf.look", *(["cave.lok"] if connects else []), "agent.wirte_file"]
    assert notes == [f"the tool policy has '{each}', which matches no tool" for each in unknown]


def test_a_call_without_a_name_fails_before_anything_is_called() -> None:
    ran = run([act(("mcp_call", {})), act(finish())], config={"servers": {"cave": cave()}})
    assert ran.events.names[1:-1] == ["mcp_tool_call_failed"]
    assert ran.results()[0]["error"] == "mcp_call needs a tool_name."


@pytest.mark.parametrize("where", ["args", "at"])
def test_a_tool_is_not_called_without_arguments_that_were_written_elsewhere(where: str) -> None:
    cave = FakeToolServer("cave")
    cave.answers("dig", "a hole")
    misplaced = ("mcp_call", {"tool_name": "cave.dig", where: {"at": "door"}})
    replies = [act(misplaced), act(call("cave.dig", at="door")), act(finish())]
    ran = run(replies, config={"servers": {"cave": cave}})
    assert f"unknown field `{where}`" in ran.said(1)
    assert cave.calls == [("dig", {"at": "door"})]


def test_an_error_result_is_a_completed_call_and_a_failed_step() -> None:
    ran = run([act(call("fail")), act(finish())], config={"servers": {"cave": cave()}})
    assert ran.events.names[1:-1] == CALLED
    assert ran.events.fields("mcp_tool_call_completed")["status"] == "failed"
    (result,) = ran.results()
    assert (result["status"], result["error"]) == ("failed", "no such file")


def test_an_unknown_tool_is_an_error_result() -> None:
    ran = run([act(call("dig")), act(finish())], config={"servers": {"cave": cave()}})
    assert ran.statuses == ["failed", "completed"]
    assert ran.results()[0]["error"] == "Unknown MCP tool: dig. Available tools: look, fail"


@pytest.mark.parametrize(
    ("flag", "said"), [("--silent-at", "timed out after 0.2s"), ("--exit-at", "exit status 1")]
)
def test_a_timeout_and_a_servers_death_fail_the_step_and_the_run_goes_on(flag: str, said: str) -> None:
    ran = run(
        [act(call("echo", text="x"), call("look")), act(finish())],
        config={"servers": {"s": faulty(flag, "call"), "cave": cave()}, "tool_call_timeout_s": 0.2},
    )
    assert ran.events.names[:2] == ["mcp_tool_shadowed", "mcp_servers_connected"], "both have a tool `fail`"
    assert ran.events.names[2:-1] == ["mcp_tool_call_started", "mcp_tool_call_failed", *CALLED]
    assert said in ran.events.fields("mcp_tool_call_failed")["error"]
    assert ran.statuses == ["failed", "completed", "completed"]


def test_a_failure_while_disconnecting_is_recorded_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    close_all = McpManager.close_all

    def broken(manager: McpManager) -> None:
        close_all(manager)
        raise MCPError("the pipe is gone")

    monkeypatch.setattr(McpManager, "close_all", broken)
    ran = run([act(finish())], config={"servers": {"cave": cave()}})
    assert ran.result.succeeded
    assert ran.events.fields("mcp_servers_disconnected")["error"] == "the pipe is gone"


class Nothing(msgspec.Struct):
    pass


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason"), [(KeyboardInterrupt(), "interrupted"), (SystemExit("oops"), "failed")]
)
def test_servers_are_disconnected_and_the_end_is_recorded_in_every_exit_path(
    tmp_path: Path, error: BaseException, reason: str
) -> None:
    def boom(params: Nothing, context: ActionContext) -> str:
        raise error

    actions, events = ActionRegistry(), Events()
    actions.add("boom", Nothing, boom)
    with scripted(act(("boom", {}))) as (_, llm):
        config = AgentConfig(llm=llm, servers={"cave": cave()})
        agent = Orchestrator(config, folder=tmp_path / "run", actions=actions, on_event=events)
        with pytest.raises(type(error)):
            agent.run("Do it.")
    assert events.names == ["mcp_servers_connected", "mcp_servers_disconnected"]
    last = [*read_episode(tmp_path / "run" / "trace.jsonl").envelopes][-1]
    assert isinstance(last.body, RunEnded)
    assert last.body.reason == reason
    assert json.loads((tmp_path / "run" / "result.json").read_text())["reason"] == reason


@pytest.mark.parametrize("error", [KeyError("oops"), ZeroDivisionError("oops"), UnsayableError()])
def test_whatever_an_action_raises_fails_its_step_only(error: Exception) -> None:
    def boom(params: Nothing, context: ActionContext) -> str:
        raise error

    actions = ActionRegistry()
    actions.add("boom", Nothing, boom)
    ran = run([act(("boom", {})), act(finish())], actions=actions)
    assert ran.statuses == ["failed", "completed"]
    assert ran.results()[0]["error"].startswith(f"{type(error).__name__}: ")


@pytest.mark.parametrize("where", ["connect_all", "call_tool", "close_all"])
def test_whatever_a_manager_raises_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    close_all = McpManager.close_all

    def broken(manager: McpManager, *args: Any, **more: Any) -> None:
        if where == "close_all":
            close_all(manager)
        raise ValueError("odd")

    monkeypatch.setattr(McpManager, where, broken)
    ran = run([act(call("look")), act(finish())], config={"servers": {"cave": cave()}})
    assert ran.result.succeeded
    event = {
        "connect_all": "mcp_connection_failed",
        "call_tool": "mcp_tool_call_failed",
        "close_all": "mcp_servers_disconnected",
    }[where]
    assert ran.events.fields(event)["error"] == "odd"


def test_the_fields_of_the_events_about_calls() -> None:
    server = cave()
    ran = run(
        [act(call("look", at="door"), call("nothing")), act(finish())], config={"servers": {"cave": server}}
    )
    about = {"step": 1, "server_name": "cave", "tool_name": "look", "arguments": {"at": "door"}}
    started, completed = (next(fields for name, fields in ran.events if name == event) for event in CALLED)
    assert about.items() <= started.items()
    assert about.items() <= completed.items()
    assert (completed["status"], completed["is_error"]) == ("completed", False)
    assert completed["duration_ms"] >= 0
    assert ran.events.fields("mcp_servers_disconnected")["servers"] == ("cave",)


def test_the_log_lines_about_a_call_are_sentences(tmp_path: Path) -> None:
    replies = [act(call("look")), act(finish())]
    run(replies, folder=tmp_path / "run", config={"servers": {"cave": cave()}})
    bodies = [each.body for each in read_episode(tmp_path / "run" / "trace.jsonl").envelopes]
    said = [body.summary() for body in bodies if isinstance(body, McpToolCallStarted | McpToolCallCompleted)]
    assert said[0] == "step 1: calling cave.look"
    assert said[1].startswith("step 1: cave.look gave a result after 0")


@pytest.mark.parametrize("connected", [False, True])
def test_the_prompt_offers_calls_and_skills_only_where_there_are_some(
    tmp_path: Path, connected: bool
) -> None:
    config: dict[str, Any] = {}
    if connected:
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "SKILL.md").write_text("---\ndescription: Notes.\n---\nDo it so.")
        config = {"servers": {"cave": cave()}, "skills": tmp_path}
    system = str(run([act(finish())], config=config).requests[0][0]["content"])
    for name in ("mcp_call", "use_skill"):
        assert (f'"type": "{name}"' in system) == connected


@pytest.mark.slow
def test_an_approval_of_a_tool_is_not_used_for_what_its_server_made_of_it_and_the_model_reads_that() -> None:
    server = faulty("--change-tools")
    replies = [
        act(call("echo", text="a"), call("echo", text="b")),
        act(call("echo", words="c")),
        act(finish()),
    ]
    policy = ToolPolicy(rules=(ToolRule(tools=("cave.*",), verdict="ask"),))
    asked: list[Any] = []

    def approve(questions: Any) -> bool:
        asked.extend(questions)
        return True

    ran = run(replies, config={"servers": {"cave": server}, "policy": policy}, approve=approve)
    assert ran.statuses == ["completed", "failed", "completed", "completed"]
    assert "the tool has changed since" in ran.results(1)[1]["error"]
    assert "The tools have changed." in ran.said(1)
    assert '"words"' in ran.said(1)
    assert "The tools have changed." not in ran.said(2)
    assert len({question.definition_digest for question in asked}) == 2


# --- The run folder ---


def test_the_run_folder_has_events_artifacts_and_the_result(tmp_path: Path) -> None:
    long = "x" * 5000
    server = FakeToolServer("cave")
    server.answers("look", long)
    config = {"servers": {"cave": server}}
    ran = run([act(call("cave.look")), act(finish("ok"))], folder=tmp_path / "run", config=config)
    artifact = tmp_path / "run" / ran.result.steps[0].artifact
    assert artifact.name == "0001-cave.look.json"
    assert json.loads(artifact.read_text())["raw_text"] == long
    assert stat.S_IMODE(artifact.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    names = [line["event_type"] for line in lines]
    assert [
        name for name in names if name in (*CALLED, "mcp_servers_connected", "mcp_servers_disconnected")
    ] == [
        "mcp_servers_connected",
        *CALLED,
        "mcp_servers_disconnected",
    ]
    assert names[0] == "episode_started"
    assert names[-1] == "episode_ended"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["reason"], result["answer"], result["turns"]) == ("finished", "ok", 2)
    assert result["steps"][0]["artifact"] == "artifacts/0001-cave.look.json"


def test_secrets_do_not_reach_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAVE_API_KEY", "sk-very-secret-value")
    server = FakeToolServer("cave")
    server.answers("look", "the key is sk-very-secret-value")
    run([act(call("look")), act(finish())], folder=tmp_path / "run", config={"servers": {"cave": server}})
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) == 5
    assert not [path for path in files if b"sk-very-secret-value" in path.read_bytes()]


def test_a_long_result_loses_its_middle_and_the_model_is_told() -> None:
    server = FakeToolServer("cave")
    server.answers("look", "a" * 300 + "b" * 300)
    limits = msgspec.convert({"result_chars": 200}, type(AgentConfig(llm=None).limits))  # type: ignore[arg-type]
    ran = run([act(call("look")), act(finish())], config={"servers": {"cave": server}, "limits": limits})
    shown = ran.results()[0]["output"]
    assert shown == f"{'a' * 100}… [cut: 400 of 600 characters] …{'b' * 100}"


def test_a_long_text_for_the_user_stays_whole() -> None:
    limits = msgspec.convert({"result_chars": 200}, type(AgentConfig(llm=None).limits))  # type: ignore[arg-type]
    text = "a" * 300 + "b" * 300
    actions = (("respond", {"text": text}), ("note", {"text": text}), finish(text))
    result = run([act(*actions)], config={"limits": limits}).result
    assert (result.responses, result.notes, result.answer) == ((text,), (text,), text)


def test_an_action_that_changes_the_working_directory_moves_neither_workspace_nor_skills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "skills" / "tidy").mkdir(parents=True)
    (tmp_path / "skills" / "tidy" / "SKILL.md").write_text("---\ndescription: Tidy up.\n---\nDust!\n")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)

    def go_up(params: GoUp, context: ActionContext) -> str:
        os.chdir(tmp_path.parent)
        return "up"

    actions = ActionRegistry()
    actions.add("go_up", GoUp, go_up)
    later = act(("write_file", {"path": "a", "content": "x"}), ("use_skill", {"name": "tidy"}), finish())
    config = {"workspace": "work", "skills": "skills"}
    ran = run([act(("go_up", {})), later], config=config, actions=actions)
    assert ran.statuses == ["completed"] * 4
    assert (tmp_path / "work" / "a").read_text() == "x"


@pytest.mark.parametrize("name", ["absent", "x" * 300])  # the second stands for a folder in a closed one
def test_a_workspace_that_is_not_there_or_cannot_be_looked_for_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(MCPConfigError, match="is not a folder"):
        run([], config={"workspace": tmp_path / name})
