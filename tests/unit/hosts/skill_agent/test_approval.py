"""Actions under a policy: denied, asked about, changed, parked and taken up again."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from skill_runs import Ran, act, call, finish, run, scripted

from grue import ApprovalDecision, ApprovalQuestion, ToolPolicy, ToolRule
from grue.errors import MCPConfigError, TraceError
from grue.hosting import read_episode
from grue.hosts.skill_agent import AgentConfig, Orchestrator, RunResult
from grue.hosts.skill_agent.facts import ApprovalsAsked
from grue.protocol.tools.results import NOT_AS_DECIDED
from grue.testing.fake_tools import FakeToolServer

WRITE = ("write_file", {"path": "a.txt", "content": "x"})
ASK = (ToolRule(tools=("agent.write_file", "cave.*"), verdict="ask", reason="it writes"),)


def settings(folder: Path, **policy: Any) -> dict[str, Any]:
    cave = FakeToolServer("cave")
    cave.answers("dig", "a hole")
    rules = policy.pop("rules", ASK)
    return {"workspace": folder, "servers": {"cave": cave}, "policy": ToolPolicy(rules=rules, **policy)}


def ran(folder: Path, *actions: tuple[str, dict[str, Any]], approve: Any = None, **policy: Any) -> Ran:
    return run([act(*actions), act(finish())], config=settings(folder, **policy), approve=approve)


def test_a_coroutine_function_cannot_answer_and_is_refused_at_once(tmp_path: Path) -> None:
    async def approve(questions: tuple[ApprovalQuestion, ...]) -> bool:
        return True

    with pytest.raises(
        MCPConfigError, match="approve= wants a plain function of the questions, not an `async"
    ):
        ran(tmp_path, WRITE, approve=approve)
    with pytest.raises(MCPConfigError, match="not bool"):
        ran(tmp_path, WRITE, approve=True)


def test_all_actions_of_a_reply_are_one_question_and_nothing_runs_before(tmp_path: Path) -> None:
    asked: list[tuple[ApprovalQuestion, ...]] = []

    def approve(questions: tuple[ApprovalQuestion, ...]) -> bool:
        asked.append(questions)
        assert not (tmp_path / "b.txt").exists()
        return True

    rules = (ToolRule(tools=("cave.*",), verdict="ask"),)
    write = ("write_file", {"path": "b.txt", "content": "x"})
    done = ran(tmp_path, write, call("dig", deep=1), call("cave.dig"), approve=approve, rules=rules)
    ((first, second),) = asked
    assert (first.name, first.arguments, second.name) == ("cave.dig", {"deep": 1}, "cave.dig")
    assert done.statuses == ["completed"] * 4


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (True, "completed", ""),
        (False, "denied", "denied: the user does not allow it"),
        (None, "denied", "denied: it needs an approval, and there was none"),
        ("deny", "denied", "denied: not now"),
        ("other", "denied", "denied: it needs an approval, and there was none"),
    ],
)
def test_an_action_is_carried_out_only_if_a_person_says_so(
    tmp_path: Path, answer: object, status: str, said: str
) -> None:
    def approve(questions: tuple[ApprovalQuestion, ...]) -> Any:
        if answer == "deny":
            return [each.deny("not now") for each in questions]
        if answer == "other":
            return []
        return answer

    done = ran(tmp_path, WRITE, approve=approve)
    assert done.statuses[0] == status
    assert done.results()[0].get("error", "") == said
    assert (tmp_path / "a.txt").exists() == (status == "completed")


@pytest.mark.slow
def test_arguments_can_be_changed(tmp_path: Path) -> None:
    def approve(questions: tuple[ApprovalQuestion, ...]) -> list[ApprovalDecision]:
        return [each.change({"path": "c.txt", "content": "y"}) for each in questions]

    assert ran(tmp_path, WRITE, approve=approve).statuses == ["completed"] * 2
    assert (tmp_path / "c.txt").read_text() == "y"
    config = settings(tmp_path)
    server = config["servers"]["cave"]
    run(
        [act(call("dig", deep=1)), act(finish())],
        config=config,
        approve=lambda questions: [each.change({"deep": 2}) for each in questions],
    )
    assert server.calls == [("dig", {"deep": 2})]
    run(
        [act(call("dig", deep=1)), act(finish())],
        config=config,
        approve=lambda questions: [each.change({"deep": True}) for each in questions],
    )
    assert str(server.calls[1:]) == "[('dig', {'deep': True})]", "to Python 1 equals True"


def test_a_denied_action_does_not_end_a_run_that_stops_at_failures(tmp_path: Path) -> None:
    config = {**settings(tmp_path), "on_step_failure": "stop"}
    assert run([act(WRITE), act(finish())], config=config).result.succeeded


def test_a_denied_response_is_not_among_the_responses(tmp_path: Path) -> None:
    rules = (ToolRule(tools=("agent.respond",), verdict="deny", reason="be silent"),)
    done = ran(tmp_path, ("respond", {"text": "Half way."}), ("note", {"text": "x"}), rules=rules)
    assert done.statuses == ["denied", "completed", "completed"]
    assert (done.result.responses, done.result.notes) == ((), ("x",))


def test_limits_of_calls_count_within_a_reply(tmp_path: Path) -> None:
    rules = (ToolRule(tools=("agent.write_file",), max_calls=1),)
    assert ran(tmp_path, WRITE, WRITE, rules=rules).statuses == ["completed", "denied", "completed"]


# --- Parking ---


def parked(folder: Path, *actions: tuple[str, dict[str, Any]], **policy: Any) -> RunResult:
    """Park a run in `run`."""
    config = settings(folder, parking=True, **policy)
    result = run([act(*actions)], folder=folder / "run", config=config).result
    assert result.reason == "parked"
    return result


def resumed(folder: Path, decisions: list[ApprovalDecision], **policy: Any) -> RunResult:
    """Go on with it, in what could be another process."""
    config = settings(folder, parking=True, **policy)
    with scripted(act(finish("went on"))) as (_, llm):
        return Orchestrator(AgentConfig(llm=llm, **config), folder=folder / "run").resume(decisions)


def test_the_object_that_has_parked_a_run_goes_on_with_it(tmp_path: Path) -> None:
    heard: list[str] = []
    with scripted(act(WRITE), act(finish("went on"))) as (_, llm):
        config = AgentConfig(llm=llm, **settings(tmp_path, parking=True))
        agent = Orchestrator(config, folder=tmp_path / "run", on_event=lambda name, _: heard.append(name))
        waiting = agent.run("Write.")
        assert (waiting.reason, heard.count("step_completed")) == ("parked", 0)
        result = agent.resume([question.approve() for question in waiting.questions])
    assert (result.answer, [step.status for step in result.steps]) == ("went on", ["completed", "completed"])
    assert heard.count("step_completed") == 2


def test_a_parked_run_goes_on_with_the_decisions_of_another_process(tmp_path: Path) -> None:
    waiting = parked(tmp_path, ("note", {"text": "first"}), WRITE, call("dig"))
    assert [each.name for each in waiting.questions] == ["agent.write_file", "cave.dig"]
    assert not (tmp_path / "a.txt").exists()
    assert waiting.steps == (), "nothing of the reply has run"
    write, dig = waiting.questions
    result = resumed(tmp_path, [write.approve(), dig.deny("no digging")])
    assert [(step.action, step.status) for step in result.steps] == [
        ("note", "completed"),
        ("write_file", "completed"),
        ("mcp_call", "denied"),
        ("finish", "completed"),
    ]
    assert result.steps[2].error == "denied: no digging"
    assert (result.turns, result.requests) == (2, 2), "the parked reply is not asked for again"


@pytest.mark.slow
def test_without_a_decision_it_waits_on_and_a_decision_about_other_arguments_does_not_count(
    tmp_path: Path,
) -> None:
    (question,) = parked(tmp_path, WRITE).questions
    assert resumed(tmp_path, []).reason == "parked"
    other = replace(question.approve(), arguments_digest="of other arguments")
    assert resumed(tmp_path, [other]).reason == "parked"
    assert resumed(tmp_path, [question.approve()]).succeeded
    with pytest.raises(TraceError, match="it is over"):
        resumed(tmp_path, [question.approve()])


def test_two_questions_can_be_answered_one_at_a_time(tmp_path: Path) -> None:
    write, dig = parked(tmp_path, WRITE, call("dig"), park_for_s=600).questions
    waiting = resumed(tmp_path, [write.approve()], park_for_s=600)
    assert (waiting.reason, waiting.questions) == ("parked", (dig,))
    result = resumed(tmp_path, [dig.approve()], park_for_s=600)
    assert [step.status for step in result.steps] == ["completed"] * 3


@pytest.mark.slow
def test_a_decision_that_was_made_in_time_counts_after_the_other_question_has_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, dig = parked(tmp_path, WRITE, call("dig"), park_for_s=600).questions
    resumed(tmp_path, [write.approve()], park_for_s=600)
    later = time.time() + 601
    monkeypatch.setattr("grue.engine.outside_turns.tool_client.time.time", lambda: later)
    result = resumed(tmp_path, [dig.approve()], park_for_s=600)
    assert [step.status for step in result.steps] == ["completed", "denied", "completed"]


@pytest.mark.parametrize("decided", ["allow then deny", "deny then allow", "over two processes"])
@pytest.mark.slow
def test_a_denial_wins_over_an_approval_of_the_same_action(tmp_path: Path, decided: str) -> None:
    (write, dig) = parked(tmp_path, WRITE, call("dig")).questions
    if decided == "over two processes":
        resumed(tmp_path, [write.approve()])
        decisions = [write.deny("no"), dig.approve()]
    else:
        both = [write.approve(), write.deny("no")]
        decisions = [*(both if decided == "allow then deny" else reversed(both)), dig.approve()]
    result = resumed(tmp_path, decisions)
    assert [step.status for step in result.steps] == ["denied", "completed", "completed"]


def killed_after(steps: float, folder: Path, config: dict[str, Any]) -> None:
    """Leave the trace of a run with two calls of `dig`, cut after so many steps.

    A half: in the next step. 0: before the calls were planned.
    """
    run([act(call("dig"), call("dig")), act(finish())], folder=folder / "run", config=config)
    trace = folder / "run" / "trace.jsonl"
    lines = trace.read_bytes().splitlines(keepends=True)
    last = b'"skillagent.StepEnded"' if steps == int(steps) else b'"skillagent.StepStarted"'
    ends = [at for at, line in enumerate(lines) if last in line]
    planned = next(at for at, line in enumerate(lines) if b'"skillagent.ActionsPlanned"' in line)
    trace.write_bytes(b"".join(lines[: ends[math.ceil(steps) - 1] + 1 if steps else planned]))


def test_a_limit_of_calls_counts_over_a_kill(tmp_path: Path) -> None:
    rules = (ToolRule(tools=("cave.dig",), max_calls=1),)
    killed_after(1, tmp_path, settings(tmp_path, rules=rules))
    config = settings(tmp_path, rules=rules)
    with scripted(act(finish("went on"))) as (_, llm):
        result = Orchestrator(AgentConfig(llm=llm, **config), folder=tmp_path / "run").resume()
    assert [step.status for step in result.steps] == ["completed", "denied", "completed"]
    assert config["servers"]["cave"].calls == []


@pytest.mark.parametrize(
    ("steps", "statuses"),
    [(1, ["completed", "denied"]), (0.5, ["interrupted", "denied"]), (0, ["denied", "denied"])],
)
@pytest.mark.slow
def test_a_planned_call_is_not_made_if_its_tool_has_changed_over_a_kill(
    tmp_path: Path, steps: float, statuses: list[str]
) -> None:
    killed_after(steps, tmp_path, settings(tmp_path, rules=()))
    config = settings(tmp_path, rules=())
    cave = config["servers"]["cave"]
    cave.answers("dig", "a hole", description="Digs everywhere.")
    with scripted(act(call("dig")), act(finish("went on"))) as (server, llm):
        result = Orchestrator(AgentConfig(llm=llm, **config), folder=tmp_path / "run").resume()
        told = [str(request.messages[-1]["content"]) for request in server.requests]
    assert [step.status for step in result.steps] == [*statuses, "completed", "completed"]
    assert NOT_AS_DECIDED in result.steps[1].error
    assert "Digs everywhere." in told[0], "what the model calls now is the tool that it has been told of"
    assert len(cave.calls) == 1


@pytest.mark.slow
def test_a_planned_call_that_is_not_accepted_any_more_fails_its_step(tmp_path: Path) -> None:
    """Earlier versions accepted an unknown field beside the tool's name."""
    killed_after(1, tmp_path, settings(tmp_path, rules=()))
    trace = tmp_path / "run" / "trace.jsonl"
    trace.write_bytes(trace.read_bytes().replace(b'"params":{', b'"params":{"why":"to dig",'))
    with scripted(act(finish("went on"))) as (_, llm):
        config = AgentConfig(llm=llm, **settings(tmp_path, rules=()))
        result = Orchestrator(config, folder=tmp_path / "run").resume()
    assert [step.status for step in result.steps] == ["completed", "failed", "completed"]
    assert "unknown field `why`" in result.steps[1].error


