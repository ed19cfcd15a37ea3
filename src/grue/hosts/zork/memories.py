"""The host's memory of each place: where points were gained, what killed, and where exits lead."""

from collections.abc import Sequence

from grue.hosts.zork.context import Move
from grue.hosts.zork.games.game import Observation

MOST_PER_PLACE = 8


class Memories:
    """Short notes for each location; the oldest are dropped first."""

    def __init__(self) -> None:
        self._notes: dict[str, list[str]] = {}

    def learn(self, move: Move, after: Observation) -> str | None:
        """Keep a note about a move, and return it; `None` if there is nothing new to note."""
        if move.location is None:
            return None
        note = self._note(move, after)
        if note is None:
            return None
        notes = self._notes.setdefault(move.location, [])
        if note in notes:
            return None
        notes.append(note)
        del notes[:-MOST_PER_PLACE]
        return note

    def of(self, location: str | None) -> Sequence[str]:
        """Return the notes on a place, oldest first."""
        return tuple(self._notes.get(location or "", ()))

    def text(self, location: str | None) -> str | None:
        """Return the notes on a place as text for the agent; `None` if there are none."""
        notes = self.of(location)
        return (
            "\n".join(["What you remember of this place:", *(f"- {note}" for note in notes)])
            if notes
            else None
        )

    @staticmethod
    def _note(move: Move, after: Observation) -> str | None:
        if after.died:
            return f"'{move.command}' killed you here"
        if move.gained and move.gained > 0:
            return f"'{move.command}' brought {move.gained} points"
        if after.location is not None and after.location != move.location:
            return f"'{move.command}' leads to {after.location}"
        return None
