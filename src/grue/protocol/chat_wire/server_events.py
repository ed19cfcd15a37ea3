"""Server-sent events, as much of them as streamed replies use."""

import re
from collections.abc import Iterator

from msgspec import Struct

from grue.messages import JsonObject
from grue.protocol.chat_wire.json_text import from_json

MAX_LINE_BYTES = 16 * 2**20
"""Longest line that is kept; a stream that sends a longer one is none."""

_END_OF_LINE = re.compile(rb"\r\n|\n|\r")


class ServerEvent(Struct, frozen=True):
    """One event: its type, empty where the stream names none, and its data."""

    kind: str
    text: str

    @property
    def object(self) -> JsonObject:
        """The data as a JSON object; an empty one for data that is none."""
        try:
            value = from_json(self.text.encode("utf-8", "replace"))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class EventLines:
    """Cuts bytes into events, however they come: LF, CRLF or CR ends a line, an empty line an event."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        self._begun = False
        self._kind = ""
        self._lines: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Take the next bytes in and yield the events that they complete.

        Raises:
            ValueError: A line is longer than `MAX_LINE_BYTES`.
        """
        self._rest += chunk
        while (line := self._line()) is not None:
            event = self._take(line)
            if event is not None:
                yield event
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")

    def end(self) -> Iterator[ServerEvent]:
        """Yield the event that the end of the stream completes, if any."""
        for last in (bytes(self._rest.removesuffix(b"\r")), b""):
            event = self._take(last)
            if event is not None:
                yield event
        self._rest.clear()

    def _line(self) -> bytes | None:
        end = _END_OF_LINE.search(self._rest, self._searched)
        # After a CR at the very end, a line feed may follow with the next bytes.
        if end is None or (end[0] == b"\r" and end.end() == len(self._rest)):
            self._searched = len(self._rest) if end is None else end.start()
            return None
        line = bytes(self._rest[: end.start()])
        del self._rest[: end.end()]
        self._searched = 0
        return line

    def _take(self, encoded: bytes) -> ServerEvent | None:
        line = encoded.decode("utf-8", "replace")
        if not self._begun:
            line, self._begun = line.removeprefix("\ufeff"), True
        if not line:
            event = ServerEvent(self._kind, "\n".join(self._lines)) if self._lines else None
            self._kind, self._lines = "", []
            return event
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._lines.append(value)
        elif field == "event":
            self._kind = value
        return None
