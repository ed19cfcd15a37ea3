"""Budgets, the word that a model takes tools, and refusals, in the turn machine."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import (
    ACCEPTED,
    ANSWER,
    REFUSED,
    USAGE,
    Walk,
    calls,
    closed,
    names,
    opened,
    refusal,
    returned,
    run,
    support,
    text,
)

from grue.messages import (
    CloseSession,
    FinalForced,
    OfferTools,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ServerSampled,
    ToolsUnsupported,
    Usage,
)
from grue.policies import Budget, TurnLimits

OPEN = (run("a"), opened("a"))


def last_request(walk: Walk) -> RequestCompletion:
    return walk.of(RequestCompletion)[-1]


def is_final(request: RequestCompletion) -> bool:
    return request.mode == RequireAnswer(ANSWER)


# --- Budgets ---


def with_budget(*servers: str, **limits: Any) -> RunTurn:
    return run(*servers, limits=TurnLimits(budget=Budget(**limits)))


@pytest.mark.parametrize("limits", [{"requests": 2}, {"tokens": 5}, {"tokens": 1}])
def test_a_reached_budget_forces_the_final_answer_after_the_calls_of_the_reply(limits: Any) -> None:
    walk = Walk(with_budget("a", **limits), opened("a"), calls("a.think"))
    assert names(walk.last) == ("CallTools",), "what was asked for is still done"
    walk.send(returned(1))
    assert walk.last[0] == FinalForced(reason="budget", iterations=1)
    assert is_final(last_request(walk))
    assert walk.send(text("north"), ACCEPTED, closed("a")).end.kind == "forced"


def test_a_cost_counts_as_far_as_the_endpoint_tells_it() -> None:
    dear = replace(calls("a.think"), usage=Usage(cost_usd=0.5))
    walk = Walk(with_budget("a", cost_usd=0.5), opened("a"), dear, returned(1))
    assert walk.of(FinalForced)[0].reason == "budget"
    silent = Walk(with_budget("a", cost_usd=0.5), opened("a"), calls("a.think"), returned(1))
    assert silent.of(FinalForced) == []


@pytest.mark.parametrize("limits", [{"requests": 3}, {"tokens": 9}, {"cost_usd": 1.0}])
def test_what_servers_ask_the_model_counts_in_the_turns_budget_and_its_end(limits: Any) -> None:
    sampled = ServerSampled(server="a", usage=Usage(input_tokens=4, cost_usd=1.0))
    walk = Walk(with_budget("a", **limits), opened("a"), calls("a.think"), sampled, returned(1))
    assert walk.last[0] == FinalForced(reason="budget", iterations=1)
    assert last_request(walk).request == 2, "its own requests are numbered as ever"
    end = walk.send(text("north"), ACCEPTED, sampled, closed("a")).end
    assert end.requests == 4, "two of its own, one before the end was decided, one after"
    assert end.usage == USAGE + USAGE + sampled.usage + sampled.usage


def test_what_servers_have_asked_leaves_no_repair() -> None:
    sampled = ServerSampled(server="a", usage=Usage())
    walk = Walk(with_budget("a", requests=4), opened("a"), sampled, sampled, text("north"))
    assert names(walk.send(sampled, REFUSED).last) == ("FellBack", "CloseSession")


def test_a_budget_of_one_request_goes_to_the_answer_alone() -> None:
    walk = Walk(with_budget("a", requests=1), opened("a"))
    assert names(walk.last) == ("FinalForced", "RequestCompletion")
    assert names(walk.send(text("north"), REFUSED).last) == ("FellBack", "CloseSession")


def test_a_spent_budget_leaves_no_repair_and_the_reason_says_so() -> None:
    walk = Walk(with_budget(requests=1), text("north"), REFUSED)
    assert walk.of(RequestCompletion)[1:] == []
    assert walk.end.kind == "fallback"
    assert walk.end.reason == "it contains no JSON object (the budget leaves no second try)"


def test_a_budget_that_is_not_reached_changes_nothing() -> None:
    walk = Walk(with_budget("a", requests=9, tokens=900, cost_usd=9.0), opened("a"), calls("a.think"))
    assert isinstance(last_request(walk.send(returned(1))).mode, OfferTools)


# --- Tool support ---


def test_r12_5_an_unsupported_model_fails_the_turn_before_anything_is_started() -> None:
    walk = Walk(run("a", "b", support_check="before"), support(False))
    assert names(walk.all) == ("CheckToolSupport", "TurnFailed")
    failed = ToolsUnsupported(model="m", endpoint="http://x", reason="its list says so")
    assert walk.end.failure == failed


def test_r12_5_sessions_that_open_meanwhile_are_closed_again() -> None:
    walk = Walk(run("a", "b", support_check="beside"), opened("a"), support(False))
    assert walk.of(CloseSession) == [CloseSession(server="a"), CloseSession(server="b")]
    walk.send(opened("b"), closed("a"), closed("b"))
    assert isinstance(walk.end.failure, ToolsUnsupported)
    assert walk.of(RequestCompletion) == []


def test_the_support_of_a_model_is_not_asked_where_no_tools_are_wanted() -> None:
    assert names(Walk(run(support_check="before")).all) == ("RequestCompletion",)


# --- Refusals of the model ---


def test_a_refusal_is_no_answer_but_gets_the_one_repair() -> None:
    walk = Walk(*OPEN, refusal("I cannot help with that."))
    assert names(walk.last) == ("RepairRequested", "RequestCompletion")
    assert walk.last[0].reason == "the model declined to answer: I cannot help with that."
    walk.send(refusal("No."), closed("a"))
    assert walk.end.kind == "fallback"
    assert walk.end.raw_response == "No."
    assert walk.end.reason == "the model declined to answer: No."
