"""Moves through the game of the house that several tests use."""

from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.games.house import HouseGame

INTO_KITCHEN = ("n", "n", "open door", "n", "n")
TO_TRAPDOOR = (*INTO_KITCHEN, "e", "take sardines", "w", "give sardines to cat")
WITH_LANTERN = (*INTO_KITCHEN, "e", "take all", "w", "give sardines to cat", "light lantern")


def play(*commands: str, seed: int = 7) -> tuple[HouseGame, Observation]:
    game = HouseGame()
    seen = game.reset(seed)
    for command in commands:
        seen = game.step(command)
    return game, seen


def text_after(*commands: str, seed: int = 7) -> str:
    return play(*commands, seed=seed)[1].text
