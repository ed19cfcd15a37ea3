"""Text adventures for an agent to play: the embedded house, and real story files."""

from grue.games.catalogue import open_game
from grue.games.commands import sanitise_command
from grue.games.game import Game, Observation
from grue.games.house import HouseGame, walkthrough
from grue.games.zmachine import ZMachineGame

__all__ = ["Game", "HouseGame", "Observation", "ZMachineGame", "open_game", "sanitise_command", "walkthrough"]
