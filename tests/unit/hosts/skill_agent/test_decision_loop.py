"""What ends a run, and what follows a failed step."""

import threading
import time
from typing import Any

import msgspec
import pytest
from skill_runs import act, call, finish, run

from grue import FunctionTools, Recorder, ToolAnnotations
from grue.hosts.skill_agent import ActionContext, ActionRegistry, RunLimits
from grue.hosts.skill_agent.facts import StepStarted
from grue.messages import ToolCallResult
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import LlmReply, error_reply, refusal_reply, text_reply


class Word(msgspec.Struct):
    word: str = ""


def flaky(*, failures: int, annotations: ToolAnnotations | None = None) -> tuple[ActionRegistry, list[str]]:
    """An action that fails so many times."""
    tried: list[str] = []

    def shout(params: Word, context: ActionContext) -> str:
        """Say it aloud."""
        tried.append(params.word)
        if len(tried) <= failures:
            raise ValueError("no voice")
        return params.word.upper()

    actions = ActionRegistry()
    actions.add("shout", Word, shout, annotations=annotations)
    return actions, tried


SHOUT = ("shout", {"word": "hey"})
REPEATABLE = ToolAnnotations(read_only=True)


def test_a_failed_step_is_shown_to_the_model_and_the_rest_goes_on() -> None:
    actions, _ = flaky(failures=1)
    ran = run([act(SHOUT, SHOUT), act(finish())], actions=actions)
    assert ran.statuses == ["failed", "completed", "completed"]
    assert [each.get("error", each.get("output")) for each in ran.results()] == ["no voice", "HEY"]


def test_the_model_is_shown_no_more_of_an_error_than_of_a_result() -> None:
    def complain(params: Word, context: ActionContext) -> str:
        raise ValueError("a" * 500 + "b" * 500)

    actions = ActionRegistry()
    actions.add("shout", Word, complain)
    unknown = act(("c" * 1000, {}))
    limits = {"limits": RunLimits(result_chars=200)}
    ran = run([act(SHOUT), unknown, unknown, act(finish())], actions=actions, config=limits)
    raised, unusable, _ = ran.result.steps
    assert raised.error == f"{'a' * 100}… [cut: 800 of 1000 characters] …{'b' * 100}"
    assert len(unusable.error) < 300


def test_the_model_is_shown_why_its_reply_was_refused_without_advice_for_programmers() -> None:
    ran = run([act(("fly", {})), act(("fly", {})), act(finish())])
    error = ran.result.steps[0].error
    assert "there is no action 'fly'" in error
    assert "AnswerSpec" not in error


def test_all_lines_of_a_refusal_by_the_model_are_kept() -> None:
    refusal = refusal_reply("I cannot do this.\n\nAsk the owner of the folder first.")
    ran = run([refusal, refusal, act(finish())])
    error = ran.result.steps[0].error
    assert error.endswith("I cannot do this.\n\nAsk the owner of the folder first.")


def test_a_failed_step_can_end_the_run_and_the_rest_is_skipped() -> None:
    actions, _ = flaky(failures=1)
    ran = run([act(SHOUT, SHOUT)], actions=actions, config={"on_step_failure": "stop"})
    assert ran.statuses == ["failed", "skipped"]
    assert (ran.result.reason, ran.result.detail) == ("step_failed", "step 1, shout, failed: no voice")
    assert not ran.result.succeeded


@pytest.mark.parametrize(
    ("annotations", "tries"),
    [
        (None, 1),
        (ToolAnnotations(destructive=False), 1),
        (ToolAnnotations(read_only=True), 3),
        (ToolAnnotations(idempotent=True), 3),
    ],
)
def test_only_a_step_that_has_no_further_effect_is_retried(
    annotations: ToolAnnotations | None, tries: int
) -> None:
    actions, tried = flaky(failures=5, annotations=annotations)
    retry = {"on_step_failure": "retry", "retries": 2}
    ran = run([act(SHOUT), act(finish())], actions=actions, config=retry)
    assert len(tried) == tries
    assert (ran.result.steps[0].status, ran.result.steps[0].attempts) == ("failed", tries)


