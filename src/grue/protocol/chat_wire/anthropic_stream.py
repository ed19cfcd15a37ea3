"""Assemble a streamed message of Anthropic's from its events.

The events say in which order they come: a message starts, its blocks start and stop one after the other, what
is added goes to a block that is open, the message gets a reason to stop. A stream that breaks this order has
lost or garbled an event, and raises `DamagedStream`.
"""

from collections.abc import Iterable
from typing import NoReturn

from msgspec import Struct, field

from grue import messages as m
from grue.protocol.chat_wire.json_text import strict_value, to_json
from grue.protocol.chat_wire.reply import MAX_CALLS, as_object, as_text, weight
from grue.protocol.chat_wire.server_events import (
    DamagedStream,
    OversizedStream,
    ServerEvent,
    intact,
    ungarbled,
)
from grue.protocol.chat_wire.wire_format import Delta

_PIECES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""Kinds of deltas, and the field that they carry; but for input, it is that of the block that they add to."""

_ADDS_TO = {
    "text": frozenset({"text_delta", "citations_delta"}),
    "thinking": frozenset({"thinking_delta", "signature_delta"}),
    "tool_use": frozenset({"input_json_delta"}),
}
"""Deltas of the blocks that are read; others may have deltas of their own."""

_BLOCK_KINDS = frozenset(_ADDS_TO)
_KINDS = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    }
)
_KEPT = ("stop_reason", "stop_sequence", "stop_details")
"""Members that the end of a message adds to it."""

_EVENT = frozenset({"type", "message", "content_block", "delta", "error", "usage", "index"})
_BLOCK = frozenset({"type", "text", "thinking", "signature", "name", "input", "data"})
_DELTA = frozenset({"type", "text", "thinking", "signature", "partial_json", "stop_reason"})


class _Block(Struct):
    index: object
    fields: m.JsonObject
    open: bool = True
    pieces: dict[str, list[str]] = field(default_factory=dict)

    def whole(self) -> m.JsonObject:
        fields = {name: "".join(texts) for name, texts in self.pieces.items() if name != "partial_json"}
        begun = {name: f"{self.fields.get(name) or ''}{text}" for name, text in fields.items()}
        text = "".join(self.pieces.get("partial_json", []))
        if not text.strip():
            return self.fields | begun
        # Text that is cut short or not strict JSON is kept: the call is rejected later, with the reason.
        try:
            return self.fields | begun | {"input": strict_value(text)}
        except ValueError:
            return self.fields | begun | {"input": text}


class AnthropicAssembler:
    """Opens blocks, adds deltas to them by index, and keeps the last stop reason."""

    def __init__(self) -> None:
        self.finished = False
        self.held = 0
        self._message: m.JsonObject = {}
        self._started = False
        self._blocks: list[_Block] = []
        self._latest: dict[str, _Block] = {}
        self._open = 0

    @property
    def whole(self) -> bool:
        """The reply has ended; some servers leave out the event that says so."""
        return self.finished or bool(self._message.get("stop_reason"))

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Take the next event in, and return the text in it.

        Raises:
            DamagedStream: The event is not as it was sent, or one before it is missing.
            OversizedStream: It has more blocks than any reply.
        """
        said = intact(event.object, _EVENT)
        kind = as_text(said.get("type")) or event.kind
        if kind not in _KINDS and event.kind in _KINDS:
            raise DamagedStream(f"is of type {kind!a}, but is called {event.kind!a}")
        match kind:
            case "message_start":
                self._start(as_object(said.get("message")))
            case "content_block_start":
                self._begin(said)
            case "content_block_delta":
                return self._add(said)
            case "content_block_stop":
                self._end(said)
            case "message_delta":
                self._settle(said)
            case "message_stop":
                if not self.whole:
                    raise DamagedStream("ends the message, but no event gave it a stop_reason")
                self.finished = True
            case "error":
                self.finished = True
                self._message = {"error": as_object(said.get("error")) or {"message": event.text}}
            case _:
                pass
        return ()

    def body(self) -> bytes:
        """Return the message so far."""
        if not self._message or "error" in self._message:
            return to_json(self._message)
        return to_json({**self._message, "content": [block.whole() for block in self._blocks]})

    def _start(self, message: m.JsonObject) -> None:
        if self._started:
            raise DamagedStream("starts the message a second time")
        self._started = True
        self._message = dict(message)
        self.held += weight(message)

    def _begin(self, said: m.JsonObject) -> None:
        self._expect_message("starts a block")
        index, key = said.get("index"), _key(said.get("index"))
        fields = said.get("content_block")
        if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
            raise DamagedStream("starts a block of no type")
        ungarbled(fields["type"], _BLOCK_KINDS, "block of type")
        if fields["type"] == "tool_use" and not isinstance(fields.get("name"), str):
            raise DamagedStream("starts a tool call without a name")
        if key in self._latest and self._latest[key].open:
            raise DamagedStream(f"starts block {key} a second time")
        before = self._blocks[-1].index if self._blocks else None
        # A repeated number is not a gap: some servers never count up.
        if isinstance(index, int) and isinstance(before, int) and index - before not in (0, 1):
            raise DamagedStream(f"starts block {index} after block {before}")
        if len(self._blocks) >= MAX_CALLS:
            raise OversizedStream(f"the reply has more than {MAX_CALLS} blocks")
        self._latest[key] = _Block(index, dict(intact(fields, _BLOCK)))
        self.held += weight(fields)
        self._blocks.append(self._latest[key])
        self._open += 1

    def _add(self, said: m.JsonObject) -> Iterable[Delta]:
        block = self._opened(said, "adds to")
        delta = intact(as_object(said.get("delta")), _DELTA)
        kind = as_text(delta.get("type")) or ""
        block_kind = str(block.fields["type"])
        if kind not in _ADDS_TO.get(block_kind, {kind}):
            raise DamagedStream(f"adds {kind!a} to a block of type {block_kind!a}")
        name = _PIECES.get(kind)
        if name is None:
            return ()
        text = delta.get(name)
        if name not in delta or not isinstance(text, str | None):
            raise DamagedStream(f"adds {kind} without a text")
        if text:
            block.pieces.setdefault(name, []).append(text)
            self.held += len(text)
            if name in ("text", "thinking"):
                return (Delta(text, "content" if name == "text" else "reasoning"),)
        return ()

    def _end(self, said: m.JsonObject) -> None:
        self._opened(said, "ends").open = False
        self._open -= 1

    def _settle(self, said: m.JsonObject) -> None:
        self._expect_message("ends the message")
        delta = intact(as_object(said.get("delta")), _DELTA)
        usage = as_object(self._message.get("usage")) | as_object(said.get("usage"))
        self.held += weight(said)
        self._message |= {**{name: delta[name] for name in _KEPT if name in delta}, "usage": usage}
        if self._message.get("stop_reason") and self._open:
            raise DamagedStream("ends the message while a block is open")
        calls = any(block.fields["type"] == "tool_use" for block in self._blocks)
        if self._message.get("stop_reason") == "tool_use" and not calls:
            raise DamagedStream("ends the message with tool calls, but there are none")

    def _opened(self, said: m.JsonObject, does: str) -> _Block:
        key = _key(said.get("index"))
        block = self._latest.get(key)
        if block is None:
            self._broken(f"{does} block {key}, which has not started")
        if not block.open:
            self._broken(f"{does} block {key}, which has ended")
        return block

    def _expect_message(self, does: str) -> None:
        if not self._started:
            self._broken(f"{does}, but no message has started")

    def _broken(self, what: str) -> NoReturn:
        raise DamagedStream(what)


def _key(index: object) -> str:
    return repr(index)[:40]
