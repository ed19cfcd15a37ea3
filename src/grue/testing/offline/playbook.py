"""A playbook: the commands that the offline model plays in a game, with reasons, and thoughts for some."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from grue.testing.offline.situation import Situation

# Commands that do not advance a game. No script contains them; a host plays them mostly as its fallback.
IDLE: Final = frozenset(["look", "l", "inventory", "i", "score", "wait", "z", "help"])

# The most turns that may have been played outside the script. With more, a match would be chance.
_MOST_LOST: Final = 10


class Thought(Struct, frozen=True):
    """One step of thinking."""

    text: str
    revises: int | None = None  # number, from 1, of the earlier step of the turn that this one corrects
    branches_from: int | None = None  # number of the earlier step at which a new branch starts


class Step(Struct, frozen=True, kw_only=True):
    """One turn of a script."""

    command: str
    why: str  # the thinking in the answer
    objective: str | None = None  # a new goal for several turns
    rounds: tuple[tuple[Thought, ...], ...] = ()  # one reply each, with a tool call a thought


class Playbook(Struct, frozen=True):
    """A script for one game."""

    title: str  # regular expression, searched for in a game's title, ignoring case
    steps: tuple[Step, ...]

    def is_for(self, game: str) -> bool:
        """Return whether this is the script for a game with this title."""
        return re.search(self.title, game, re.IGNORECASE) is not None

    def step_for(self, situation: Situation) -> Step | None:
        """Return the next step; `None`: the script has ended, or does not fit the game or last commands."""
        if not self.is_for(situation.game):
            return None
        commands = [step.command for step in self.steps]
        place = position(commands, situation.turn, [played.command for played in situation.recent])
        return self.steps[place] if place is not None and place < len(commands) else None


def position(commands: Sequence[str], turn: int, recent: Sequence[str]) -> int | None:
    """Return how many commands were played before `turn` (from 1); `None`: `recent` does not tell."""
    # A host plays an idle command such as `look` in a turn that has failed. So if `recent` does not equal the
    # script's commands just before this turn, search the script backwards for those of `recent` that are not
    # idle.
    # A host plays an idle command such as `look` in a turn that has failed. So if `recent` does not equal the
    # script's commands just before this turn, search the script backwards for those of `recent` that are not
    # idle.
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
