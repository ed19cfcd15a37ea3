"""What holds for every turn under a policy, whatever the model, the servers, the person and the clock do."""

from collections import Counter
from typing import Any

import pytest
from arbitrary_turns import ArbitraryTurn, policed_turns, resumed_turns
from example_counts import examples
from hypothesis import HealthCheck, given, settings

from grue.messages import (
    AskApproval,
    CallsDecided,
    CallTools,
    CloseSession,
    DecisionIgnored,
    OfferTools,
    RequestCompletion,
    ServerDied,
    SessionOpened,
    ToolDenied,
    ToolMessage,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnParked,
)
from grue.protocol.tools.policy import terms_of

turns = settings(
    max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
SETTLED = (ToolReturned, ToolTimedOut, ToolSkipped, ServerDied)


def sent(entries: list[Any]) -> list[str]:
    return [call.call_id for each in entries if isinstance(each, CallTools) for call in each.calls]


@given(policed_turns())
@turns
def test_p3_each_call_is_answered_once_in_call_order_allowed_or_not(turn: ArbitraryTurn) -> None:
    for reply, _, request in turn.rounds():
        if request is not None:
            told = [item.call_id for item in request.new if isinstance(item, ToolMessage)]
            assert told == [call.call_id for call in reply.tool_calls]
    ids = Counter(record.call_id for record in turn.end.tool_calls)
    assert all(count == 1 for count in ids.values())


@given(policed_turns())
@turns
def test_nothing_of_a_reply_is_sent_before_every_question_is_answered(turn: ArbitraryTurn) -> None:
    for _, following, _ in turn.rounds():
        open_questions: set[str] = set()
        for entry in following:
            match entry.body:
                case AskApproval(questions=questions):
                    assert not sent([item.body for item in following[: following.index(entry)]])
                    open_questions = {question.call_id for question in questions}
                case CallsDecided(decisions=decisions):
                    right = [each for each in decisions if each.arguments_digest.startswith("sha256:")]
                    open_questions -= {each.call_id for each in right}
                case CallTools():
                    assert not open_questions
                case _:
                    pass


@given(policed_turns())
@turns
def test_a_denied_call_is_never_sent_and_an_approved_one_as_it_was_approved(turn: ArbitraryTurn) -> None:
    made = {call.call_id: call for batch in turn.went(CallTools) for call in batch.calls}
    assert not made.keys() & {note.call_id for note in turn.went(ToolDenied)}
    asked = {question.call_id: question for ask in turn.went(AskApproval) for question in ask.questions}
    for decided in turn.came(CallsDecided):
        for decision in decided.decisions:
            call = made.get(decision.call_id)
            if not decision.arguments_digest.startswith("sha256:") or call is None:
                continue
            assert decision.verdict != "deny"
            changed = decision.arguments if decision.verdict == "change" else None
            assert call.arguments == (changed or asked[decision.call_id].arguments)


@given(policed_turns())
@turns
def test_the_verdict_of_each_sent_call_allows_it(turn: ArbitraryTurn) -> None:
    listed = {item.name: item for opened in turn.came(SessionOpened) for item in opened.tools}
    approved = {decision.call_id for each in turn.came(CallsDecided) for decision in each.decisions}
    counts: Counter[str] = Counter()
    for batch in turn.went(CallTools):
        for call in batch.calls:
            name = f"{batch.server}.{call.tool}"
            terms = terms_of(turn.run.tool_policy, listed[name])
            assert terms.verdict == "allow" or (terms.verdict == "ask" and call.call_id in approved)
            counts[name] += 1
            assert terms.max_calls is None or counts[name] <= terms.max_calls


@given(policed_turns())
@turns
def test_p17_only_parallel_calls_overlap_each_at_another_server(turn: ArbitraryTurn) -> None:
    listed = {item.name: item for opened in turn.came(SessionOpened) for item in opened.tools}
    under_way: dict[int, tuple[str, set[str], bool]] = {}
    for entry in turn.log:
        body = entry.body
        if isinstance(body, CallTools):
            names = [f"{body.server}.{call.tool}" for call in body.calls]
            parallel = all(terms_of(turn.run.tool_policy, listed[name]).parallel for name in names)
            assert all(others[2] and parallel for others in under_way.values())
            assert body.server not in {others[0] for others in under_way.values()}
            under_way[body.batch] = body.server, {call.call_id for call in body.calls}, parallel
        elif isinstance(body, SETTLED) and entry.way == "in":
            waiting = under_way[body.batch][1]
            waiting.discard(body.call_id)
            if not waiting:
                del under_way[body.batch]
        elif isinstance(body, RequestCompletion):
            assert not under_way


@given(policed_turns())
@turns
def test_p24_after_a_timeout_nothing_more_of_the_reply_is_sent(turn: ArbitraryTurn) -> None:
    for _, following, _ in turn.rounds():
        bodies = [entry.body for entry in following]
        for number, body in enumerate(bodies):
            timeout = isinstance(body, ToolTimedOut) and turn.run.policy.after_timeout != "continue"
            if timeout or isinstance(body, ServerDied):
                assert not sent(bodies[number:])


@given(policed_turns())
@turns
def test_a_subset_is_all_that_a_request_offers(turn: ArbitraryTurn) -> None:
    if turn.run.tools is not None:
        for request in turn.went(RequestCompletion):
            offered = request.mode.tools if isinstance(request.mode, OfferTools) else None
            assert all(item.server == "a" or item.name == "b.look" for item in offered or ())


@given(resumed_turns())
@turns
@pytest.mark.slow
def test_a_parked_turn_sends_nothing_of_its_reply_and_closes_its_sessions(
    both: tuple[ArbitraryTurn, ArbitraryTurn],
) -> None:
    turn, _ = both
    parked = turn.end
    (*_, (reply, following, request)) = turn.rounds()
    assert request is None
    assert parked.calls == reply.tool_calls
    assert not sent([entry.body for entry in following])
    closed = Counter(command.server for command in turn.went(CloseSession))
    assert all(closed[opened.server] for opened in turn.came(SessionOpened))


@given(resumed_turns())
@turns
def test_a_resumed_turn_answers_every_call_once_and_carries_its_counts_over(
    both: tuple[ArbitraryTurn, ArbitraryTurn],
) -> None:
    turn, resumed = both
    parked, end = turn.end, resumed.end
    requests = resumed.went(RequestCompletion)
    if requests:
        told = [item.call_id for item in requests[0].new if isinstance(item, ToolMessage)]
        assert told == [call.call_id for call in parked.calls]
        assert requests[0].request == parked.requests + 1
    assert end.requests == parked.requests + len(requests)
    assert end.iterations >= parked.iterations
    assert end.usage.input_tokens >= parked.usage.input_tokens
    assert end.tool_calls[: len(parked.tool_calls)] == parked.tool_calls
    ids = Counter(record.call_id for record in end.tool_calls)
    assert all(count == 1 for count in ids.values())


@given(resumed_turns())
@turns
def test_a_resumed_call_is_sent_only_with_a_decision_for_it(
    both: tuple[ArbitraryTurn, ArbitraryTurn],
) -> None:
    turn, resumed = both
    made = set(sent(resumed.went(CallTools)))
    asked = {question.call_id for question in turn.end.questions}
    assert resumed.run.resumed is not None
    decided = {each.call_id for each in resumed.run.resumed.decisions if each.verdict != "deny"}
    later = {each.call_id for event in resumed.came(CallsDecided) for each in event.decisions}
    assert made & asked <= decided | later
    if isinstance(resumed.end, TurnParked):
        assert not made & {call.call_id for call in resumed.end.calls}
    assert not [note for note in resumed.went(DecisionIgnored) if note.call_id in decided & made]
