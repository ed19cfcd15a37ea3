"""Assemble a streamed response from its events.

The last event has the complete response. The others are used to show the text as it arrives, and to check the
response: the pieces of a text or of a call's arguments must add up to what the last event has, and both must
have the same calls, with the same names and arguments. If they differ, one of the two is damaged, and the
stream is rejected.

Calls are told apart by their ids, because a gateway may number and order its items otherwise in the events
than in the response. For the same reason a gap in the numbers of the events is no damage by itself: it counts
where the last event does not repeat the items, so that nothing else would show a lost event.
"""

from collections.abc import Iterable, Sized
from typing import Literal

from msgspec import Struct, field

from grue import messages as m
from grue.protocol.chat_wire.json_text import to_json
from grue.protocol.chat_wire.reply import MAX_CALLS, as_object, as_text, listed, weight
from grue.protocol.chat_wire.server_events import (
    DamagedStream,
    OversizedStream,
    ServerEvent,
    intact,
    ungarbled,
)
from grue.protocol.chat_wire.wire_format import Delta

_TEXTS: dict[str, Literal["content", "reasoning"]] = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}
_ARGUMENTS = "response.function_call_arguments.delta"
_ALL_ARGUMENTS = "response.function_call_arguments.done"
_SAID = "response.output_text.delta"
_ADDED = "response.output_item.added"
_DONE = "response.output_item.done"
_ENDINGS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
"""The events that end a reply, and the status that the response has then."""

_KINDS = frozenset({*_TEXTS, *_ENDINGS, _ARGUMENTS, _ALL_ARGUMENTS, _ADDED, _DONE, "error"})
_EVENT = frozenset(
    {"type", "delta", "item", "response", "error", "output_index", "sequence_number", "arguments", "item_id"}
)
_RESPONSE = frozenset({"output", "status", "error", "incomplete_details", "usage"})
_ITEM = frozenset({"type", "content", "arguments", "name", "call_id", "summary", "encrypted_content"})
_TYPES = frozenset({"message", "function_call", "reasoning", "output_text", "refusal", "summary_text"})
_PART = frozenset({"type", "text", "refusal"})
_CALL = "function_call"
_MOST_COMPARED = 100
"""How many calls are compared by name and arguments, where their ids do not tell them apart."""


class _CallEvents(Struct):
    """What the events say about one tool call.

    Attributes:
        name: `None`: no event has named it.
        pieces: Its arguments, in pieces.
        whole: Its arguments, where an event has all of them.
        done: Whether an event has it whole.
        told: Whether the response has it too.
        ids: The ids that events give it.
    """

    ids: frozenset[str] = frozenset()
    name: str | None = None
    pieces: list[str] = field(default_factory=list)
    whole: str | None = None
    done: bool = False
    told: bool = False

    def add(self, item: m.JsonObject) -> None:
        """Compare with what another event or the response says.

        Raises:
            DamagedStream: They differ.
        """
        for name, known in (("name", self.name), ("arguments", self.whole)):
            if known is not None and name in item and item[name] != known:
                raise DamagedStream(f"has a tool call with another {name} than the events before it")
        self.name = as_text(item.get("name")) or self.name
        arguments = as_text(item.get("arguments"))
        if arguments is None:
            return
        if self.pieces and "".join(self.pieces) != arguments:
            raise DamagedStream("has a tool call with other arguments than the events before it")
        self.whole = arguments

    def agrees(self, item: m.JsonObject) -> bool:
        """Return whether an item has this name and these arguments."""
        said = "".join(self.pieces) if self.whole is None else self.whole
        return item.get("type") == _CALL and (self.name, said) == (item.get("name"), item.get("arguments"))


