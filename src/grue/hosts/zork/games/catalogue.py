"""Open a game by its name or story file."""

import re
from pathlib import Path
from typing import Final

from grue.errors import GameError
from grue.hosts.zork.games.game import Game
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.games.zmachine import ZMachineGame

_STORY: Final = re.compile(r"\.(?:z[1-8]|dat)", re.IGNORECASE)


def open_game(name: str, *, interpreter: str | None = None) -> Game:
    """Open "house" or a Z-machine story file. `interpreter`: a name; `None`: an installed one."""
    if name == "house":
        return HouseGame()
    path = Path(name)
    if _STORY.fullmatch(path.suffix):
        return ZMachineGame(path, interpreter=interpreter)
    if path.suffix.lower() in (".zblorb", ".zlb", ".blorb", ".blb"):
        raise GameError(f"{name} is a Blorb archive; extract the story file (.z1 to .z8) from it.")
    raise GameError(
        f'There is no game {name!r}: play "house", or give the path of a story file (.z1 to .z8, .dat).'
    )
