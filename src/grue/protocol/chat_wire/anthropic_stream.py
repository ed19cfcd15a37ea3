"""A streamed message of Anthropic's, put together from its events."""

from collections.abc import Iterable

from msgspec import Struct

from grue.messages import JsonObject
from grue.protocol.chat_wire.json_text import from_json, to_json
from grue.protocol.chat_wire.reply import as_object, as_text
from grue.protocol.chat_wire.server_events import ServerEvent
from grue.protocol.chat_wire.wire_format import Delta

_PIECES = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Kinds of deltas, and the field of a block (and of the delta itself) that they add to."""


class _Block(Struct):
    index: object
    fields: JsonObject
    input: str = ""

    def whole(self) -> JsonObject:
        if not self.input.strip():
            return self.fields
        try:
            return self.fields | {"input": from_json(self.input.encode("utf-8", "replace"))}
        except ValueError:
            # Cut short: it goes on as the text that it is, for the model to be told.
            return self.fields | {"input": self.input}


class AnthropicAssembler:
    """Opens blocks, adds to them by their index, and keeps the last word on how the message ended."""

    def __init__(self) -> None:
        self.finished = False
        self._message: JsonObject = {}
        self._blocks: list[_Block] = []

    @property
    def whole(self) -> bool:
        """The reply has ended; some servers leave out the event that says so."""
        return self.finished or bool(self._message.get("stop_reason"))

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Take the next event in, and return the text in it."""
        said = event.object
        match as_text(said.get("type")) or event.kind:
            case "message_start":
                self._message = dict(as_object(said.get("message")))
            case "content_block_start":
                self._blocks.append(_Block(said.get("index"), dict(as_object(said.get("content_block")))))
            case "content_block_delta":
                return self._add(said.get("index"), as_object(said.get("delta")))
            case "message_delta":
                usage = as_object(self._message.get("usage")) | as_object(said.get("usage"))
                self._message |= {**as_object(said.get("delta")), "usage": usage}
            case "message_stop":
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

    def _add(self, index: object, delta: JsonObject) -> Iterable[Delta]:
        block = self._block(index)
        kind = as_text(delta.get("type")) or ""
        if kind == "input_json_delta":
            block.input += as_text(delta.get("partial_json")) or ""
        elif kind in _PIECES:
            field = _PIECES[kind]
            text = as_text(delta.get(field)) or ""
            block.fields[field] = f"{block.fields.get(field) or ''}{text}"
            if text and field != "signature":
                return (Delta(text, "content" if field == "text" else "reasoning"),)
        return ()

    def _block(self, index: object) -> _Block:
        # The latest of that index: some servers never count up.
        found = next((block for block in reversed(self._blocks) if block.index == index), None)
        if found is None:
            found = _Block(index, {"type": "text", "text": ""})
            self._blocks.append(found)
        return found