class ResponsesAssembler:
    """Passes on the text of each event, and keeps the last event, which holds the whole response."""

    def __init__(self) -> None:
        self.finished = False
        self._held = {"pieces": 0, "items": 0, "response": 0}
        self._response: m.JsonObject = {}
        self._items: dict[int, m.JsonObject] = {}
        self._texts: dict[int, list[str]] = {}
        self._calls: list[_CallEvents] = []
        self._named: dict[tuple[int | None, str], _CallEvents] = {}
        self._by_id: dict[str, list[_CallEvents]] = {}
        self._announces = False
        self._numbers: tuple[int, bool | None] | None = None
        self._gap = ""

    @property
    def held(self) -> int:
        """The most of what is said in pieces, in items, or at the end, which say the same."""
        return max(self._held.values())

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
        if kind in _ENDINGS:
            self._end(said, _ENDINGS[kind])
        elif kind in (_ADDED, _DONE):
            self._announce(said, done=kind == _DONE)
        elif kind == _ALL_ARGUMENTS:
            self._call_of(said).add({"arguments": as_text(said.get("arguments"))})
        elif kind in _TEXTS or kind == _ARGUMENTS:
            return self._add(kind, said)
        return ()

    def body(self) -> bytes:
        """Return the response; the items that are done stand in where it holds none itself."""
        if self._items and self._response.get("output") == []:
            return to_json({**self._response, "output": list(self._items.values())})
        return to_json(self._response)

    def _count(self, number: object) -> None:
        """Remember a gap in the events' numbers, which count up by one, or stand still as at some servers.

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
            self._gap = self._gap or f"has number {number} after number {last}"
        self._numbers = (number, counting)

    def _add(self, kind: str, said: m.JsonObject) -> Iterable[Delta]:
        text = said.get("delta")
        if not isinstance(text, str | None) or "delta" not in said:
            raise DamagedStream(f"is a {kind} without a text")
        self._held["pieces"] += len(text or "")
        if text and kind == _ARGUMENTS:
            self._call_of(said).pieces.append(text)
        index = said.get("output_index")
        if text and kind == _SAID and isinstance(index, int):
            self._room(self._texts)
            self._texts.setdefault(index, []).append(text)
        return (Delta(text, _TEXTS[kind]),) if text and kind in _TEXTS else ()

    def _room(self, held: Sized) -> None:
        if len(held) > MAX_CALLS:
            raise OversizedStream(f"the reply has more than {MAX_CALLS} items")

    def _announce(self, said: m.JsonObject, *, done: bool) -> None:
        index, item = said.get("output_index"), said.get("item")
        if not isinstance(item, dict):
            raise DamagedStream(f"{'ends' if done else 'begins'} an item that is not an object")
        self._announces = True
        if done:
            place = index if isinstance(index, int) else len(self._items)
            if place in self._items and not _differs(self._items[place], item):
                raise DamagedStream(f"ends item {place} a second time")
            # A gateway may leave out the end of an item: the last event holds the whole response. Another one
            # may give two items the same place.
            while place in self._items:
                place += 1
            self._room(self._items)
            self._items[place] = item
            self._held["items"] += weight(item)
        if item.get("type") == _CALL:
            call = self._call_of(said, item)
            call.done = call.done or done
            call.add(item if done else {"name": item.get("name")})

    def _call_of(self, said: m.JsonObject, item: m.JsonObject | None = None) -> _CallEvents:
        """Return the call that an event is about: the one at its place, with its ids.

        Ids alone do not do, nor places alone: there are servers that give several calls the same.
        """
        ids = _ids(item) if item is not None else _ids({"id": said.get("item_id")})
        index = said.get("output_index")
        place = index if isinstance(index, int) else None
        known = next((self._named[key] for given in ids if (key := (place, given)) in self._named), None)
        if known is None and place is not None:
            known = self._named.get((place, ""))
            if known is not None and item is not None and known.ids and ids and not known.ids & ids:
                known = None
        if known is None:
            known = _CallEvents()
            self._calls.append(known)
            self._room(self._calls)
        for given in ids - known.ids:
            self._named[place, given] = known
            self._by_id.setdefault(given, []).append(known)
            self._held["items"] += len(given)
        known.ids |= ids
        if place is not None:
            self._named[place, ""] = known
        return known

    def _end(self, said: m.JsonObject, status: str) -> None:
        response = said.get("response")
        if not isinstance(response, dict):
            raise DamagedStream("ends the reply without a response")
        self._response = intact(response, _RESPONSE)
        self._held["response"] = weight(response)
        if response.get("status", status) != status:
            raise DamagedStream(f"is called {status}, but its response is not")
        repeated = [_item(item) for item in listed(response.get("output"))]
        output = repeated or [_item(item) for item in self._items.values()]
        if self._gap and not repeated:
            # Nothing else shows what is missing.
            raise DamagedStream(f"follows a gap: one {self._gap}")
        # Fewer items than were begun: some servers leave those out that they do not say again.
        for index, item in enumerate(output):
            _compare(item, self._texts.get(index, []), self._items.get(index, {}))
        self._compare_calls(output, whole=status == "completed")
        self.finished = True

    def _compare_calls(self, output: list[m.JsonObject], *, whole: bool) -> None:
        """Hold the calls of the response to those of the events before it."""
        for index, item in enumerate(output):
            call = self._told(item, index)
            if call is not None and item.get("type") == _CALL:
                call.add(item)
            elif self._announces and item.get("type") == _CALL:
                raise DamagedStream("has a tool call that is not in the events before it")
        for call in self._calls:
            if not call.told and (call.done or whole):
                raise DamagedStream("lacks a tool call of the events before it")

    def _told(self, item: m.JsonObject, index: int) -> _CallEvents | None:
        """Return the call that an item of the response repeats, which no other item repeats."""
        ids = _ids(item)
        found = [call for given in ids for call in self._by_id.get(given, ())]
        here = self._named.get((index, ""))
        if here is not None and item.get("type") == _CALL and not (ids and here.ids):
            found.append(here)
        # Some gateways make up the ids of the response anew.
        found += [call for call in self._calls[:_MOST_COMPARED] if call.agrees(item)]
        call = next((call for call in found if not call.told), None)
        if call is not None:
            call.told = True
        return call


def _ids(item: m.JsonObject) -> frozenset[str]:
    given = (as_text(item.get("call_id")), as_text(item.get("id")))
    return frozenset(each for each in given if each)


def _differs(one: m.JsonObject, other: m.JsonObject) -> bool:
    """Return whether two items have ids, and different ones."""
    ids = (one.get("call_id") or one.get("id"), other.get("call_id") or other.get("id"))
    return None not in ids and ids[0] != ids[1]


def _item(value: object) -> m.JsonObject:
    item = intact(as_object(value), _ITEM)
    ungarbled(as_text(item.get("type")) or "", _TYPES, "item of type")
    for part in (*listed(item.get("content")), *listed(item.get("summary"))):
        intact(as_object(part), _PART)
        ungarbled(as_text(as_object(part).get("type")) or "", _TYPES, "part of type")
    return item


def _compare(item: m.JsonObject, pieces: list[str], done: m.JsonObject) -> None:
    """Hold an item of the response to its pieces, which came before, and to the item when it was done."""
    if "type" in done and not _differs(done, item) and done["type"] != item.get("type"):
        raise DamagedStream("has an item with another type than the events before it")
    parts = [as_object(part) for part in listed(item.get("content"))]
    text = "".join(as_text(part.get("text")) or "" for part in parts if part.get("type") == "output_text")
    # Some servers trim the whole text, but not its pieces.
    if pieces and parts and "".join(pieces).strip() != text.strip():
        raise DamagedStream("has another text than the events before it")
