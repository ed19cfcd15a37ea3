"""Assemble a streamed response from its events.

The last event has the complete response. The others are used to show the text as it arrives, and to check the
response: the events are numbered, and the pieces of a text or of a call's arguments must add up to what the
last event has. If they do not, one of the two is damaged, and the stream is rejected.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, field

from grue.messages import JsonObject
from grue.protocol.chat_wire.json_text import to_json
from grue.protocol.chat_wire.reply import as_object, as_text, listed
from grue.protocol.chat_wire.server_events import DamagedStream, ServerEvent, intact, ungarbled
from grue.protocol.chat_wire.wire_format import Delta

_TEXTS: dict[str, Literal["content", "reasoning"]] = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}
_ARGUMENTS = "response.function_call_arguments.delta"
_SAID = "response.output_text.delta"
_DONE = "response.output_item.done"
_LAST = ("response.completed", "response.incomplete", "response.failed")
_KINDS = frozenset({*_TEXTS, *_LAST, _ARGUMENTS, _DONE, "error"})
_EVENT = frozenset({"type", "delta", "item", "response", "error", "output_index", "sequence_number"})
_RESPONSE = frozenset({"output", "status", "error", "incomplete_details", "usage"})
_ITEM = frozenset({"type", "content", "arguments", "name", "call_id", "summary", "encrypted_content"})
_TYPES = frozenset({"message", "function_call", "reasoning", "output_text", "refusal", "summary_text"})
_PART = frozenset({"type", "text", "refusal"})


class _Pieces(Struct):
    """The text and the arguments of one item so far."""

    text: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)


class ResponsesAssembler:
    """Passes on the text of each event, and keeps the last event, which holds the whole response."""

    def __init__(self) -> None:
        self.finished = False
        self.held = 0
        self._response: JsonObject = {}
        self._items: dict[int, object] = {}
        self._pieces: dict[int, _Pieces] = {}
        self._numbers: tuple[int, bool | None] | None = None

    @property
    def whole(self) -> bool:
        """The event that holds the response has come."""
        return self.finished

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Take the next event in, and return the text in it.

        Raises:
            DamagedStream: The event is not as it was sent, one before it is missing, or the whole is not what
                its pieces were.
        """
        said = intact(event.object, _EVENT)
        kind = as_text(said.get("type")) or event.kind
        if kind not in _KINDS and event.kind in _KINDS:
            raise DamagedStream(f"is of type {kind!a}, but is called {event.kind!a}")
        if kind == "error":
            self.finished = True
            self._response = {"error": as_object(said.get("error")) or said}
            return ()
        self._count(said.get("sequence_number"))
        if kind in _LAST:
            self._end(said)
        elif kind == _DONE:
            self._done(said)
        elif kind in _TEXTS or kind == _ARGUMENTS:
            return self._add(kind, said)
        return ()

    def body(self) -> bytes:
        """Return the response; the items that are done stand in where it holds none itself."""
        if self._items and self._response.get("output") == []:
            return to_json({**self._response, "output": list(self._items.values())})
        return to_json(self._response)

    def _count(self, number: object) -> None:
        """Check that the events' numbers count up by one, or stand still as at some servers.

        A gateway may give one kind of event a fixed number: a lower number than the last says nothing.
        """
        if not isinstance(number, int):
            return
        if self._numbers is None:
            self._numbers = (number, None)
            return
        last, counting = self._numbers
        if number < last:
            return
        counting = number != last if counting is None else counting
        if number != last + (1 if counting else 0):
            raise DamagedStream(f"has number {number} after number {last}")
        self._numbers = (number, counting)

    def _add(self, kind: str, said: JsonObject) -> Iterable[Delta]:
        text = said.get("delta")
        if not isinstance(text, str | None) or "delta" not in said:
            raise DamagedStream(f"is a {kind} without a text")
        self.held += len(text or "")
        index = said.get("output_index")
        if isinstance(index, int) and text and kind in (_SAID, _ARGUMENTS):
            pieces = self._pieces.setdefault(index, _Pieces())
            (pieces.text if kind == _SAID else pieces.arguments).append(text)
        return (Delta(text, _TEXTS[kind]),) if text and kind in _TEXTS else ()

    def _done(self, said: JsonObject) -> None:
        index, item = said.get("output_index"), said.get("item")
        if not isinstance(item, dict):
            raise DamagedStream("ends an item that is not an object")
        place = index if isinstance(index, int) else len(self._items)
        if place in self._items:
            raise DamagedStream(f"ends item {place} a second time")
        # A gateway may leave out the end of an item: the last event holds the whole response.
        self._items[place] = item

    def _end(self, said: JsonObject) -> None:
        response = said.get("response")
        if not isinstance(response, dict):
            raise DamagedStream("ends the reply without a response")
        self._response = intact(response, _RESPONSE)
        output = [_item(item) for item in listed(response.get("output")) or self._items.values()]
        # Fewer items than were begun: some servers leave those out that they do not say again.
        for index, item in enumerate(output):
            _compare(item, self._pieces.get(index, _Pieces()), as_object(self._items.get(index)))
        self.finished = True


def _item(value: object) -> JsonObject:
    item = intact(as_object(value), _ITEM)
    ungarbled(as_text(item.get("type")) or "", _TYPES, "item of type")
    for part in (*listed(item.get("content")), *listed(item.get("summary"))):
        intact(as_object(part), _PART)
        ungarbled(as_text(as_object(part).get("type")) or "", _TYPES, "part of type")
    return item


def _compare(item: JsonObject, pieces: _Pieces, done: JsonObject) -> None:
    """Hold an item of the response to its pieces, which came before, and to the item when it was done."""
    for name in ("type", "name", "arguments"):
        if name in done and name in item and done[name] != item[name]:
            raise DamagedStream(f"has an item with another {name} than the events before it")
    arguments = as_text(item.get("arguments"))
    if pieces.arguments and arguments is not None and "".join(pieces.arguments) != arguments:
        raise DamagedStream("has a tool call with other arguments than the events before it")
    parts = [as_object(part) for part in listed(item.get("content"))]
    text = "".join(as_text(part.get("text")) or "" for part in parts if part.get("type") == "output_text")
    # Some servers trim the whole text, but not its pieces.
    if pieces.text and parts and "".join(pieces.text).strip() != text.strip():
        raise DamagedStream("has another text than the events before it")
