"""The interface between a host and a game.

A command that makes no sense raises no exception: the game's text says that the command failed.
"""

from typing import Protocol

from msgspec import Struct


class Observation(Struct, frozen=True, kw_only=True):
    """The state of a game after a command; `None`: the game does not show the value.

    Attributes:
        text: The game's own words, without prompt or status line.
        location: Name of the room the player is in.
        moves: Game turns taken so far.
        inventory: What the player carries, in the game's words.
        died: Whether the player died in this step. Many games go on after a death; only `done` means the end.
        done: Whether the game has ended and takes no further commands.
    """

    text: str
    location: str | None = None
    score: int | None = None
    max_score: int | None = None
    moves: int | None = None
    inventory: tuple[str, ...] | None = None
    died: bool = False
    won: bool = False
    done: bool = False


class Game(Protocol):
    """A deterministic text adventure: the same seed and the same commands give the same observations."""

    @property
    def name(self) -> str:
        """The game's title, for people."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifies exactly this game: the SHA-256 of its story file, or the version of grue's own game."""
        ...

    def reset(self, seed: int = 0) -> Observation:
        """Start a new game with `seed` and return the opening text."""
        ...

    def step(self, command: str) -> Observation:
        """Play one command, already sanitised (one printable line).

        Raises `GameError` if the game itself broke: its interpreter died, its story file is damaged.
        """
        ...

    def close(self) -> None:
        """Release processes and files. May be called twice."""
        ...
