"""Resuming a run from its trace, cut off where a kill could have cut it off."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from skill_runs import act, call, finish, run, scripted

from grue import MCPError, ToolAnnotations
from grue.errors import MCPConfigError, TraceError
from grue.hosts.skill_agent import (
    ActionContext,
    ActionRegistry,
    AgentConfig,
    Orchestrator,
    RunLimits,
    RunResult,
)
from grue.hosts.skill_agent.run import read_run
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import LlmReply, ScriptedLlmServer

REPLIES = (
    act(("list_files", {}), ("add", {"line": "one"}), ("note", {"text": "n"})),
    act(("add", {"line": "two"})),
    act(finish("done")),
)


class Line(msgspec.Struct):
    line: str


def adding(file: Path, annotations: ToolAnnotations | None = None) -> ActionRegistry:
    """An action with an effect that two calls would show."""

    def add(params: Line, context: ActionContext) -> str:
        with file.open("a") as out:
            out.write(f"{params.line}\n")
        return "added"

    actions = ActionRegistry()
    actions.add("add", Line, add, annotations=annotations)
    return actions


def whole(folder: Path) -> list[dict[str, Any]]:
    """Run it to its end, and return the lines of its trace."""
    run(list(REPLIES), folder=folder / "run", actions=adding(folder / "out"), config={"workspace": folder})
    return [json.loads(line) for line in (folder / "run" / "trace.jsonl").read_text().splitlines()]


def cut(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Leave what a process that was killed then would have left."""
    (folder / "run" / "trace.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (folder / "run" / "result.json").unlink(missing_ok=True)


def until(lines: list[dict[str, Any]], kind: str, **fields: object) -> list[dict[str, Any]]:
    """The lines up to the first message of a kind, that included."""
    for number, line in enumerate(lines):
        body = line.get("body", {})
        if body.get("type") == kind and all(body.get(name) == value for name, value in fields.items()):
            return lines[: number + 1]
    raise AssertionError(f"no {kind}")


def resume(
    folder: Path, *replies: LlmReply, annotations: ToolAnnotations | None = None, **config: Any
) -> tuple[RunResult, ScriptedLlmServer]:
    with scripted(*replies) as (server, llm):
        settings = AgentConfig(llm=llm, workspace=folder, **config)
        actions = adding(folder / "out", annotations)
        return Orchestrator(settings, folder=folder / "run", actions=actions).resume(), server


@pytest.mark.slow
def test_an_action_with_effects_that_was_under_way_is_reported_and_not_repeated(tmp_path: Path) -> None:
    lines = whole(tmp_path)
    cut(tmp_path, until(lines, "skillagent.StepStarted", number=2))
    (tmp_path / "out").write_text("one\n")
    result, server = resume(tmp_path, *REPLIES[1:])
    assert (tmp_path / "out").read_text() == "one\ntwo\n"
    assert [step.status for step in result.steps] == [
        "completed",
        "interrupted",
        "completed",
        "completed",
        "completed",
    ]
    told = str(server.requests[0].messages[-1]["content"])
    assert "it may have had an effect, and is not repeated" in told
    assert told.startswith("The run was interrupted, and goes on now.")


@pytest.mark.parametrize("annotations", [ToolAnnotations(read_only=True), ToolAnnotations(idempotent=True)])
@pytest.mark.slow
def test_one_that_is_read_only_or_idempotent_is_carried_out_again(
    tmp_path: Path, annotations: ToolAnnotations
) -> None:
    lines = whole(tmp_path)
    cut(tmp_path, until(lines, "skillagent.StepStarted", number=2))
    (tmp_path / "out").write_text("")
    result, _ = resume(tmp_path, *REPLIES[1:], annotations=annotations)
    assert [step.status for step in result.steps] == ["completed"] * 5
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


@pytest.mark.slow
def test_a_reply_that_was_paid_for_is_not_asked_for_again(tmp_path: Path) -> None:
    lines = whole(tmp_path)
    cut(tmp_path, until(lines, "TurnCompleted", turn=2))
    (tmp_path / "out").write_text("one\n")
    result, server = resume(tmp_path, REPLIES[2])
    assert (tmp_path / "out").read_text() == "one\ntwo\n"
    assert len(server.requests) == 1
    assert (result.turns, result.requests) == (3, 3)


@pytest.mark.slow
def test_from_every_message_on_it_ends_in_the_same_steps(tmp_path: Path) -> None:
    """The model repeats a reply that was lost; every action is carried out once or reported."""
    lines = whole(tmp_path)
    last = len(until(lines, "EpisodeEnded"))
    for count in range(3, last, 3):
        cut(tmp_path, lines[:count])
        planned = sum(line.get("body", {}).get("type") == "TurnCompleted" for line in lines[:count])
        result, _ = resume(tmp_path, *REPLIES[planned:])
        assert result.succeeded, count
        assert [step.action for step in result.steps] == ["list_files", "add", "note", "add", "finish"]
        assert {step.status for step in result.steps} <= {"completed", "interrupted"}


@pytest.mark.slow
def test_changed_tools_are_told(tmp_path: Path) -> None:
    lines = whole(tmp_path)
    cut(tmp_path, until(lines, "skillagent.StepEnded"))
    server = FakeToolServer("cave")
    server.answers("look", "dark")
    result, llm = resume(tmp_path, act(call("look")), act(finish()), servers={"cave": server})
    assert "The tools have changed.\n\nMCP_TOOLS:\n" in str(llm.requests[0].messages[-1]["content"])
    assert result.succeeded


@pytest.mark.slow
def test_a_call_that_was_decided_after_the_model_had_read_of_the_change_is_made(tmp_path: Path) -> None:
    cut(tmp_path, until(whole(tmp_path), "skillagent.StepEnded"))
    server = FakeToolServer("cave")
    server.answers("look", "dark")
    resume(tmp_path, act(call("look")), act(finish()), servers={"cave": server})
    lines = [json.loads(line) for line in (tmp_path / "run" / "trace.jsonl").read_text().splitlines()]
    cut(tmp_path, until(lines, "TurnCompleted", turn=2))
    result, llm = resume(tmp_path, act(finish()), servers={"cave": server})
    assert [step.status for step in result.steps if step.action == "mcp_call"] == ["completed"]
    assert "The tools have changed." not in str(llm.requests[0].messages[-1]["content"])


def test_what_cannot_be_resumed_says_why(tmp_path: Path) -> None:
    whole(tmp_path)
    with pytest.raises(TraceError, match=r"it is over \(the task is done\)"):
        read_run(tmp_path / "run")
    with pytest.raises(MCPError, match="needs the run's folder"), scripted() as (_, llm):
        Orchestrator(AgentConfig(llm=llm)).resume()


@pytest.mark.slow
def test_a_run_with_an_action_that_the_program_does_not_have_can_be_resumed_later(
    tmp_path: Path,
) -> None:
    cut(tmp_path, until(whole(tmp_path), "skillagent.ActionsPlanned", turn=2))
    (tmp_path / "out").write_text("one\n")
    with pytest.raises(MCPConfigError, match="planned the action 'add'"), scripted() as (_, llm):
        Orchestrator(AgentConfig(llm=llm, workspace=tmp_path), folder=tmp_path / "run").resume()
    result, _ = resume(tmp_path, *REPLIES[2:])
    assert result.succeeded
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


@pytest.mark.slow
def test_a_run_that_reached_a_limit_goes_on_with_a_higher_one(tmp_path: Path) -> None:
    config = {"workspace": tmp_path, "limits": RunLimits(max_turns=1)}
    first = run(list(REPLIES[:1]), folder=tmp_path / "run", actions=adding(tmp_path / "out"), config=config)
    assert first.result.reason == "turn_limit"
    result, _ = resume(tmp_path, *REPLIES[1:])
    assert result.succeeded
    assert (tmp_path / "out").read_text() == "one\ntwo\n"


def test_a_step_that_the_programs_on_event_breaks_off_is_in_the_trace_and_not_repeated(
    tmp_path: Path,
) -> None:
    def on_event(name: str, _: object) -> None:
        if name == "step_completed":
            raise RuntimeError("the program's own")

    with scripted(REPLIES[1], REPLIES[2]) as (_, llm):
        settings, folder = AgentConfig(llm=llm, workspace=tmp_path), tmp_path / "run"
        actions = adding(tmp_path / "out")
        with pytest.raises(RuntimeError, match="own"):
            Orchestrator(settings, folder=folder, actions=actions, on_event=on_event).run("Add.")
    result, _ = resume(tmp_path, REPLIES[2])
    assert [(step.action, step.status) for step in result.steps] == [
        ("add", "completed"),
        ("finish", "completed"),
    ]
    assert (tmp_path / "out").read_text() == "two\n"
