"""`grue play --pace`: a pause before each move."""

import pytest

from grue.cli.play import pace
from grue.hosts.zork.games.catalogue import open_game


def test_a_move_waits_once_the_pace_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    plain, game = open_game("house"), open_game("house")
    assert game.reset(7) == plain.reset(7)
    assert game.step("north") == plain.step("north")
    assert waited == []
    pace(game, 0.5)
    assert game.step("north") == plain.step("north")
    assert waited == [0.5]
    game.close()
    game.close()
