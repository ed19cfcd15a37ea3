"""Replies that are no answers, whatever text they have: stopped, cut, or a tool call written as text."""

from msgspec.structs import replace
from turns import REFUSED, Walk, calls, closed, names, opened, returned, run, text

from grue.engine.turn import error_for
from grue.errors import AnswerStopped
from grue.messages import (
    CheckAnswer,
    CompletionReceived,
    NoAnswer,
    OfferTools,
    RepairRequested,
    ReplyUnusable,
    RequestCompletion,
    RequireAnswer,
    WrittenCalls,
)
from grue.policies import Budget, TurnLimits

OPEN = (run("a"), opened("a"))


def last_request(walk: Walk) -> RequestCompletion:
    return next(item for item in reversed(walk.last) if isinstance(item, RequestCompletion))


def is_final(request: RequestCompletion) -> bool:
    return isinstance(request.mode, RequireAnswer)


def written(*, names: tuple[str, ...] = ("a.look",)) -> CompletionReceived:
    return replace(text("<tool_call>"), written=WrittenCalls(form="hermes", names=names))


def stopped(content: str | None = "You are") -> CompletionReceived:
    return replace(text(content), finish_reason="content_filter", stopped="content_filter")


def test_a_tool_call_in_the_text_is_asked_for_as_a_call_once_and_is_never_an_answer() -> None:
    walk = Walk(*OPEN, written())
    assert names(walk.last) == ("ReplyUnusable", "IterationStarted", "RequestCompletion")
    assert walk.last[0] == ReplyUnusable(
        finish_reason="stop", iteration=1, seen="a tool call written as text (hermes: a.look)"
    )
    asked = last_request(walk)
    assert isinstance(asked.mode, OfferTools)
    assert "was not made" in asked.new[0].text  # type: ignore[union-attr]  # a UserText
    walk.send(written())
    assert names(walk.last) == ("ReplyUnusable", "RepairRequested", "RequestCompletion")
    assert is_final(last_request(walk))
    walk.send(written(), closed("a"))
    assert walk.end.kind == "fallback"
    assert "written as text (hermes: a.look)" in walk.end.reason
    assert "text_tool_calls" in walk.end.reason
    assert walk.end.requests == 3


def test_a_model_that_then_makes_the_call_goes_on_as_usual() -> None:
    walk = Walk(*OPEN, written(), calls("a.look"))
    assert names(walk.last) == ("CallTools",)
    walk.send(returned(1), text("north"))
    assert walk.last == (CheckAnswer(content="north"),)


def test_a_spent_budget_leaves_no_second_request_for_the_call() -> None:
    limits = TurnLimits(budget=Budget(requests=2))
    walk = Walk(run("a", limits=limits), opened("a"), written())
    assert names(walk.last) == ("ReplyUnusable", "FinalForced", "RequestCompletion")


def test_a_reply_of_thoughts_alone_says_so_in_the_trace() -> None:
    walk = Walk(*OPEN, replace(text(None), reasoning="Hm."))
    assert walk.last[0] == ReplyUnusable(finish_reason="stop", iteration=1, seen="thoughts and nothing else")
    assert is_final(last_request(walk))


def test_a_reply_that_was_stopped_is_no_answer() -> None:
    walk = Walk(run("a", fallback=None), opened("a"), stopped())
    assert names(walk.last) == ("RepairRequested", "RequestCompletion")
    walk.send(stopped("You"), closed("a"))
    assert walk.end.failure == NoAnswer(
        reason="the provider stopped the reply before its end (content_filter)",
        raw="You",
        stopped="content_filter",
    )
    error = error_for(walk.end)
    assert isinstance(error, AnswerStopped)
    assert (error.finish_reason, error.raw) == ("content_filter", "You")


def test_a_cut_answer_is_called_cut() -> None:
    walk = Walk(*OPEN, replace(text('{"action'), finish_reason="length"), REFUSED)
    assert isinstance(walk.last[0], RepairRequested)
    assert walk.last[0].reason.startswith("it was cut at the length limit of a reply")