@pytest.mark.parametrize("verdict", ["reject", "Deny", "", None, "change"])
def test_a_malformed_verdict_is_a_denial(tmp_path: Path, verdict: Any) -> None:
    done = ran(tmp_path, WRITE, approve=lambda asked: [replace(asked[0].approve(), verdict=verdict)])
    assert done.statuses[0] == "denied"


def test_what_a_callback_changes_in_a_question_changes_nothing_else(tmp_path: Path) -> None:
    def approve(questions: tuple[ApprovalQuestion, ...]) -> bool:
        questions[0].arguments["path"] = "***"
        return True

    done = run(
        [act(WRITE), act(finish())], folder=tmp_path / "run", config=settings(tmp_path), approve=approve
    )
    assert done.statuses[0] == "completed"
    assert (tmp_path / "a.txt").exists()
    bodies = [each.body for each in read_episode(tmp_path / "run" / "trace.jsonl").envelopes]
    (asked,) = (each for each in bodies if isinstance(each, ApprovalsAsked))
    assert asked.questions[0].arguments == {"path": "a.txt", "content": "x"}


@pytest.mark.slow
def test_an_expired_question_is_denied(tmp_path: Path) -> None:
    (question,) = parked(tmp_path, WRITE, park_for_s=0.000001).questions
    result = resumed(tmp_path, [question.approve()], park_for_s=0.000001)
    assert result.steps[0].status == "denied"
    assert not (tmp_path / "a.txt").exists()


def test_what_was_asked_and_decided_is_in_the_trace(tmp_path: Path) -> None:
    (question,) = parked(tmp_path, WRITE).questions
    resumed(tmp_path, [question.approve()])
    bodies = [each.body for each in read_episode(tmp_path / "run" / "trace.jsonl").envelopes]
    first, second = (each for each in bodies if isinstance(each, ApprovalsAsked))
    assert first.summary() == "agent.write_file: no answer (parked)"
    assert second.summary() == "agent.write_file: approve"
