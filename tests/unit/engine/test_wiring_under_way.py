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


def test_of_a_turn_that_has_ended_nothing_is_kept() -> None:
    turns = TurnsUnderWay()
    for turn in range(1, 100):
        with turns.running(turn):
            pass
        turns.require_ended(turn)
    assert not turns._running
