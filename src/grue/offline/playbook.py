"""What the scripted model plays by: a game's commands, with what it says and thinks at each of them."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from grue.offline.situation import Situation

IDLE: Final = frozenset(["look", "l", "inventory", "i", "score", "wait", "z", "help"])
"""Commands that leave a game where it is: a host's fallback, mostly. They are no part of any script."""

_MOST_LOST: Final = 10
"""How many turns may have gone by without the script; with more of them, what matches is a coincidence."""


class Thought(Struct, frozen=True):
    """One step of thinking.

    Attributes:
        text: In full sentences.
        revises: Number of the earlier step of the same turn that it corrects, from 1.
        branches_from: Number of the earlier step that a new branch leaves from.
    """

    text: str
    revises: int | None = None
    branches_from: int | None = None


class Step(Struct, frozen=True, kw_only=True):
    """One turn's worth of a script.

    Attributes:
        command: What is played.
        why: What the answer gives as its thinking.
        objective: A new goal of several turns; `None`: none.
        rounds: What is thought before, if there is a tool for it: a reply each, with one call for each of its
            thoughts.
    """

    command: str
    why: str
    objective: str | None = None
    rounds: tuple[tuple[Thought, ...], ...] = ()


class Playbook(Struct, frozen=True):
    """A script for one game.

    Attributes:
        title: Regular expression; it is found in the titles of the games that this is for, in any case.
        steps: From the first turn on.
    """

    title: str
    steps: tuple[Step, ...]

    def is_for(self, game: str) -> bool:
        """Return whether this is the script of a game with that title."""
        return re.search(self.title, game, re.IGNORECASE) is not None

    def step_for(self, situation: Situation) -> Step | None:
        """Return what comes next; `None` if the script is at its end, or play has left it."""
        if not self.is_for(situation.game):
            return None
        commands = [step.command for step in self.steps]
        place = position(commands, situation.turn, [played.command for played in situation.recent])
        return self.steps[place] if place is not None and place < len(commands) else None


def position(commands: Sequence[str], turn: int, recent: Sequence[str]) -> int | None:
    """Return how many of a script's commands have been played, `None` if play has left the script.

    The turn's number says it, if the last commands agree. Otherwise some turns went by without the script (a
    host fell back to `look`), and it is where the last commands, those turns left out, are the script's.

    Args:
        commands: The script's.
        turn: One-based number of the turn to be played.
        recent: The last commands played, oldest first, as many as are known.
    """
    due = turn - 1
    played = [command.casefold() for command in recent]
    if played == list(commands[max(0, due - len(played)) : due]):
        return due
    told = [command for command in played if command not in IDLE]
    if not told:
        return 0 if len(played) == due else None
    due -= len(played) - len(told)
    latest = min(len(commands), due)
    places = range(latest, max(len(told), due - _MOST_LOST) - 1, -1)
    return next((place for place in places if list(commands[place - len(told) : place]) == told), None)
