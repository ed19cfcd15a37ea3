"""Turns that wait for a person: parked, and resumed by another process, whatever happens to either."""

import contextlib
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from parked_turns import ASK_BEFORE_DELETING, DELETE, Job, Stage, runner, wait_until_past

from grue import (
    ApprovalQuestion,
    Budget,
    FailurePolicy,
    FunctionTools,
    Recorder,
    Runner,
    ToolPolicy,
    ToolRule,
    TraceWriter,
    TurnRequest,
    parked_turns,
)
from grue.engine.conversations.recorded_conversation import resume_conversation
from grue.engine.episode_past import Past
from grue.errors import (
    ActorCrashed,
    ApprovalPending,
    BudgetSpent,
    MCPConfigError,
    MCPServerStartupError,
    NothingToResume,
    TraceError,
)
from grue.messages import (
    AssistantReply,
    CompletionReceived,
    RunTurn,
    ToolCalled,
    ToolMessage,
    ToolSkipped,
    TurnCompleted,
    TurnParked,
    TurnResumed,
    Usage,
    UserText,
)
from grue.protocol.turn.prices import Spent
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tracing.facts import EpisodeStarted
from grue.tracing.reading import read_episode
from grue.tracing.replay import Changes, render, replay

KEPT = "Error: Tool call denied: keep it"
MESSAGES = 17  # what is recorded of a turn from its resume on


def model(request: LlmRequest) -> LlmReply:
    """Look, then delete, then say what came of it."""
    told = [message["content"] for message in request.messages if message["role"] == "tool"]
    if not told:
        return tool_calls_reply(("box.look", {}))
    if len(told) == 1:
        return tool_calls_reply(("box.look", {}), DELETE)
    return text_reply(f"The tool said: {told[-1]}")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


@pytest.fixture
def llm() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(model) as server:
        yield server


@pytest.fixture
def job(tmp_path: Path, llm: ScriptedLlmServer) -> Job:
    return Job(action="run", folder=str(tmp_path), base_url=llm.base_url)


def deleted(job: Job) -> list[str]:
    file = Path(job.folder, "deleted")
    return file.read_text().split() if file.exists() else []


def bodies(job: Job, *kinds: type) -> list[Any]:
    return [item.body for item in read_episode(job.folder).envelopes if isinstance(item.body, kinds)]


@pytest.mark.slow
def test_a_parked_turn_is_resumed_by_another_process(job: Job, stage: Stage) -> None:
    (said,) = stage.do(job)
    assert said.startswith("ApprovalPending: Turn 1 waits for an approval of box.delete.")
    assert "their state is lost" in said
    (parked,) = parked_turns(job.folder)
    (question,) = parked.questions
    assert (question.name, question.arguments, question.reason) == ("box.delete", DELETE[1], "it deletes")
    assert deleted(job) == []
    (said,) = stage.do(replace(job, action="resume"))
    assert said == "The tool said: deleted"
    assert deleted(job) == ["old.txt"]
    recorded = [type(item.body) for item in read_episode(job.folder).envelopes]
    assert len(recorded) - recorded.index(TurnResumed) == MESSAGES
    (end,) = bodies(job, TurnCompleted)
    assert (end.requests, end.iterations, len(end.tool_calls)) == (3, 2, 3)
    assert end.usage == sum((each.usage for each in bodies(job, CompletionReceived)), start=type(end.usage)())
    assert parked_turns(job.folder) == []


@pytest.mark.slow
def test_a_denial_is_told_to_the_model_and_skips_nothing_else(job: Job, stage: Stage) -> None:
    stage.do(job)
    (said,) = stage.do(replace(job, action="resume", decide="deny"))
    assert said == f"The tool said: {KEPT}"
    assert deleted(job) == []
    assert [called.tool for called in bodies(job, ToolCalled)] == ["look", "look"]
    assert bodies(job, ToolSkipped) == []


@pytest.mark.slow
def test_changed_arguments_are_used_and_told_to_the_model(job: Job, stage: Stage) -> None:
    stage.do(job)
    (said,) = stage.do(replace(job, action="resume", decide="change"))
    assert deleted(job) == ["new.txt"]
    assert 'The user changed the arguments of this call to {"name":"new.txt"}' in said


