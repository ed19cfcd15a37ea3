"""One event of an episode, in the form that all logs share."""

from msgspec import Struct

from grue import messages as m
from grue.runtime.safe_text import printable
from grue.tracing.facts import LogLevel, LogLine

MESSAGE_LIMIT = 2000
"""Longest message of an event, in characters. The event's fields hold the whole text."""


class Event(Struct, frozen=True, kw_only=True):
    """One event of an episode.

    Attributes:
        at: Seconds since the epoch.
        event_type: Its name, such as `mcp_tool_call`.
        message: One printable line for people.
        turn: One-based number of the turn; 0 outside turns.
        fields: Further data of the event: JSON values, with the names from the requirements. Text in it is
            untrusted.
    """

    at: float
    level: LogLevel
    event_type: str
    message: str
    episode_id: str
    turn: int
    fields: m.JsonObject

    def labels(self) -> m.JsonObject:
        """Return all fields except time, level and text, in one flat object."""
        return {
            "event_type": self.event_type,
            "episode_id": self.episode_id,
            "turn": self.turn,
            **self.fields,
        }


class Moment(Struct, frozen=True):
    """The time and turn of an envelope; creates the events that happen then."""

    at: float
    episode_id: str
    turn: int

    def info(self, event_type: str, message: str, **fields: object) -> Event:
        """Return an event of this level."""
        return self._event("info", event_type, message, fields)

    def warning(self, event_type: str, message: str, **fields: object) -> Event:
        """Return an event of this level."""
        return self._event("warning", event_type, message, fields)

    def error(self, event_type: str, message: str, **fields: object) -> Event:
        """Return an event of this level."""
        return self._event("error", event_type, message, fields)

    def event(self, line: LogLine) -> Event:
        """Return a fact's event."""
        return self._event(line.level, line.event, line.message, line.fields)

    def _event(self, level: LogLevel, event_type: str, message: str, fields: m.JsonObject) -> Event:
        return Event(
            at=self.at,
            level=level,
            event_type=event_type,
            message=printable(message, MESSAGE_LIMIT),
            episode_id=self.episode_id,
            turn=self.turn,
            fields=fields,
        )
