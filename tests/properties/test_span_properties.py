"""What holds of the spans of every turn, whatever the model, the servers and the clock do in it."""

from collections import Counter
from typing import Any

from arbitrary_turns import ArbitraryTurn, arbitrary_turns
from example_counts import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from recorded_turns import STARTED_AT
from traced_turns import STEP_S, TracedTurn

from grue.messages import (
    CompletionFailed,
    CompletionReceived,
    DeadlinePassed,
    OfferTools,
    RequestCompletion,
    RunTurn,
    ServerDied,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnInterrupted,
)
from grue.tracing.observers.spans import (
    Episode,
    Generation,
    SpanClosed,
    SpanFeed,
    SpanNoted,
    SpanOpened,
    ToolSession,
    ToolUse,
)

turns = settings(max_examples=examples(150))


class Told:
    """Everything that a feed says of a trace, or of a part of one."""

    def __init__(self, envelopes: list[Any]) -> None:
        feed = SpanFeed("the-episode")
        self.events = [event for envelope in envelopes for event in feed.feed(envelope)]
        self.at_the_end = feed.finish()
        self.events += self.at_the_end
        self.opened = [event for event in self.events if isinstance(event, SpanOpened)]
        self.closed = {event.span: event for event in self.events if isinstance(event, SpanClosed)}
        self.noted = [event for event in self.events if isinstance(event, SpanNoted)]

    def of(self, kind: type) -> list[SpanOpened]:
        return [event for event in self.opened if isinstance(event.subject, kind)]


def check_tree(told: Told) -> None:
    """Assert that each span is opened once, closed once, and lies within its parent."""
    ids = [event.span for event in told.opened]
    assert len(ids) == len(set(ids))
    assert Counter(event.span for event in told.events if isinstance(event, SpanClosed)) == Counter(ids)
    open_now: list[int] = []
    for event in told.events:
        match event:
            case SpanOpened(span=span, parent=parent):
                assert parent is None if not open_now else parent in open_now
                open_now.append(span)
            case SpanNoted(span=span):
                assert span in open_now
            case SpanClosed(span=span):
                open_now.remove(span)
                assert not [each for each in told.opened if each.parent == span and each.span in open_now]
    assert not open_now
    by_id = {event.span: event for event in told.opened}
    for event in told.opened:
        assert event.at <= told.closed[event.span].at
        if event.parent is not None:
            assert by_id[event.parent].at <= event.at
            assert told.closed[event.span].at <= told.closed[event.parent].at


@given(arbitrary_turns())
@turns
def test_every_span_is_closed_once_within_its_parent(turn: ArbitraryTurn) -> None:
    traced = TracedTurn(turn)
    told = Told(traced.envelopes)
    check_tree(told)
    # The turn's own end closes everything but the episode.
    assert [type(event.subject) for event in told.at_the_end] == [Episode]
    (ended,) = (told.closed[event.span] for event in told.of(RunTurn))
    assert ended.outcome == turn.end
    assert told.events[0].at == STARTED_AT
    assert ended.at == STARTED_AT + (len(traced.envelopes) - 1) * STEP_S


@given(arbitrary_turns(), st.data())
@turns
def test_a_trace_that_is_cut_anywhere_is_closed_all_the_same(turn: ArbitraryTurn, data: Any) -> None:
    envelopes = TracedTurn(turn).envelopes
    check_tree(Told(envelopes[: data.draw(st.integers(0, len(envelopes)))]))


@given(arbitrary_turns(), st.data())
@turns
def test_a_trace_with_holes_is_closed_all_the_same(turn: ArbitraryTurn, data: Any) -> None:
    """Whatever a full queue drops."""
    envelopes = TracedTurn(turn).envelopes
    kept = data.draw(st.lists(st.booleans(), min_size=len(envelopes), max_size=len(envelopes)))
    check_tree(Told([envelope for envelope, keep in zip(envelopes, kept, strict=True) if keep]))


@given(arbitrary_turns())
@turns
def test_p31_tool_uses_are_the_calls_that_were_sent(turn: ArbitraryTurn) -> None:
    traced = TracedTurn(turn)
    told = Told(traced.envelopes)
    assert [event.subject.call_id for event in told.of(ToolUse)] == traced.sent
    settled = {item.call_id: item for item in turn.came(ToolReturned, ToolTimedOut, ServerDied)}
    for event in told.of(ToolUse):
        settlement = settled.get(event.subject.call_id)
        outcome = told.closed[event.span].outcome
        assert (outcome is None) == (settlement is None)
        if isinstance(settlement, ToolReturned):
            assert outcome.result == settlement.result
        elif settlement is not None:
            assert outcome.result.is_error
            assert told.closed[event.span].verdict.level == "error"
    skipped = [item.call_id for item in [*turn.came(ToolSkipped), *turn.went(ToolSkipped)]]
    noted = [event.facts["call_id"] for event in told.noted if event.name == "tool_skipped"]
    assert sorted(noted) == sorted(skipped)


@given(arbitrary_turns())
@turns
def test_p32_one_session_a_turn_with_tools_around_all_its_calls(turn: ArbitraryTurn) -> None:
    told = Told(TracedTurn(turn).envelopes)
    offers = [item for item in turn.went(RequestCompletion) if isinstance(item.mode, OfferTools)]
    sessions = told.of(ToolSession)
    assert len(sessions) == (1 if offers else 0)
    inside = [event.parent for event in told.of(ToolUse)]
    assert inside == [session.span for session in sessions for _ in inside]
    for session in sessions:
        summary = told.closed[session.span].outcome
        assert summary.iterations_used == turn.end.iterations
        assert summary.tools_called == len(told.of(ToolUse))


@given(arbitrary_turns())
@turns
def test_each_request_has_a_generation_with_its_reply(turn: ArbitraryTurn) -> None:
    told = Told(TracedTurn(turn).envelopes)
    generations = told.of(Generation)
    assert [event.subject.request for event in generations] == turn.went(RequestCompletion)
    replies = [told.closed[event.span].outcome for event in generations]
    assert [reply for reply in replies if reply is not None] == turn.came(
        CompletionReceived, CompletionFailed
    )


@given(arbitrary_turns(), arbitrary_turns())
@turns
def test_two_turns_at_once_are_told_apart_by_their_causes(one: ArbitraryTurn, other: ArbitraryTurn) -> None:
    """Two runners that share a recorder: the same turn number, only causes to tell whose is whose."""
    for turn in (one, other):
        assume(not turn.came(DeadlinePassed, TurnInterrupted))  # they come without a cause
    first, second = TracedTurn(one).envelopes, TracedTurn(other).envelopes
    moved = [_moved(envelope, len(first)) for envelope in second]
    first = [_moved(envelope, 0) for envelope in first]
    mixed = [envelope for pair in zip(first, moved, strict=False) for envelope in pair]
    told = Told(mixed + first[len(moved) :] + moved[len(first) :])
    check_tree(told)
    by_id = {event.span: event for event in told.opened}
    for use in told.of(ToolUse):
        turn_of_it = by_id[by_id[use.parent].parent].subject
        assert use.subject.call_id in [item.call_id for item in _end_of(turn_of_it, one, other).tool_calls]
    assert len(told.of(ToolUse)) == len(TracedTurn(one).sent) + len(TracedTurn(other).sent)


def _moved(envelope: Any, shift: int) -> Any:
    cause = None if envelope.cause is None else envelope.cause + shift
    return replace(envelope, seq=envelope.seq + shift, cause=cause, turn=1)


def _end_of(subject: Any, one: ArbitraryTurn, other: ArbitraryTurn) -> Any:
    return one.end if subject is one.run else other.end
