"""A turn under a `ContextPolicy`: what it commands, also after an overflow or without a summary."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import (
    ACCEPTED,
    DEADLINE,
    Walk,
    calls,
    closed,
    llm_failed,
    names,
    opened,
    returned,
    run,
    text,
)
from windowed_turns import Endpoint, WindowedTurn

from grue.messages import (
    Cleared,
    CompletionFailed,
    HistoryReference,
    IterationStarted,
    LlmFailure,
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RewriteHistory,
    RunTurn,
    Shortened,
    Summarised,
    SummaryFailed,
    ToolMessage,
    TurnFailed,
    TurnParked,
    Usage,
    UserText,
)
from grue.policies import Budget, ContextItem, ContextOverflow, ContextPolicy, TurnLimits
from grue.protocol.turn.asking import heard
from grue.protocol.turn.resuming import cut_off
from grue.protocol.turn.states import AwaitingSummary, progress_of, waiting_for

PAGE = "x" * 3000
POLICY = ContextPolicy(window_tokens=4000, reply_tokens=0, bytes_per_token=1.0, max_summaries=1)
PAST = HistoryReference(conversation="talk-1", length=4, digest="d")


def policed(policy: ContextPolicy = POLICY, **changes: Any) -> RunTurn:
    limits = changes.pop("limits", TurnLimits())
    return replace(run("a", limits=limits), context=policy, **changes)


def too_long(**overflow: Any) -> CompletionFailed:
    failed = LlmFailure(
        kind="refused",
        endpoint="http://x",
        model="m",
        message="too long",
        overflow=ContextOverflow(**overflow),
    )
    return CompletionFailed(request=1, failure=failed)


def two_pages() -> Walk:
    """A turn that has read a page, and is to be told a second one."""
    walk = Walk(policed(), opened("a"), calls("a.look"), returned(1, content=PAGE))
    return walk.send(calls("a.look", first=2), returned(2, batch=2, content=PAGE))


def test_an_older_result_is_cleared_before_the_request_and_the_command_comes_first() -> None:
    walk = two_pages()
    assert names(walk.last) == ("RewriteHistory", "IterationStarted", "RequestCompletion")
    rewrite, _, request = walk.last
    assert rewrite.conversation == request.conversation == "turn-7"
    assert [result.call_id for result in rewrite.change.results] == ["c1"]
    assert "do not repeat it" in rewrite.change.results[0].content
    assert rewrite.reason == "window"
    assert request.new == (ToolMessage("c2", f'{{"content":"{PAGE}"}}'),)
    assert request.clears


def test_without_a_policy_no_ledger_is_kept() -> None:
    walk = Walk(run("a"), opened("a"), calls("a.look"), returned(1, content=PAGE))
    assert walk.state.turn.ledger is None
    assert not walk.of(RequestCompletion)[0].clears
    assert not walk.of(RewriteHistory)


def test_tools_count_and_are_counted_anew_when_they_change() -> None:
    walk = Walk(policed(), opened("a", "look"))
    few = walk.state.turn.ledger.tools.tokens
    assert few > len("a.look")
    many = Walk(policed(), opened("a", *(f"tool{number}" for number in range(9))))
    assert many.state.turn.ledger.tools.tokens > 8 * few


def test_the_cost_of_a_reply_that_was_cut_first_is_not_taken_for_its_size() -> None:
    turn = Walk(policed(), opened("a")).state.turn
    usage = Usage(input_tokens=500, output_tokens=300)
    one = heard(turn, replace(text("ok"), usage=usage, prompt_tokens=500))
    assert one.ledger.items[-1].tokens == 300
    twice = heard(turn, replace(text("ok"), usage=usage + usage, prompt_tokens=500))
    assert twice.ledger.items[-1].tokens == 8 + 2
    assert twice.usage.input_tokens == 1000


# --- Overflows ---


def test_after_an_overflow_the_turn_clears_and_asks_once_more() -> None:
    walk = two_pages()
    before = walk.state.turn
    walk.send(too_long(window_tokens=3000))
    assert names(walk.last) == ("RewriteHistory", "RequestCompletion")
    rewrite, request = walk.last
    assert rewrite.reason == "overflow"
    assert [result.call_id for result in rewrite.change.results] == ["c2"], "the last result is cut"
    assert " of 3000 characters] …" in rewrite.change.results[0].content
    assert (request.new, request.request) == ((), before.requests + 1)
    assert walk.state.turn.window == 3000
    assert walk.state.turn.ledger.tokens <= 3000 * 0.6 + 1
    walk.send(too_long(window_tokens=2000))
    assert isinstance(walk.state.end, TurnFailed), "a second overflow ends the turn"


def test_an_overflow_clears_the_oldest_results_first() -> None:
    roomy = replace(POLICY, window_tokens=20_000)
    walk = Walk(policed(roomy), opened("a"), calls("a.look"), returned(1, content=PAGE))
    walk.send(calls("a.look", first=2), returned(2, batch=2, content=PAGE), too_long(window_tokens=6000))
    assert [result.call_id for result in walk.last[0].change.results] == ["c1"]


@pytest.mark.parametrize("told", [{}, {"prompt_tokens": 9000}, {"window_tokens": 90_000}])
def test_an_overflow_that_does_not_tell_a_smaller_window_is_believed_too(told: dict[str, int]) -> None:
    walk = two_pages().send(too_long(**told))
    assert names(walk.last) == ("RewriteHistory", "RequestCompletion")


def test_without_a_known_window_only_an_overflow_clears() -> None:
    unknown = replace(POLICY, window_tokens=None)
    walk = Walk(policed(unknown), opened("a"), calls("a.look"), returned(1, content=PAGE))
    walk.send(calls("a.look", first=2), returned(2, batch=2, content=PAGE))
    assert not walk.of(RewriteHistory)
    walk.send(too_long())
    assert [result.call_id for result in walk.last[0].change.results] == ["c1"]
    assert walk.state.turn.window is not None


def test_an_overflow_with_nothing_to_clear_ends_the_turn() -> None:
    walk = Walk(policed(), opened("a"), too_long(window_tokens=100))
    assert isinstance(walk.state.end, TurnFailed)
    assert not walk.of(RewriteHistory)


def test_an_overflow_of_texts_alone_leaves_out_the_oldest() -> None:
    """Nothing can be cleared in a conversation without tool results and without stubs."""
    earlier = (ContextItem(tokens=50), *(ContextItem(tokens=1000) for _ in range(8)))
    unknown = replace(POLICY, window_tokens=None)
    walk = Walk(policed(unknown, history=PAST, earlier=earlier), opened("a"))
    walk.send(too_long(window_tokens=4000, prompt_tokens=9000))
    assert names(walk.last) == ("RewriteHistory", "RequestCompletion")
    change = walk.last[0].change
    assert isinstance(change, Shortened)
    assert 0.2 < change.share < 0.3
    assert walk.state.turn.ledger.tokens <= 4000 * 0.6
    walk.send(text("ok"), ACCEPTED, closed("a"))
    assert not walk.of(TurnFailed)


def test_an_overflow_is_not_tried_again_once_the_budget_is_spent() -> None:
    limits = TurnLimits(budget=Budget(requests=3))
    walk = Walk(policed(limits=limits), opened("a"), calls("a.look"), returned(1, content=PAGE))
    walk.send(calls("a.look", first=2), returned(2, batch=2, content=PAGE), too_long(window_tokens=3000))
    assert walk.state.turn.requests == 3
    assert isinstance(walk.state.end, TurnFailed)


def test_another_failure_is_no_overflow() -> None:
    assert isinstance(two_pages().send(llm_failed()).state.end, TurnFailed)


def test_after_an_overflow_in_a_forced_request_the_answer_is_asked_for_again() -> None:
    limits = TurnLimits(max_tool_iterations=1)
    walk = Walk(policed(limits=limits), opened("a"), calls("a.look"), returned(1, content=PAGE))
    walk.send(too_long(window_tokens=3000))
    assert walk.last[-1].mode == RequireAnswer(policed().answer)
    assert not any(isinstance(command, IterationStarted) for command in walk.last)


# --- Summaries ---

CONTINUED = policed(history=PAST, earlier=(ContextItem(tokens=50), ContextItem(tokens=3900)), user="And now?")


def test_a_summary_is_asked_for_beside_the_conversation() -> None:
    walk = Walk(CONTINUED, opened("a"))
    assert isinstance(walk.state, AwaitingSummary)
    (request,) = walk.of(RequestCompletion)
    assert (request.aside, request.mode, request.conversation) == (True, RequireAnswer(), "talk-1")
    assert "at most 280 words" in request.new[0].text
    assert (walk.state.turn.requests, walk.state.turn.iterations) == (1, 0)
    assert waiting_for(walk.state) == "waiting for a summary (request 1)"
    assert progress_of(walk.state).doing == "waiting for a summary (request 1)"


def test_the_summary_takes_the_place_of_the_history() -> None:
    walk = Walk(CONTINUED, opened("a"), text(" All is well.\n"))
    rewrite, _, request = walk.last
    (said,) = rewrite.change.items
    assert said.text == "Summary of the conversation so far, which takes its place:\nAll is well."
    assert [item.text for item in request.new] == ["And now?"], "it was not said yet, so it is not said twice"
    assert walk.state.turn.usage == text("").usage, "a summary costs"
    assert walk.state.turn.ledger.tokens < 500


def test_a_turns_own_text_is_said_again_after_the_summary_that_replaced_it() -> None:
    earlier = (ContextItem(tokens=50), ContextItem(tokens=1500))
    walk = Walk(replace(CONTINUED, earlier=earlier), opened("a"), calls("a.look"))
    walk.send(returned(1, content="x" * 2500), text("All is well."))
    change = walk.of(RewriteHistory)[-1].change
    assert isinstance(change, Summarised)
    assert [item.text for item in change.items][1:] == ["And now?"]
    assert [item.call_id for item in walk.last[-1].new] == ["c1"]


STOPPED = replace(text("All is"), finish_reason="content_filter", stopped="content_filter")


@pytest.mark.parametrize("reply", [text(None), text(" "), llm_failed(), calls("a.look"), STOPPED])
def test_without_a_summary_the_history_stays_and_the_turn_goes_on(reply: Any) -> None:
    walk = Walk(CONTINUED, opened("a"), reply)
    assert names(walk.last) == ("SummaryFailed", "IterationStarted", "RequestCompletion")
    assert walk.of(SummaryFailed)[0].reason in (
        "the reply has no text",
        "no credit",
        "the provider stopped the reply before its end (content_filter)",
    )
    assert not walk.last[-1].aside


def test_a_turn_asks_for_no_more_summaries_than_allowed_and_none_on_a_used_up_budget() -> None:
    none = replace(CONTINUED, context=replace(POLICY, max_summaries=0))
    assert not isinstance(Walk(none, opened("a")).state, AwaitingSummary)
    limits = TurnLimits(budget=Budget(requests=1))
    assert not isinstance(Walk(replace(CONTINUED, limits=limits), opened("a")).state, AwaitingSummary)


def test_a_turn_that_ends_while_it_waits_for_a_summary_has_not_told_its_results() -> None:
    earlier = (ContextItem(tokens=50), ContextItem(tokens=1500))
    walk = Walk(replace(CONTINUED, earlier=earlier), opened("a"), calls("a.look"))
    walk.send(returned(1, content="x" * 2500))
    assert isinstance(walk.state, AwaitingSummary)
    walk.send(DEADLINE, closed("a"))
    assert [message.call_id for message in walk.end.untold] == ["c1"]
    assert [record.call_id for record in walk.end.tool_calls] == ["c1"]


# --- A conversation ---


def test_an_earlier_turns_results_and_texts_are_cleared_in_a_later_one() -> None:
    earlier = (
        ContextItem(tokens=50),
        ContextItem(tokens=1000, stub="[old]"),
        ContextItem(tokens=2500, call_id="c0", tool="a.look"),
        ContextItem(tokens=500, stub="[old]"),
    )
    walk = Walk(replace(CONTINUED, earlier=earlier), opened("a"))
    assert [rewrite.change for rewrite in walk.of(RewriteHistory)] == [
        Cleared(results=walk.of(RewriteHistory)[0].change.results, texts=1)
    ]
    assert walk.of(RewriteHistory)[0].change.results[0].call_id == "c0"


def test_a_turns_own_text_is_not_cleared_in_the_turn() -> None:
    task = "y" * 1500
    request = replace(CONTINUED, earlier=(ContextItem(tokens=50),), user=task, user_stub="[old]")
    walk = Walk(request, opened("a"), calls("a.look"), returned(1, content=PAGE))
    assert walk.of(RequestCompletion)[0].new == (UserText(task, stub="[old]"),)
    assert not any(
        change.change.texts for change in walk.of(RewriteHistory) if isinstance(change.change, Cleared)
    )


def test_a_turn_under_the_policy_ends_as_any_other() -> None:
    walk = two_pages().send(text("north"), ACCEPTED, closed("a"))
    assert walk.end.kind == "answered"


@pytest.mark.slow
def test_a_summary_counts_as_a_request_and_against_the_bound() -> None:
    policy = ContextPolicy(window_tokens=8000, reply_tokens=500, max_summaries=2)
    limits = TurnLimits(max_tool_iterations=250)
    turn = WindowedTurn(policed(policy, limits=limits), [[4000]] * 250, Endpoint(window_tokens=8000)).play()
    asked = sum(prompt.aside for prompt in turn.prompts)
    assert asked == 2
    assert turn.end.requests == len(turn.prompts) == 250 + 1 + asked
    assert turn.end.usage.output_tokens > 0


# --- Going on after a kill or a park ---


def test_a_turn_that_is_killed_while_it_waits_for_a_summary_says_its_results_when_it_goes_on() -> None:
    earlier = (ContextItem(tokens=50), ContextItem(tokens=1500))
    walk = Walk(replace(CONTINUED, earlier=earlier), opened("a"), calls("a.look"))
    walk.send(returned(1, content="x" * 2500))
    assert isinstance(walk.state, AwaitingSummary)
    resumption = cut_off(walk.state, ())
    assert resumption is not None
    assert [item.call_id for item in resumption.new] == ["c1"]


def test_a_resumed_turn_keeps_a_ledger_that_has_the_reply_it_goes_on_with() -> None:
    parked = TurnParked(turn=7, questions=(), calls=calls("a.look").tool_calls, iterations=1)
    resumed = replace(policed(earlier=(ContextItem(tokens=50),)), resumed=Resumption(parked=parked))
    walk = Walk(resumed, opened("a"))
    ledger = walk.state.turn.ledger
    assert (ledger.head.tokens, len(ledger.items), ledger.current) == (50, 1, 0)


UNREAD = (
    ContextItem(tokens=50),
    ContextItem(tokens=1500, call_id="c1", tool="a.look"),
    ContextItem(tokens=20),
    ContextItem(tokens=2500, call_id="c2", tool="a.look"),
)


def repeated(unread: int, earlier: tuple[ContextItem, ...] = UNREAD) -> Walk:
    """A turn that was killed while it waited for a reply, and that repeats its request."""
    resumed = Resumption(parked=TurnParked(turn=7, requests=2, iterations=1, batches=1), unread=unread)
    return Walk(policed(history=PAST, earlier=earlier, resumed=resumed), opened("a"))


def cleared(walk: Walk) -> list[tuple[str, ...]]:
    changes = [rewrite.change for rewrite in walk.of(RewriteHistory)]
    return [tuple(result.call_id for result in change.results) for change in changes]


def test_a_turn_that_repeats_its_request_keeps_the_results_that_the_model_has_not_read() -> None:
    assert cleared(repeated(2)) == [("c1",)]
    assert cleared(repeated(0)) == [("c1", "c2")], "as old traces have it"


def test_a_turn_that_repeats_its_request_asks_for_no_summary_before_the_reply() -> None:
    walk = repeated(2, (*UNREAD[:1], ContextItem(tokens=2000), *UNREAD[1:]))
    assert not any(request.aside for request in walk.of(RequestCompletion))
    walk.send(calls("a.look", first=3), returned(3, batch=2, content=PAGE))
    assert walk.of(RequestCompletion)[-1].aside


def test_a_repeated_request_that_is_too_long_loses_results_that_the_resumed_turn_cannot_cut() -> None:
    walk = repeated(2).send(too_long(window_tokens=2000))
    assert cleared(walk) == [("c1",), ("c2",)]
    assert names(walk.last) == ("RewriteHistory", "RequestCompletion")