@pytest.mark.slow
def test_an_expired_question_is_denied(job: Job, stage: Stage) -> None:
    job = replace(job, park_for_s=0.01)
    stage.do(job)
    (parked,) = parked_turns(job.folder)
    assert parked.expires_at is not None
    wait_until_past(parked.expires_at)
    (said,) = stage.do(replace(job, action="resume"))
    assert "Tool call denied: the question about it has expired" in said
    assert deleted(job) == []
    assert [resumed.expired for resumed in bodies(job, TurnResumed)] == [True]


def test_two_decisions_at_once_are_used_once(job: Job, stage: Stage) -> None:
    stage.do(job)
    said = stage.do(*[replace(job, action="resume")] * 2)
    assert sorted(words.split(":")[0] for words in said) in (
        ["NothingToResume", "The tool said"],
        ["The tool said", "TraceError"],
    )
    assert deleted(job) == ["old.txt"]
    assert len(bodies(job, TurnResumed)) == 1


@pytest.mark.slow
def test_a_park_is_consumed_once(job: Job, stage: Stage) -> None:
    stage.do(job)
    stage.do(replace(job, action="resume"))
    (said,) = stage.do(replace(job, action="resume"))
    assert said.startswith("NothingToResume: Turn 1 of")
    assert "it ended (answered, after it was resumed)" in said
    assert deleted(job) == ["old.txt"]


@pytest.mark.slow
def test_a_changed_definition_is_asked_about_again(job: Job, stage: Stage) -> None:
    stage.do(job)
    changed = replace(job, action="resume", description="Delete a file, and another one.")
    (said,) = stage.do(changed)
    assert said.startswith("ApprovalPending")
    assert deleted(job) == []
    (said,) = stage.do(changed)
    assert deleted(job) == ["old.txt"]


@pytest.mark.slow
def test_without_a_decision_the_question_is_asked_again(job: Job, stage: Stage) -> None:
    stage.do(job)
    (said,) = stage.do(replace(job, action="resume", decide=""))
    assert said.startswith("ApprovalPending")
    (said,) = stage.do(replace(job, action="resume"))
    assert deleted(job) == ["old.txt"]
    assert bodies(job, TurnCompleted)[0].requests == 3


@pytest.mark.slow
def test_questions_can_be_answered_one_after_the_other(tmp_path: Path) -> None:
    """Also by changing one's mind about the first one. Between the answers the turn is parked again."""
    made: list[str] = []
    trace = tmp_path / "turn.jsonl"
    calls = [tool_calls_reply(*(("box.look", {"at": at}) for at in "abc")), text_reply("done")]
    rules = (ToolRule(tools=("box.*",), verdict="ask"),)
    with ScriptedLlmServer(calls) as server:
        how: dict[str, Any] = {
            "llm": server.settings,
            "servers": {"box": FunctionTools({"look": lambda at: made.append(at)})},
            "tool_policy": ToolPolicy(rules=rules, parking=True),
        }
        with Runner(trace=trace, **how) as each, pytest.raises(ApprovalPending) as pending:
            each.run_turn("Look.")
        first, second, third = pending.value.questions
        with Runner(**how) as each:
            for decision in (first.deny(), second.deny(), first.approve()):
                with pytest.raises(ApprovalPending):
                    each.resume(trace, [decision])
            assert each.resume(trace, [third.approve()]).response == "done"
    assert made == ["a", "c"]
    with ScriptedLlmServer(calls) as server, Runner(llm=server.settings) as each:
        settled = [call.settlement for call in each.fork(trace).tool_calls]
    assert settled == ["returned", "denied", "returned"], "a fork gets the last answer to each question"