def test_a_retry_that_succeeds_completes_the_step() -> None:
    actions, _ = flaky(failures=1, annotations=ToolAnnotations(read_only=True))
    ran = run([act(SHOUT), act(finish())], actions=actions, config={"on_step_failure": "retry"})
    assert (ran.result.steps[0].status, ran.result.steps[0].attempts) == ("completed", 2)


def test_a_tool_that_may_have_run_is_never_called_again() -> None:
    server = FakeToolServer("cave")
    server.answers("dig", ToolCallResult(content="", is_error=True, error_message="half dug"))
    config = {"servers": {"cave": server}, "on_step_failure": "retry", "retries": 3}
    run([act(call("dig")), act(finish())], config=config)
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("limits", "reason", "turns", "steps"),
    [
        (RunLimits(max_turns=2), "turn_limit", 2, 2),
        (RunLimits(max_steps=3), "step_limit", 3, 3),
        (RunLimits(requests=2), "budget", 2, 2),
        (RunLimits(time_limit_seconds=1e-9), "time_limit", 0, 0),
    ],
)
def test_a_limit_ends_the_run_with_its_name(limits: RunLimits, reason: str, turns: int, steps: int) -> None:
    ran = run([act(("note", {"text": "hm"}))] * 9, config={"limits": limits})
    assert (ran.result.reason, ran.result.turns, len(ran.result.steps)) == (reason, turns, steps)
    assert ran.result.detail


def test_a_run_whose_steps_are_used_up_asks_for_no_further_reply() -> None:
    ran = run([act(("fly", {}))] * 9, config={"limits": RunLimits(max_steps=2)})
    assert (ran.result.reason, ran.statuses, ran.result.turns) == ("step_limit", ["failed", "failed"], 2)
    assert ran.result.requests == 4
    ran = run([act(*[("note", {"text": "hm"})] * 3)] * 9, config={"limits": RunLimits(max_steps=2)})
    assert (ran.result.reason, len(ran.result.steps), ran.result.requests) == ("step_limit", 2, 1)


