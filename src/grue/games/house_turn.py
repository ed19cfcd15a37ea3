"""One command being played, and what every rule may do with it."""

from typing import Final

from grue.games.house_case import Case
from grue.games.house_parser import Phrase
from grue.games.house_state import State
from grue.games.house_world import AWARDS, DEATHS, HAZARDS

TOO_DARK: Final = "It is far too dark for that."


class Turn:
    """One command being played.

    Attributes:
        state: The house, changed in place.
        case: The seed's variation.
        phrase: The command.
        killed_by: What the player died of in this turn, a key of `DEATHS`.
        gains: The award of this turn, if there was one.
        takes_time: Whether a turn passes.
    """

    def __init__(self, state: State, case: Case, phrase: Phrase) -> None:
        self.state = state
        self.case = case
        self.phrase = phrase
        self.killed_by = ""
        self.gains = 0
        self.takes_time = True

    def happened(self, flag: str) -> bool:
        """Say whether a flag of the state is set."""
        return flag in self.state.flags

    def award(self, name: str) -> None:
        """Give the points for something, the first time that it is done."""
        if name not in self.state.awarded:
            self.state.awarded.add(name)
            self.gains += AWARDS[name]

    def kill(self, cause: str) -> str:
        """Let the player die, and return what is said of it."""
        self.killed_by = cause
        return DEATHS[cause]

    def fill(self, text: str) -> str:
        """Put the seed's words into a text."""
        return text.format_map(self.case.words)


def hazard(turn: Turn, name: str) -> str:
    """Warn of something deadly the first time, and let it happen the second time."""
    flag, warning = HAZARDS[name]
    if turn.happened(flag):
        return turn.kill(name)
    turn.state.flags.add(flag)
    return warning
