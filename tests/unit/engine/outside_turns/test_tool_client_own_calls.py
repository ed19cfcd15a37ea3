"""Calls of a host's own under a policy."""

import time

from msgspec.structs import replace

from grue import ToolPolicy, ToolRule
from grue.engine.outside_turns.tool_client import decisions_about
from grue.hosting import OwnCall, ask_about, judge_calls
from grue.messages import ServerName, ToolDefinition


def call(tool: str, number: int = 1, **arguments: object) -> OwnCall:
    definition = ToolDefinition(server=ServerName("shop"), tool=tool, input_schema={"type": "object"})
    return OwnCall(call_id=f"call_{number}", tool=definition, arguments=arguments)


POLICY = ToolPolicy(
    rules=(
        ToolRule(tools=("shop.refund",), verdict="ask", reason="it pays"),
        ToolRule(tools=("shop.drop",), verdict="deny", reason="never"),
        ToolRule(tools=("shop.look",), max_calls=1),
    )
)


def test_each_call_is_made_denied_or_asked_about() -> None:
    made, asked, denied, again = judge_calls(
        [call("look"), call("refund", 2), call("drop", 3), call("look", 4)], POLICY
    )
    assert (made.denied, made.question) == ("", None)
    assert asked.question is not None
    assert (asked.question.name, asked.question.reason) == ("shop.refund", "it pays")
    assert denied.denied == "never"
    assert "at most 1" in again.denied


def test_what_was_approved_in_advance_is_not_asked_about_and_stays_denied_where_it_is() -> None:
    refund, drop = judge_calls(
        [call("refund"), call("drop", 2)], POLICY, approved={"shop.refund", "shop.drop"}
    )
    assert (refund.question, refund.denied) == (None, "")
    assert drop.denied == "never"


def test_a_decision_approves_denies_or_changes() -> None:
    (asked,) = judge_calls([call("refund", order=1)], POLICY)
    assert asked.question is not None
    approved = asked.decided(asked.question.approve())
    assert (approved.denied, approved.question, approved.arguments) == ("", None, {"order": 1})
    assert asked.decided(asked.question.deny("too much")).denied == "too much"
    assert asked.decided(asked.question.deny()).denied == "the user does not allow it"
    assert asked.decided(None).denied == "it needs an approval, and there was none"
    assert asked.decided(asked.question.change({"order": 2})).arguments == {"order": 2}


def test_only_a_decision_about_these_arguments_counts() -> None:
    (asked,) = judge_calls([call("refund", order=1)], POLICY)
    (other,) = judge_calls([call("refund", order=2)], POLICY)
    assert asked.question is not None
    assert other.question is not None
    decision = asked.question.approve()
    assert decisions_about([asked.question], [decision]) == {"call_1": decision}
    assert decisions_about([other.question], [decision]) == {}
    assert decisions_about([asked.question], True) == {"call_1": decision}
    assert decisions_about([asked.question], False)["call_1"].verdict == "deny"


def test_a_person_is_asked_once_about_all_calls_of_an_answer() -> None:
    calls = judge_calls([call("look"), call("refund", 2), call("refund", 3)], POLICY)
    asked = ask_about(calls, POLICY, lambda questions: [questions[0].approve(), questions[1].deny("no")])
    assert [each.denied for each in asked.calls] == ["", "", "no"]
    assert [each.verdict for each in asked.decisions] == ["approve", "deny"]
    assert not asked.parked
    alone = ask_about(calls[:1], POLICY, None)
    assert (alone.calls, alone.questions) == (calls[:1], ())


def test_without_an_answer_calls_are_denied_or_wait_for_one() -> None:
    calls = judge_calls([call("refund")], POLICY)
    (denied,) = ask_about(calls, POLICY, lambda _: None).calls
    assert denied.denied == "it needs an approval, and there was none"
    waiting = ask_about(calls, replace(POLICY, parking=True, park_for_s=60), None)
    assert (waiting.parked, len(waiting.questions)) == (True, 1)
    assert waiting.expires_at is not None
    (question,) = waiting.questions
    later = ask_about(calls, POLICY, None, given=[question.approve()], expires_at=waiting.expires_at)
    assert [each.denied for each in later.calls] == [""]
    expired = ask_about(
        calls, POLICY, lambda _: True, given=[question.approve()], expires_at=time.time() - 60
    )
    assert [each.denied for each in expired.calls] == ["it needs an approval, and there was none"]