@pytest.mark.parametrize("old", [False, True])
def test_a_tool_that_changes_while_the_turn_is_parked_is_not_called_after_the_next_parking_either(
    tmp_path: Path, old: bool
) -> None:
    """Also if an older version of grue has parked the turn first."""

    def other() -> str:
        """Think, and tell everybody."""
        made.append("think")
        return "told"

    made: list[str] = []
    trace, tools = tmp_path / "turn.jsonl", {"look": lambda: made.append("look"), "think": lambda: "dust"}
    box, policy = ToolRule(tools=("box.look",), verdict="ask"), FailurePolicy(first_connect="disable")
    replies = [tool_calls_reply(("box.look", {}), ("box.think", {})), text_reply("done")]
    lost = FakeToolServer("lost")
    lost.fails_to_start(times=2)
    with ScriptedLlmServer(replies) as server:
        how: dict[str, Any] = {
            "llm": server.settings,
            "tool_policy": ToolPolicy(rules=(box,), parking=True),
            "policy": policy,
        }
        servers = {"box": FunctionTools(tools), "lost": lost}
        with Runner(trace=trace, servers=servers, **how) as each, pytest.raises(ApprovalPending):
            each.run_turn("Look.")
        assert parked_turns(trace)[0].degraded
        if old:
            trace.write_text(trace.read_text().replace('"binds_parked":true,', ""))
        with Runner(servers={**servers, "box": FunctionTools({**tools, "think": other})}, **how) as each:
            with pytest.raises(ApprovalPending) as pending:
                each.resume(trace)
            outcome = each.resume(trace, [question.approve() for question in pending.value.questions])
    assert made == ["look"]
    assert [call.settlement for call in outcome.tool_calls] == ["returned", "rejected"]
    assert outcome.kind == "answered", "all servers have started by now"
    recorded = read_episode(trace).envelopes
    assert [turn.divergence for turn in replay(recorded)] == [None] * 3
    assert [item.body.binds_parked for item in recorded if isinstance(item.body, RunTurn)] == [
        not old,
        True,
        True,
    ]


@pytest.mark.parametrize("same_runner", [True, False])
def test_a_turn_after_a_resume_leaves_the_other_parked_turns_of_the_trace(
    tmp_path: Path, same_runner: bool
) -> None:
    def model(request: LlmRequest) -> LlmReply:
        asks = request.messages[-1]["content"] == "Look."
        return tool_calls_reply(("box.look", {})) if asks else text_reply("done")

    trace, rule = tmp_path / "turn.jsonl", ToolRule(tools=("box.*",), verdict="ask")
    with ScriptedLlmServer(model) as server, contextlib.ExitStack() as open_:
        how: dict[str, Any] = {
            "llm": server.settings,
            "servers": {"box": FunctionTools({"look": lambda: "dust"})},
            "tool_policy": ToolPolicy(rules=(rule,), parking=True),
        }
        each = open_.enter_context(Runner(trace=trace, **how))
        for _ in range(3):
            with pytest.raises(ApprovalPending):
                each.run_turn("Look.")
        if not same_runner:
            each.close()
            each = open_.enter_context(Runner(**how))
        for turn in (1, 2):
            parked = parked_turns(trace)[0]
            each.resume(trace, [question.approve() for question in parked.questions], turn=turn)
            assert each.turn == turn
            assert each.run_turn("Hello.").turn == each.turn == 3 + turn
        assert [left.turn for left in parked_turns(trace)] == [3]


def test_threads_resume_turns_of_one_trace_with_one_runner(tmp_path: Path) -> None:
    def model(request: LlmRequest) -> LlmReply:
        told = request.messages[-1]["role"] == "tool"
        return text_reply("done") if told else tool_calls_reply(("box.look", {}))

    trace, turns = tmp_path / "turn.jsonl", 4
    with ScriptedLlmServer(model) as server, ThreadPoolExecutor(turns) as threads:
        how: dict[str, Any] = {
            "llm": server.settings,
            "servers": {"box": FunctionTools({"look": lambda: "dust"})},
            "tool_policy": ToolPolicy(rules=(ToolRule(tools=("box.look",), verdict="ask"),), parking=True),
        }
        with Runner(trace=trace, **how) as each:
            for _ in range(turns):
                with pytest.raises(ApprovalPending):
                    each.run_turn("Look.")
        with Runner(**how) as each:
            begun = threading.Barrier(turns)

            def resume(parked: TurnParked) -> str:
                begun.wait()
                yes = [question.approve() for question in parked.questions]
                return each.resume(trace, yes, turn=parked.turn).response

            assert list(threads.map(resume, parked_turns(trace))) == ["done"] * turns
    assert parked_turns(trace) == []


