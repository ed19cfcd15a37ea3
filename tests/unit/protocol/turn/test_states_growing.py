"""Sequences that grow and shrink without being copied each time; and turns with very many calls."""

import math

from hypothesis import given
from hypothesis import strategies as st
from turns import Walk, call, opened, returned, run

from grue.messages import CompletionReceived
from grue.policies import TurnLimits
from grue.protocol.turn.states import Growing, Remaining


@given(st.lists(st.lists(st.integers(), max_size=5)))
def test_what_is_added_stays_in_order(additions: list[list[int]]) -> None:
    grown, plain = Growing[int](), list[int]()
    for items in additions:
        before, length = grown, len(plain)
        grown, plain = grown.add(items), plain + items
        assert list(before) == plain[:length]
        assert list(grown) == plain
        assert len(grown) == len(plain)


def test_a_sequence_has_few_parts() -> None:
    grown = Growing[int]()
    for number in range(10_000):
        grown = grown.add([number])
        assert len(grown.parts) <= math.log2(number + 1) + 1


@given(st.lists(st.integers(), unique=True, max_size=8), st.data())
def test_what_is_taken_is_gone_wherever_it_stood(items: list[int], data: st.DataObject) -> None:
    left = Remaining(tuple(items))
    while items:
        item = items[0] if data.draw(st.booleans()) else data.draw(st.sampled_from(items))
        assert item in left
        assert left.first == items[0]
        left = left.without(item)
        items.remove(item)
        assert list(left) == items
        assert len(left) == len(items)
        assert bool(left) == bool(items)
        assert item not in left


def copies(walk: Walk, count: int) -> int:
    """Settle so many calls, and return how many items of the state were not there a step before."""
    copied = 0
    for number in range(1, count + 1):
        before = {id(part) for part in walk.state.settled.parts}
        walk.send(returned(number))
        if number < count:
            settled, pending = walk.state.settled, walk.state.under_way[0].pending
            copied += sum(len(part) for part in settled.parts if id(part) not in before)
            assert pending.taken == number, "what was taken is not copied away"
    return copied


def test_ten_thousand_calls_in_one_reply_are_not_copied_with_every_settlement() -> None:
    count = 10_000
    reply = CompletionReceived(request=1, tool_calls=tuple(call(number) for number in range(1, count + 1)))
    walk = Walk(run("a", limits=TurnLimits()), opened("a", "think"), reply)
    assert copies(walk, count) < 20 * count
    assert [item.call_id for item in walk.last[-1].new] == [f"c{number}" for number in range(1, count + 1)]
