"""Which turns of a runner are running."""

import pytest

from grue.engine.wiring import TurnsUnderWay
from grue.errors import NothingToResume


def test_a_turn_is_running_until_each_that_began_it_has_ended() -> None:
    turns = TurnsUnderWay()
    with turns.running(1):
        with turns.running(1):
            pass
        with pytest.raises(NothingToResume, match="Turn 1 is running"):
            turns.require_ended(1)
    turns.require_ended(1)


def test_turns_beside_each_other_have_different_numbers() -> None:
    turns = TurnsUnderWay()

    def number(place: int | None = None) -> int:
        with turns.beginning(lambda above: above + 1, place) as begun:
            with pytest.raises(NothingToResume):
                turns.require_ended(begun)
            return begun

    with turns.in_use():
        assert [number(place=1), number(place=3), number(place=2)] == [1, 3, 2]
        with turns.in_use():
            assert [number(place=1), number(place=4), number(), number(place=9)] == [4, 5, 6, 9]
        assert number(place=5) == 10
    with turns.in_use():
        assert [number(place=1), number(), number(place=2)] == [1, 11, 12]
    assert number() == 1
    with turns.in_use():
        assert [number(place=1), number(place=2)] == [1, 2]


def test_of_a_turn_that_has_ended_nothing_is_kept() -> None:
    turns = TurnsUnderWay()
    for turn in range(1, 100):
        with turns.running(turn):
            pass
        turns.require_ended(turn)
    assert not turns._running