def test_a_program_may_change_its_directory_before_it_parks_a_turn_or_resumes_it(
    tmp_path: Path, llm: ScriptedLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with Runner(
        llm=llm.settings,
        servers={"box": FunctionTools({"delete": lambda name: "deleted", "look": lambda: "dust"})},
        tool_policy=ToolPolicy(rules=(ToolRule(tools=("box.delete",), verdict="ask"),), parking=True),
        trace="turn.jsonl",
    ) as each:
        talk = each.conversation("Tidy up.", path="talk.jsonl")
        monkeypatch.chdir(tmp_path / "other")
        with pytest.raises(ApprovalPending) as pending:
            talk.ask("Now.")
        decisions = [question.approve() for question in pending.value.questions]
        trace = tmp_path / "turn.jsonl"
        assert each.resume(trace, decisions).response == "The tool said: deleted"
    begun = [item.body.history for item in read_episode(trace).envelopes if isinstance(item.body, RunTurn)]
    assert [past and past.file for past in begun] == [str(tmp_path / "talk.jsonl")] * 2


def test_resume_refuses_what_is_no_decision(tmp_path: Path, llm: ScriptedLlmServer) -> None:
    with Runner(llm=llm.settings) as each:
        for given in (True, "yes", [True]):
            with pytest.raises(
                MCPConfigError, match=r"wants decisions, \[question.approve\(\), \.\.\.\], not"
            ):
                each.resume(tmp_path / "t.jsonl", given)  # type: ignore[arg-type]
        with pytest.raises(MCPConfigError, match="turn= wants a number, not '1'"):
            each.resume(tmp_path / "t.jsonl", turn="1")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_later_turn_with_the_same_number_does_not_hide_a_parked_one(tmp_path: Path) -> None:
    def model(request: LlmRequest) -> LlmReply:
        asked = str(request.messages[-1]["content"])
        return tool_calls_reply(("box.look", {"at": asked})) if asked[0] == "a" else text_reply("done")

    trace, rule = tmp_path / "turn.jsonl", ToolRule(tools=("box.*",), verdict="ask")
    how: dict[str, Any] = {
        "servers": {"box": FunctionTools({"look": lambda at: f"dust at {at}"})},
        "tool_policy": ToolPolicy(rules=(rule,), parking=True),
    }
    with ScriptedLlmServer(model) as server:
        with Runner(llm=server.settings, trace=trace, **how) as each:
            with pytest.raises(ApprovalPending):
                each.run_turn("a1")
            for texts in (["b"], ["a2"], ["c"]):
                list(each.map(texts))  # numbers its turns from 1 each time
        with Runner(llm=server.settings, **how) as each:
            for at in ("a2", "a1"):
                (parked,) = parked_turns(trace)
                (question,) = parked.questions
                assert (parked.turn, question.arguments) == (1, {"at": at})
                outcome = each.resume(trace, [question.approve()])
                assert outcome.tool_calls[0].result.content == f"dust at {at}"
        assert parked_turns(trace) == []


def test_an_observer_that_raises_when_a_turn_is_resumed_is_named(job: Job) -> None:
    def observe(envelope: Any, line: bytes) -> None:
        if isinstance(envelope.body, TurnResumed):
            raise LookupError("boom")

    with runner(job, trace=True) as made:
        with pytest.raises(ApprovalPending):
            made.run_turn(TurnRequest(system="s", user="Tidy up."))
        made.recorder.add(observe)
        with pytest.raises(ActorCrashed, match=r"in the observer .*observe") as crash:
            made.resume(job.folder)
    assert isinstance(crash.value.__cause__, LookupError)


def test_a_turn_of_this_process_is_resumed_and_counted_once(job: Job) -> None:
    with runner(job, trace=True) as made:
        with pytest.raises(ApprovalPending) as pending:
            made.run_turn(TurnRequest(system="s", user="Tidy up.", turn_timeout_s=60.0))
        assert (pending.value.turn, pending.value.expires_at) == (1, None)
        decisions = [question.approve() for question in pending.value.questions]
        outcome = made.resume(job.folder, decisions)
        assert made.spent.requests == outcome.requests == 3
        assert made.spent.tokens == outcome.usage.input_tokens + outcome.usage.output_tokens
        with pytest.raises(NothingToResume):
            made.resume(job.folder, decisions)
    # All of the turn, also what was said before it was parked.
    first_said, *_, last_said = outcome.said
    assert (first_said, last_said) == (UserText("Tidy up."), AssistantReply(content=outcome.response))
    called = [
        call.call_id for item in outcome.said if isinstance(item, AssistantReply) for call in item.tool_calls
    ]
    assert [item.call_id for item in outcome.said if isinstance(item, ToolMessage)] == called
    assert len(called) == len(outcome.tool_calls) == 3
    first, second = bodies(job, RunTurn)
    assert 0 < second.limits.turn_timeout_s < first.limits.turn_timeout_s
    recorded = read_episode(job.folder).envelopes
    for changes, says in (
        (Changes(), "identical: 1 turn, "),
        (Changes(system="t"), "different in 1 of 1 turn, "),
    ):
        *_, counts = render(replay(recorded, changes), changes)
        assert counts.startswith(says)


def test_the_runner_that_parked_a_turn_keeps_it_parked_while_its_server_is_down(tmp_path: Path) -> None:
    """As another runner does. Its other turns go on without the server, as after any later connect."""
    trace, box = tmp_path / "turn.jsonl", FakeToolServer("box")
    box.answers("delete", "deleted")
    replies = [tool_calls_reply(DELETE), text_reply("no box"), text_reply("done")]
    policy = ToolPolicy(rules=(ToolRule(**ASK_BEFORE_DELETING),), parking=True)
    with (
        ScriptedLlmServer(replies) as server,
        Runner(llm=server.settings, servers={"box": box}, tool_policy=policy, trace=trace) as made,
    ):
        made.recorder.record(EpisodeStarted(episode_id="e", model="m"), sender="host")
        with pytest.raises(ApprovalPending) as pending:
            made.run_turn("Tidy up.")
        decisions = [question.approve() for question in pending.value.questions]
        box.fails_to_start(times=4)
        with pytest.raises(MCPServerStartupError):
            made.resume(trace, decisions)
        (parked,) = parked_turns(trace)
        assert (Past.read(trace).parked, Past.read(trace).spent) == (parked, Spent())
        assert [question.approve() for question in parked.questions] == decisions
        assert made.run_turn("Look.").kind == "degraded", "the second of two attempts has disabled the server"
        with pytest.raises(MCPServerStartupError):
            made.resume(trace, decisions)
        assert (Past.read(trace).parked, Past.read(trace).spent.requests) == (parked, 1)
        outcome = made.resume(trace, decisions)
        assert parked_turns(trace) == []
        assert (Past.read(trace).parked, Past.read(trace).spent) == (None, made.spent)
    assert (outcome.response, [call.settlement for call in outcome.tool_calls]) == ("done", ["returned"])
    assert [turn.divergence for turn in replay(read_episode(trace).envelopes)] == [None] * 5


def test_the_runners_budget_holds_for_a_resumed_turn(job: Job, llm: ScriptedLlmServer) -> None:
    with runner(job, trace=True) as made:
        made.budget = Budget(requests=3)
        with pytest.raises(ApprovalPending) as pending:
            made.run_turn(TurnRequest(system="s", user="Tidy up."))
        decisions = [question.approve() for question in pending.value.questions]
        made.spent = made.spent.plus(1, Usage())  # by other turns, while this one was parked
        with pytest.raises(BudgetSpent, match=r"Turn 1 cannot be resumed: .* 3 of 3 requests\.\nRaise the"):
            made.resume(job.folder, decisions)
        assert bodies(job, TurnResumed) == []
        made.budget = Budget(requests=4)
        assert made.resume(job.folder, decisions).response == "The tool said: deleted"
        assert made.spent.requests == len(llm.requests) + 1 == 4


def test_each_turn_of_another_process_is_counted_as_a_whole(tmp_path: Path) -> None:
    """Also the second one that a runner resumes from the same trace."""
    script = [
        *(tool_calls_reply(("box.look", {})) for _ in range(2)),
        *(text_reply("done") for _ in range(2)),
    ]
    with ScriptedLlmServer(script) as server:
        how: dict[str, Any] = {
            "llm": server.settings,
            "servers": {"box": FunctionTools({"look": lambda: "dust"})},
            "tool_policy": ToolPolicy(rules=(ToolRule(verdict="ask"),), parking=True),
        }
        questions: list[ApprovalQuestion] = []
        with Runner(trace=tmp_path / "turns.jsonl", **how) as each:
            for _ in range(2):
                with pytest.raises(ApprovalPending) as pending:
                    each.run_turn("Look.")
                questions += pending.value.questions
        with Runner(**how) as each:
            for number, question in enumerate(questions, start=1):
                each.resume(tmp_path / "turns.jsonl", [question.approve()], turn=number)
                assert each.spent.requests == 2 * number


def test_the_budget_of_another_runner_holds_beside_the_recorded_limits(
    job: Job, stage: Stage, llm: ScriptedLlmServer
) -> None:
    stage.do(job)
    (parked,) = parked_turns(job.folder)
    assert (parked.requests, parked.usage.input_tokens + parked.usage.output_tokens) == (2, 30)
    decisions = [question.approve() for question in parked.questions]
    for spent in (Budget(requests=2), Budget(tokens=30)):
        with runner(job, trace=False) as made:
            made.budget = spent
            with pytest.raises(BudgetSpent, match="Turn 1 cannot be resumed"):
                made.resume(job.folder, decisions)
    assert len(llm.requests) == 2
    with runner(job, trace=False) as made:
        made.budget = Budget(requests=3, tokens=1000)
        outcome = made.resume(job.folder, decisions)
        assert made.spent.requests == 3
    assert (outcome.kind, outcome.reason, outcome.requests) == ("forced", "budget", 3)
    first, second = (each.limits for each in bodies(job, RunTurn))
    assert (first.budget, second.budget) == (Budget(), Budget(requests=3, tokens=1000))
    assert replace(second, budget=first.budget, turn_timeout_s=first.turn_timeout_s) == first


def test_a_turn_is_resumed_in_the_callers_event_loop(job: Job) -> None:
    async def park_and_resume() -> str:
        with runner(job, trace=True) as made:
            with pytest.raises(ApprovalPending) as pending:
                await made.run_turn_async(TurnRequest(system="s", user="Tidy up."))
            decisions = [question.approve() for question in pending.value.questions]
            outcome = await made.resume_async(job.folder, decisions)
            with pytest.raises(NothingToResume):
                await made.resume_async(job.folder, decisions)
            return str(outcome.response)

    assert anyio.run(park_and_resume) == "The tool said: deleted"
    assert deleted(job) == ["old.txt"]


@pytest.mark.slow
def test_a_running_turn_is_not_resumed(job: Job) -> None:
    asked = threading.Event()
    go_on = threading.Event()

    def wait(_: object) -> bool:
        asked.set()
        go_on.wait(60)
        return True

    with runner(job, trace=True) as made:
        made._wiring = replace(made._wiring, approval=replace(made._wiring.approval, approve=wait))
        handle = made.start_turn(TurnRequest(system="s", user="Tidy up."))
        assert asked.wait(60)
        with pytest.raises(NothingToResume, match="Turn 1 is running in this process"):
            made.resume(job.folder)
        go_on.set()
        assert "deleted" in handle.result().response
    assert deleted(job) == ["old.txt"]


@pytest.mark.slow
def test_what_was_said_before_and_after_the_park_is_one_conversation(job: Job, stage: Stage) -> None:
    stage.do(job)
    stage.do(replace(job, action="resume"))
    entries = [type(entry).__name__ for entry in resume_conversation(job.folder)[0].history.entries]
    assert entries == ["Said", "AssistantReply"] * 3


@pytest.mark.slow
def test_start_turn_raises_it_and_a_batch_yields_it(job: Job) -> None:
    with runner(job, trace=True) as made:
        handle = made.start_turn(TurnRequest(system="s", user="u"))
        with pytest.raises(ApprovalPending):
            handle.result()
        items = list(made.map([TurnRequest(system="s", user="u")] * 2))
        assert [getattr(item.error, "turn", None) for item in items] == [1, 2]
        with pytest.raises(NothingToResume, match=r"several turns that can be resumed: 1, 2\. Name one"):
            made.resume(job.folder)
        assert isinstance(items[1].error, ApprovalPending)
        decisions = [question.deny("keep it") for question in items[1].error.questions]
        assert KEPT in made.resume(job.folder, decisions, turn=2).response


@pytest.mark.slow
def test_parking_needs_a_trace_file(job: Job, llm: ScriptedLlmServer) -> None:
    with runner(job, trace=False) as made, pytest.raises(MCPConfigError, match="Parking needs a trace file"):
        made.run_turn(TurnRequest(system="s", user="u"))
    assert llm.requests == []


def test_a_turn_with_a_secret_in_its_texts_is_refused_at_once(job: Job, llm: ScriptedLlmServer) -> None:
    with runner(job, trace=True) as made:
        made.recorder.hide("password", "correct horse battery")
        with pytest.raises(MCPConfigError, match="its texts contain a secret"):
            made.run_turn(TurnRequest(system="s", user="It is: correct horse battery"))
    assert llm.requests == []


def test_a_turn_whose_trace_lost_a_secret_is_not_parked(job: Job) -> None:
    with runner(job, trace=True) as made:
        made.recorder.hide("word", "dust")  # what the tool returns first
        outcome = made.run_turn(TurnRequest(system="s", user="u"))
    assert "a secret was removed from its trace" in outcome.response
    assert deleted(job) == []


@pytest.mark.slow
def test_a_call_that_cannot_be_put_on_file_is_not_made(
    job: Job, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.do(job)
    flushed = TraceWriter.flush
    with runner(job, trace=False) as made:
        decisions = [each.approve() for parked in parked_turns(job.folder) for each in parked.questions]
        times: list[int] = []

        def flush(writer: TraceWriter, within_s: float = 2.0) -> bool:
            times.append(1)
            return flushed(writer, within_s) and len(times) <= 2  # the first ones are for `TurnResumed`

        monkeypatch.setattr(TraceWriter, "flush", flush)
        outcome = made.resume(job.folder, decisions)
    assert "not sent, because the trace file could not be written" in outcome.response
    assert deleted(job) == []


@pytest.mark.slow
def test_another_trace_of_the_same_runner_is_refused(job: Job, stage: Stage, tmp_path: Path) -> None:
    stage.do(job)
    recorder = Recorder()
    recorder.add(TraceWriter(tmp_path / "other.jsonl", episode="o"))
    with runner(job, trace=False) as made:
        made.recorder.add(recorder.observers[0])
        with pytest.raises(TraceError, match="with a runner of its own"):
            made.resume(job.folder)
    recorder.observers[0].close()  # type: ignore[attr-defined]  # it is the writer


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_whenever_it_is_killed_a_call_never_runs_twice_without_being_said(
    job: Job, stage: Stage, kills: int, llm: ScriptedLlmServer
) -> None:
    del llm
    parked = replace(job, folder=str(Path(job.folder, "parked")))
    Path(parked.folder).mkdir()
    stage.do(parked)
    chance = random.Random(f"{kills}")
    for number in range(kills):
        mine = replace(job, folder=str(Path(job.folder, f"{number}")))
        shutil.copytree(parked.folder, mine.folder)
        again = replace(mine, action="resume")
        # Anywhere: before its first message, and after each of them.
        at = (MESSAGES + 1) * number // kills
        stage.do(replace(again, kill_at=at, kill_after_s=chance.uniform(0.0, 0.003 if at else 0.03)))
        ran = len(deleted(mine))
        (said,) = stage.do(again)
        if said.startswith("ApprovalPending"):
            # It was killed before the call: the approval was for a process that is gone.
            assert not ran
            (said,) = stage.do(again)
        called = [each for each in bodies(mine, ToolCalled) if each.tool == "delete"]
        assert len(called) <= 1, "a call that may have run is never sent again"
        assert len(deleted(mine)) <= 1
        if not deleted(mine) or "interrupted; it may have taken effect" in said:
            assert "interrupted; it may have taken effect" in said or said.startswith("NothingToResume")
        else:
            assert "The tool said: deleted" in said or said.startswith("NothingToResume")
