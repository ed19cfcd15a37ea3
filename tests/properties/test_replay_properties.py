"""What holds for the replay and the diff of any run of the turn's machine."""

import random
from itertools import islice, product
from typing import Any

import msgspec
import pytest
from arbitrary_turns import ArbitraryTurn, arbitrary_turns
from example_counts import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from turn_traces import TurnTape, possible

from grue.messages import FinalForced, RequestCompletion, ServerDied, ToolSkipped, ToolTimedOut
from grue.protocol.tools.results import SKIPPED_AFTER_TIMEOUT
from grue.runtime.trace.recorder import Envelope
from grue.tracing.diff import diff
from grue.tracing.reading import known_kinds, union_of
from grue.tracing.replay import Changes, TurnReplay, _rising, render, replay

runs = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])

_BODIES = msgspec.json.Decoder(union_of(known_kinds().values()))


def recorded(turn: ArbitraryTurn) -> list[Envelope[Any]]:
    """Return the turn's trace as it would be read from a file."""
    assume(possible(turn))
    written = TurnTape(turn).envelopes
    return [
        msgspec.structs.replace(envelope, body=_BODIES.decode(msgspec.json.encode(envelope.body)))
        for envelope in written
    ]


def last(turns: Any) -> TurnReplay:
    return list(turns)[-1]


@given(arbitrary_turns())
@runs
def test_record_then_replay_is_the_identity(turn: ArbitraryTurn) -> None:
    turns = list(replay(recorded(turn)))
    assert [each.divergence for each in turns] == [None] * len(turns), "\n".join(render(turns))
    said = [entry for entry in turn.log if entry.way == "out"]
    assert turns[-1].compared >= len(said)


@given(arbitrary_turns(), st.sampled_from(["skip", "continue", "force"]))
@runs
def test_another_policy_for_timeouts_differs_where_one_has_timed_out_and_nowhere_else(
    turn: ArbitraryTurn, policy: str
) -> None:
    envelopes = recorded(turn)
    divergence = last(replay(envelopes, Changes(policy={"after_timeout": policy}))).divergence
    if policy == turn.run.policy.after_timeout or not turn.came(ToolTimedOut):
        assert divergence is None
    if divergence is not None:
        place = (divergence.left or divergence.because[-1]).seq
        assert any(isinstance(e.body, ToolTimedOut) for e in envelopes if e.seq <= place)
    skipped = [body for body in turn.came(ToolSkipped) if body.reason == SKIPPED_AFTER_TIMEOUT]
    if policy == "continue" and skipped:
        assert divergence is not None, "what was skipped would have been called"


@given(arbitrary_turns())
@runs
def test_the_other_policy_for_deaths_differs_only_after_a_death(turn: ArbitraryTurn) -> None:
    other = {"force": "reconnect", "reconnect": "force"}[turn.run.policy.after_death]
    envelopes = recorded(turn)
    divergence = last(replay(envelopes, Changes(policy={"after_death": other}))).divergence
    if not turn.came(ServerDied):
        assert divergence is None
    forced = [body for body in turn.went(FinalForced) if body.reason == "server_died"]
    if divergence is not None:
        place = (divergence.left or divergence.because[-1]).seq
        assert any(isinstance(e.body, ServerDied) for e in envelopes if e.seq <= place)
    elif forced:
        assert other == "force" or used_up(turn), "it would have connected once more"


def used_up(turn: ArbitraryTurn) -> bool:
    replies = len([reply for reply, _, _ in turn.rounds()])
    return replies >= turn.run.limits.max_tool_iterations


@given(arbitrary_turns())
@runs
def test_fewer_iterations_differ_exactly_where_more_were_used(turn: ArbitraryTurn) -> None:
    used = max((body.iterations for body in [turn.end]), default=0)
    fewer = Changes(limits={"max_tool_iterations": 1})
    divergence = last(replay(recorded(turn), fewer)).divergence
    offers = [body for body in turn.went(RequestCompletion) if hasattr(body.mode, "tools")]
    if len(offers) > 1:
        assert divergence is not None
        assert (
            isinstance(divergence.right.body, FinalForced | RequestCompletion) if divergence.right else True
        )
    if turn.run.limits.max_tool_iterations == 1:
        assert divergence is None
    assert used <= max(1, turn.run.limits.max_tool_iterations)


# --- The diff ---


