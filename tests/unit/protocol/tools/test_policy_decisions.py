"""What follows from a decision: only an approval, or a usable change, lets a call be made."""

from typing import Any

import pytest
from msgspec.structs import replace

from grue.policies import ApprovalDecision, ApprovalQuestion
from grue.protocol.tools.policy import (
    CONTRADICTED,
    UNUSABLE_DECISION,
    judged,
    own_copies,
    read_decisions,
    settled,
    sound,
)

QUESTION = ApprovalQuestion(
    call_id="c1", name="box.pay", arguments={"sum": 1}, arguments_digest="a", definition_digest="d"
)
YES, NO = QUESTION.approve(), QUESTION.deny("no")


def made(verdict: Any, arguments: Any = None, reason: Any = "") -> ApprovalDecision:
    return replace(YES, verdict=verdict, arguments=arguments, reason=reason)


@pytest.mark.parametrize(
    "decision",
    [
        *(made(verdict) for verdict in ("reject", "Deny", "Approve", "approved", "", None, True, 1, [])),
        made("change"),
        made("change", "text"),
        made("change", ["sum"]),
        made("change", {"sum": object()}),
        made("change", {"sum": "\ud800"}),
        made("change", {"sum": [float("nan")]}),
        made("approve", {"sum": 2}),
    ],
)
def test_whatever_is_not_exactly_an_approval_or_a_change_is_a_denial(decision: ApprovalDecision) -> None:
    assert judged(decision).denied == UNUSABLE_DECISION
    assert sound(decision).verdict == "deny"
    (counted,) = settled([QUESTION], [decision])[0].values()
    assert judged(counted).denied


def test_what_follows_from_each_verdict() -> None:
    assert (judged(YES).denied, judged(YES).changed) == ("", None)
    assert judged(QUESTION.change({"sum": 2})).changed == {"sum": 2}
    assert judged(NO).denied == "no"
    assert judged(made("deny", {"sum": 2}, reason=None)).denied == "the user does not allow it"


def test_a_decision_that_is_kept_shares_nothing_with_the_programs() -> None:
    arguments: dict[str, Any] = {"to": ["a"]}
    kept = sound(QUESTION.change(arguments))
    arguments["to"].append("b")
    assert kept.arguments == {"to": ["a"]}


def test_a_question_that_is_given_away_shares_nothing_with_the_one_that_is_kept() -> None:
    question = replace(QUESTION, arguments={"to": ["a"]}, input_schema={"type": "object"})
    (given,) = own_copies([question])
    given.arguments["to"].append("b")  # type: ignore[attr-defined]  # it is a list
    assert given.input_schema is not None
    given.input_schema.clear()
    assert (question.arguments, question.input_schema) == ({"to": ["a"]}, {"type": "object"})


@pytest.mark.parametrize(
    ("decisions", "verdict"),
    [((YES, NO), "deny"), ((NO, YES), "deny"), ((YES, QUESTION.change({})), "deny"), ((YES, YES), "approve")],
)
def test_contradictions_are_denials(decisions: tuple[ApprovalDecision, ...], verdict: str) -> None:
    counted, ignored = settled([QUESTION], decisions)
    assert [each.verdict for each in counted.values()] == [verdict]
    assert len(ignored) == 1


def test_a_third_decision_does_not_bring_a_contradicted_call_back() -> None:
    counted, _ = settled([QUESTION], [YES, QUESTION.change({"sum": 2}), YES])
    assert judged(counted["c1"]).denied == CONTRADICTED  # type: ignore[index]  # a CallId is a text


def test_a_decision_about_another_definition_contradicts_nothing() -> None:
    counted, ignored = settled([QUESTION], [YES, replace(NO, definition_digest="other")])
    assert [each.verdict for each in counted.values()] == ["approve"]
    assert len(ignored) == 1


def test_what_is_no_decision_is_an_error_and_one_without_names_is_about_nothing() -> None:
    with pytest.raises(TypeError, match="approve returned None"):
        read_decisions([YES, None])
    for given, says in ((YES, "ApprovalDecision"), ("yes", "'yes'"), (1, "1")):
        with pytest.raises(TypeError, match=rf"approve returned {says}.*; it should return a list of decis"):
            read_decisions(given)  # type: ignore[arg-type]
    nameless: Any = replace(YES, call_id=None)
    assert read_decisions([nameless]) == ()
