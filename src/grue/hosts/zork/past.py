"""Read from a trace how far an episode got, and with which seed and commands its game can be replayed."""

from pathlib import Path
from typing import Any

from msgspec import field

from grue import hosting
from grue.errors import TraceError
from grue.hosting import Envelope, EpisodeEnded
from grue.hosts.zork.facts import Decided, EpisodeStarted, Observed, Remembered

_FOR_GOOD = ("won", "died", "quit")


class GamePast(hosting.Past[EpisodeStarted], kw_only=True):
    """The recorded part of an episode."""

    decided: list[Decided] = field(default_factory=list)
    shown: dict[int, Observed] = field(default_factory=dict)  # by turn, without those with a redacted secret
    remembered: set[int] = field(default_factory=set)  # turns whose note about a place was recorded
    # Too many fallbacks in a row ended the episode after this turn. A resumed episode counts only later ones.
    forgiven: int = 0

    @property
    def turns(self) -> int:
        """Number of turns with a decision."""
        return len(self.decided)

    def take_fact(self, envelope: Envelope[Any]) -> None:
        """Update this object from the next envelope of the trace."""
        match envelope.body:
            case Observed(turn=turn) as observed if not envelope.redacted:
                self.shown.setdefault(turn, observed)
            case Decided() as decided:
                self.decided.append(decided)
                self.end = None
            case Remembered(turn=turn):
                self.remembered.add(turn)
            case EpisodeEnded(reason="fallbacks"):
                self.forgiven = self.turns


def read_past(path: Path) -> GamePast:
    """Read how far an episode got. `path` is its run folder or the trace in the folder."""
    read = GamePast.read(path, needed=(Decided,), started=EpisodeStarted, over=_FOR_GOOD)
    for number, decision in enumerate(read.decided, start=1):
        if decision.turn != number:
            raise TraceError(f"{path} cannot be resumed: the decision of turn {number} is missing.")
    return read
