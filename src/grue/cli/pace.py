"""`grue play --pace`: a pause before each move, for people who watch a scripted model play."""

import time

from grue.hosts.zork.games.game import Game, Observation


class PacedGame:
    """A game that waits before each move is played. Ctrl-C ends the wait; the decision is on file by then.

    Args:
        game: The game.

    Attributes:
        pace_s: Seconds to wait before a move. 0 at first: an episode that is resumed repeats its moves.
    """

    def __init__(self, game: Game) -> None:
        self._game = game
        self.pace_s = 0.0

    @property
    def name(self) -> str:
        """The game's title."""
        return self._game.name

    @property
    def fingerprint(self) -> str:
        """An identifier of exactly this game."""
        return self._game.fingerprint

    def reset(self, seed: int = 0) -> Observation:
        """Start a new game."""
        return self._game.reset(seed)

    def step(self, command: str) -> Observation:
        """Wait, then play one command."""
        if self.pace_s:
            time.sleep(self.pace_s)
        return self._game.step(command)

    def snapshot(self) -> bytes:
        """Return the game's state."""
        return self._game.snapshot()

    def restore(self, snapshot: bytes) -> Observation:
        """Go back to a state."""
        return self._game.restore(snapshot)

    def close(self) -> None:
        """Close the game."""
        self._game.close()
