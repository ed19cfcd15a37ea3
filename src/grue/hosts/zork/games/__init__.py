"""Text adventures for an agent to play: the embedded house, and real story files."""

from grue.hosts.zork.games.catalogue import open_game
from grue.hosts.zork.games.commands import sanitise_command
from grue.hosts.zork.games.game import Game, Observation
from grue.hosts.zork.games.house import HouseGame, walkthrough
from grue.hosts.zork.games.zmachine import ZMachineGame

__all__ = ["Game", "HouseGame", "Observation", "ZMachineGame", "open_game", "sanitise_command", "walkthrough"]