class Clock:
    """The clock of runs; its time is over as soon as the first step has begun."""

    def __init__(self) -> None:
        self.over = False

    def __call__(self, envelope: Any, line: bytes) -> None:
        self.over = self.over or isinstance(envelope.body, StepStarted)

    def monotonic(self) -> float:
        return time.monotonic() + (7200 if self.over else 0)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A recorder of runs whose time is over in their first step."""
    recorder, clock = Recorder(), Clock()
    recorder.add(clock)
    monkeypatch.setattr("grue.hosts.skill_agent.run.time", clock)
    return recorder


HOUR = RunLimits(time_limit_seconds=3600)


@pytest.mark.parametrize("on_step_failure", ["continue", "stop", "retry"])
def test_the_time_limit_ends_an_action_of_the_programs_own_that_blocks(
    on_step_failure: str, recorder: Recorder
) -> None:
    actions, release = ActionRegistry(), threading.Event()
    actions.add("block", Word, lambda params, context: str(release.wait(120)), annotations=REPEATABLE)
    limited = {"limits": HOUR, "on_step_failure": on_step_failure}
    ran = run(
        [act(("block", {}), ("note", {"text": "x"}))], actions=actions, config=limited, recorder=recorder
    )
    release.set()
    assert (ran.result.reason, ran.statuses) == ("time_limit", ["failed"])
    assert ran.result.detail == "the run's time limit of 3600 s is reached"
    assert "block was not done after" in ran.result.steps[0].error
    assert ran.result.steps[0].attempts == 1


def test_the_time_limit_ends_a_tool_call_too(recorder: Recorder) -> None:
    release = threading.Event()

    def block() -> str:
        """Wait."""
        return str(release.wait(120))

    limited = {"servers": {"cave": FunctionTools([block])}, "limits": HOUR}
    ran = run([act(call("block"))], config=limited, recorder=recorder)
    release.set()
    assert (ran.result.reason, ran.statuses) == ("time_limit", ["failed"])


def test_the_time_limit_ends_a_turn_whose_endpoint_says_nothing() -> None:
    ran = run([LlmReply(then="hang")], config={"limits": RunLimits(time_limit_seconds=2)})
    assert (ran.result.reason, ran.result.turns, ran.statuses) == ("time_limit", 0, [])
    assert ran.result.detail == "the run's time limit of 2 s is reached"


def test_a_model_that_cannot_do_it_ends_the_run_as_given_up() -> None:
    ran = run([act(finish("no way", success=False), ("note", {"text": "x"}))])
    assert (ran.result.reason, ran.result.answer) == ("gave_up", "no way")
    assert ran.statuses == ["completed", "skipped"]


def test_an_endpoint_that_refuses_ends_the_run_as_failed() -> None:
    ran = run([error_reply(401, "no key")])
    assert ran.result.reason == "failed"
    assert "401" in ran.result.detail


def test_a_reply_that_cannot_be_used_is_repaired_once() -> None:
    ran = run([text_reply("I think so."), act(finish())])
    assert ran.result.succeeded
    assert 'not a JSON object {"actions"' in ran.said()


def test_a_reply_that_cannot_be_used_twice_is_a_failed_step() -> None:
    ran = run([text_reply("Hm."), text_reply("Hm."), act(finish())])
    assert ran.result.succeeded
    assert (ran.result.steps[0].action, ran.result.steps[0].status) == ("reply", "failed")
    assert ran.results()[0]["action"] == "reply"
    stopped = run([text_reply("Hm."), text_reply("Hm.")], config={"on_step_failure": "stop"})
    assert stopped.result.reason == "step_failed"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ('{"actions": []}', "it has 0 actions"),
        ('{"actions": [{"type": "fly", "params": {}}]}', "actions[0]: there is no action 'fly'"),
        ('{"actions": [{"type": "read_file", "params": {"path": 3}}]}', "actions[0]: Expected `str`"),
        ('{"type": "read_file", "params": {}}', "actions[0]: Object missing required field `path`"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused_with_the_reason(reply: str, said: str) -> None:
    ran = run([text_reply(reply), act(finish())])
    assert said in ran.said()


def test_a_single_action_prose_around_it_and_null_for_what_is_left_out_are_understood() -> None:
    ran = run(
        [
            text_reply('Let me see: ```json\n{"type": "note", "params": {"text": "a"}}\n```'),
            text_reply('{"actions": [{"type": "list_files", "params": {"path": null}}]}'),
            act(finish()),
        ]
    )
    assert ran.statuses == ["completed"] * 3


def test_an_action_of_the_programs_own_is_in_prompt_and_schema() -> None:
    actions, _ = flaky(failures=0)
    ran = run([act(SHOUT), act(finish())], actions=actions)
    shown: list[dict[str, Any]] = [
        each
        for each in msgspec.json.decode(_section(ran.requests[0][0]["content"]))
        if each["type"] == "shout"
    ]
    assert shown == [
        {"type": "shout", "params": {"word": "string, optional"}, "description": "Say it aloud."}
    ]
    assert "HEY" in ran.said()


def _section(system: object) -> bytes:
    return str(system).partition("ACTIONS:\n")[2].partition("\n\n")[0].encode()


def test_a_run_that_is_longer_than_the_window_goes_on() -> None:
    overflow = error_reply(
        400, "This model's maximum context length is 900 tokens. However, you requested 1000 tokens"
    )
    actions, _ = flaky(failures=0)
    ran = run([act(SHOUT), act(SHOUT), overflow, act(finish())], actions=actions)
    assert ran.result.succeeded
