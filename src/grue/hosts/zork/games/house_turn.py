"""The state of the command that is being played, and the operations that rules use."""

from typing import Final

from grue.hosts.zork.games.house_case import Case
from grue.hosts.zork.games.house_parser import Phrase
from grue.hosts.zork.games.house_state import State
from grue.hosts.zork.games.house_world import AWARDS, DEATHS, HAZARDS

TOO_DARK: Final = "It is far too dark for that."


class Turn:
    """One command that is being played.

    Attributes:
        state: The state of the house; rules change it in place.
        case: The seed's variation.
        phrase: The command.
        killed_by: The cause of the player's death in this turn, a key of `DEATHS`; empty if they live.
        gains: The points of this turn.
        takes_time: Whether the command takes a turn.
    """

    def __init__(self, state: State, case: Case, phrase: Phrase) -> None:
        self.state = state
        self.case = case
        self.phrase = phrase
        self.killed_by = ""
        self.gains = 0
        self.takes_time = True

    def happened(self, flag: str) -> bool:
        """Return whether a flag of the state is set."""
        return flag in self.state.flags

    def award(self, name: str) -> None:
        """Give the points for an achievement, the first time only."""
        if name not in self.state.awarded:
            self.state.awarded.add(name)
            self.gains += AWARDS[name]

    def kill(self, cause: str) -> str:
        """Let the player die, and return the text for it."""
        self.killed_by = cause
        return DEATHS[cause]

    def fill(self, text: str) -> str:
        """Insert the seed's words into a text."""
        return text.format_map(self.case.words)


def hazard(turn: Turn, name: str) -> str:
    """Give a warning the first time, and let the player die the second time."""
    flag, warning = HAZARDS[name]
    if turn.happened(flag):
        return turn.kill(name)
    turn.state.flags.add(flag)
    return warning
