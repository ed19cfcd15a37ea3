"""The interface between a host and a game. A command that makes no sense raises no exception."""

from typing import Protocol

from msgspec import Struct


class Observation(Struct, frozen=True, kw_only=True):
    """The state of a game after a command. A value is `None` if the game has not shown it."""

    text: str = ""  # without prompt or status line
    location: str | None = None
    score: int | None = None
    max_score: int | None = None
    moves: int | None = None
    inventory: tuple[str, ...] | None = None
    died: bool = False  # in this step; many games go on after a death
    won: bool = False
    done: bool = False  # the game takes no further commands


class Game(Protocol):
    """A deterministic text adventure: the same seed and the same commands give the same observations."""

    @property
    def name(self) -> str:
        """The game's title, for people."""

    @property
    def fingerprint(self) -> str:
        """What identifies the game: the SHA-256 of its story file, or the version of grue's own game."""

    def reset(self, seed: int = 0) -> Observation:
        """Start a new game with `seed` and return the first observation."""

    def step(self, command: str) -> Observation:
        """Play one sanitised command. Raises `GameError` if the game or its interpreter broke."""

    def close(self) -> None:
        """Release processes and files. May be called twice."""
