"""Keeps the events of the mock server's HTTP streams, so that a client can resume a stream that broke off."""

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage

_MOST_EVENTS = 10_000


class MemoryEventStore(EventStore):
    """Holds the newest 10,000 events in memory. Event ids are numbers that count up over all streams."""

    def __init__(self) -> None:
        self._events: dict[int, tuple[str, JSONRPCMessage | None]] = {}
        self._last = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event and return its id."""
        self._last += 1
        self._events[self._last] = (stream_id, message)
        self._events.pop(self._last - _MOST_EVENTS, None)
        return str(self._last)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the later events of the same stream, and return its id; `None` if the event is unknown."""
        if not last_event_id.isdecimal() or int(last_event_id) not in self._events:
            return None
        stream, _ = self._events[int(last_event_id)]
        later = [
            (number, message)
            for number, (of_stream, message) in self._events.items()
            if of_stream == stream and number > int(last_event_id)
        ]
        for number, message in later:
            if message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
