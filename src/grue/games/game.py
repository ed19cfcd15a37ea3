"""What a game is to a host: reset, step, snapshot, restore, close.

A game answers every command with an `Observation`. It never raises for a foolish command (it says so in
its text), and it never guesses: whatever a game cannot know is `None`, not zero and not an empty tuple.
"""

from typing import Protocol

from msgspec import Struct


class Observation(Struct, frozen=True, kw_only=True):
    """What a game says and shows after a command.

    Attributes:
        text: The game's own words, without prompt or status line.
        location: Name of the room the player is in; `None` if the game does not say.
        score: Points so far; `None` if unknown.
        max_score: Points to be had in all; `None` if unknown.
        moves: Game turns taken so far; `None` if unknown.
        inventory: What the player carries, in the game's words; `None` if unknown, `()` if nothing.
        died: The player died in this step. Many games go on after a death, so this is not `done`.
        won: The game has been won.
        done: The game takes no further command.
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
        """What tells this game from every other: a story file's SHA-256, an embedded world's version."""
        ...

    def reset(self, seed: int = 0) -> Observation:
        """Start anew with `seed` and return the opening text."""
        ...

    def step(self, command: str) -> Observation:
        """Play one command, already sanitised (one printable line), and return what came of it.

        Raises:
            GameError: The game itself broke (its interpreter died, its story file is damaged).
        """
        ...

    def snapshot(self) -> bytes:
        """Return everything needed to come back to this point, for `restore`."""
        ...

    def restore(self, snapshot: bytes) -> Observation:
        """Go back to a point that `snapshot` returned, in this process or another one.

        Raises:
            GameError: The snapshot is damaged or belongs to another game.
        """
        ...

    def close(self) -> None:
        """Release processes and files. A second call does nothing."""
        ...