def renumbered(envelopes: list[Envelope[Any]], shuffle: random.Random) -> list[Envelope[Any]]:
    """Return the same trace with other numbers, times and ids, its actors interleaved in another way."""
    numbers = {envelope.seq: 1000 + 3 * envelope.seq for envelope in envelopes}
    moved = _interleaved(envelopes, shuffle)
    for new, envelope in enumerate(moved, start=500):
        numbers[envelope.seq] = new
    return [
        msgspec.structs.replace(
            envelope,
            seq=numbers[envelope.seq],
            cause=None if envelope.cause is None else numbers[envelope.cause],
            t=envelope.t * 7 + 1,
            at=envelope.at + 1e6,
            body=_other_ids(envelope.body),
        )
        for envelope in moved
    ]


def _interleaved(envelopes: list[Envelope[Any]], shuffle: random.Random) -> list[Envelope[Any]]:
    """Move messages past others as long as causes stay first and each sender keeps its order."""
    moved = list(envelopes)
    for _ in range(3 * len(moved)):
        place = shuffle.randrange(1, len(moved)) if len(moved) > 1 else 0
        one, other = moved[place - 1], moved[place]
        apart = one.sender != other.sender and other.cause != one.seq and one.turn == other.turn
        if place and apart and one.cause is not None and other.cause is not None:
            moved[place - 1], moved[place] = other, one
    return moved


def _other_ids(body: Any) -> Any:
    """Return a body with its call ids and times changed, wherever they are."""
    written = msgspec.json.encode(body).decode()
    for number in range(40, 0, -1):
        written = written.replace(f'"c{number}"', f'"other-{number}"')
        written = written.replace(f'"call_{number}"', f'"another-{number}"')
    for name in ("elapsed_s", "duration_s"):
        written = written.replace(f'"{name}":0.0', f'"{name}":4.25')
    return _BODIES.decode(written)


@given(arbitrary_turns(), st.randoms(use_true_random=False))
@runs
@pytest.mark.slow
def test_a_trace_does_not_differ_from_itself_retimed_renumbered_and_interleaved(
    turn: ArbitraryTurn, shuffle: random.Random
) -> None:
    envelopes = recorded(turn)
    assert list(diff(envelopes, envelopes)) == []
    assert list(diff(envelopes, renumbered(envelopes, shuffle))) == []


TEXTS = ("user", "reason", "content", "raw_response")


@given(arbitrary_turns(), st.randoms(use_true_random=False), st.data())
@runs
@pytest.mark.slow
def test_one_message_that_says_something_else_is_the_one_difference(
    turn: ArbitraryTurn, shuffle: random.Random, data: st.DataObject
) -> None:
    envelopes = recorded(turn)
    talking = [
        number
        for number, envelope in enumerate(envelopes)
        if any(hasattr(envelope.body, name) for name in TEXTS) and not isinstance(envelope.body, FinalForced)
    ]
    place = data.draw(st.sampled_from(talking))
    field = next(name for name in TEXTS if hasattr(envelopes[place].body, name))
    body = msgspec.structs.replace(envelopes[place].body, **{field: "something else"})
    changed = list(envelopes)
    changed[place] = msgspec.structs.replace(envelopes[place], body=body)
    (divergence,) = diff(envelopes, renumbered(changed, shuffle))
    assert divergence.left is envelopes[place]
    assert [difference.path for difference in divergence.differences] == [f"$.{field}"]


@given(arbitrary_turns(), st.randoms(use_true_random=False), st.data())
@runs
@pytest.mark.slow
def test_a_message_without_consequences_that_is_missing_is_the_one_difference(
    turn: ArbitraryTurn, shuffle: random.Random, data: st.DataObject
) -> None:
    envelopes = recorded(turn)
    causes = {envelope.cause for envelope in envelopes}
    idle = [n for n, e in enumerate(envelopes) if e.seq not in causes and e.cause is not None]
    assume(idle)
    place = data.draw(st.sampled_from(idle))
    without = [*envelopes[:place], *envelopes[place + 1 :]]
    (missing,) = diff(envelopes, renumbered(without, shuffle))
    assert (missing.left, missing.right) == (envelopes[place], None)
    (extra,) = diff(without, envelopes)
    assert (extra.left, extra.right) == (None, envelopes[place])


@given(places=st.lists(st.builds(range, st.integers(0, 4), st.integers(-1, 3), st.just(-1)), max_size=4))
def test_the_orders_of_a_turn_are_the_rising_choices_of_places(places: list[range]) -> None:
    every = [chosen for chosen in product(*places) if list(chosen) == sorted(chosen)]
    assert list(_rising(places)) == every


@pytest.mark.slow
def test_of_a_made_up_turn_with_many_orders_the_first_come_at_once() -> None:
    assert len(list(islice(_rising([*[range(40, 0, -1)] * 2000, range(3, 0, -1)]), 1000))) == 1000
