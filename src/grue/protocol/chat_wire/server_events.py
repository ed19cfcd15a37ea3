"""Parse server-sent events, as far as streamed replies use them.

A damaged stream must not be used: a tool call with lost arguments could still look valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from grue import messages as m
from grue.protocol.json_text import from_json

MAX_LINE_BYTES = 16 * 2**20  # a line that is longer, and whose end has not arrived, is an error
_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_FIELDS = frozenset({"data", "event", "id", "retry", ""})
"""Fields of an event by the standard; a line that begins with a colon is a comment."""

_NAME = re.compile(r"[\w.:/-]*", re.ASCII)
_LONGEST_NAME = 24
_SHORTEST_NAME = 4


class DamagedStream(Exception):  # noqa: N818 - the name says what happened
    """A damaged stream. The text has no subject: the code that catches it adds one, such as `event 7`."""


class OversizedStream(Exception):  # noqa: N818 - the name says what happened
    """A stream is larger than any real reply. A retry would not help."""


class ServerEvent(Struct, frozen=True):
    """One event. `kind` is empty if the stream does not name the event's type."""

    kind: str
    text: str

    @property
    def object(self) -> m.JsonObject:
        """The data as a JSON object, empty for blank data and `[DONE]`. Other data raises `DamagedStream`."""
        if self.text.strip() in ("", "[DONE]"):
            return {}
        try:
            value = from_json(self.text.encode("utf-8", "replace"))
        except ValueError:
            raise DamagedStream("is not JSON") from None
        if not isinstance(value, dict):
            raise DamagedStream("is not a JSON object")
        return value


def intact(value: m.JsonObject, names: frozenset[str]) -> m.JsonObject:
    """Return the object; `DamagedStream`: the name of a member is a garbled form of one of `names`."""
    for name in value:
        ungarbled(name, names, "member")
    return value


def ungarbled(name: str, names: frozenset[str], what: str) -> str:
    """Return the name; `DamagedStream`: it is one of `names` (4 to 24 characters) with a wrong character."""
    if name not in names and _SHORTEST_NAME <= len(name) <= _LONGEST_NAME:
        meant = _garbled(name, names)
        if meant:
            raise DamagedStream(f"has a {what} {name!a} where {meant!a} should be")
    return name


@lru_cache(1024)
def _garbled(name: str, names: frozenset[str]) -> str:
    alike = (known for known in names if len(known) == len(name))
    return next((known for known in alike if sum(map(str.__ne__, known, name)) == 1), "")


class EventLines:
    """Splits bytes into events. `damage` says what is wrong with the first damaged line, if there is one."""

    def __init__(self) -> None:
        self.damage = ""
        self._rest = bytearray()
        self._searched = 0
        self._number = 0
        self._kind = ""
        self._lines: list[str] = []

    @property
    def waiting(self) -> int:
        """How many bytes have arrived of a line that has not ended yet."""
        return len(self._rest)

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Add the next bytes, and yield the events that they complete; `ValueError` if a line is too long."""
        self._rest += chunk
        while (line := self._line()) is not None:
            if (event := self._take(line)) is not None:
                yield event
        if len(self._rest) > MAX_LINE_BYTES:
            raise ValueError(f"a line of more than {MAX_LINE_BYTES} bytes")

    def end(self) -> Iterator[ServerEvent]:
        """Yield the last event of the stream, if the blank line that should end the event is missing."""
        for last in (bytes(self._rest.removesuffix(b"\r")), b""):
            if (event := self._take(last)) is not None:
                yield event
        self._rest.clear()

    def _line(self) -> bytes | None:
        end = _END_OF_LINE.search(self._rest, self._searched)
        # If the bytes end in a CR, wait: its line feed may come with the next bytes.
        if end is None or (end[0] == b"\r" and end.end() == len(self._rest)):
            self._searched = len(self._rest) if end is None else end.start()
            return None
        line = bytes(self._rest[: end.start()])
        del self._rest[: end.end()]
        self._searched = 0
        return line

    def _take(self, encoded: bytes) -> ServerEvent | None:
        self._number += 1
        try:
            line = encoded.decode()
        except UnicodeDecodeError:
            self._damaged("is not UTF-8")
            line = encoded.decode("utf-8", "replace")
        if self._number == 1:
            line = line.removeprefix("\ufeff")
        if not line:
            event = ServerEvent(self._kind, "\n".join(self._lines)) if self._lines else None
            self._kind, self._lines = "", []
            return event
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data" or (field == "error" and value.startswith("{")):
            # llama.cpp sends an error as a line `error: {...}`.
            self._lines.append(value)
        elif field == "event":
            self._kind = value
            if not _NAME.fullmatch(value):
                # Probably the newline after the name is lost, and the event's data follows in this line.
                self._damaged("names no event")
        elif field not in _FIELDS:
            self._damaged("has no field of an event")
        return None

    def _damaged(self, what: str) -> None:
        self.damage = self.damage or f"line {self._number} of the stream {what}"
