"""A streamed response, put together from its events; the last one holds it whole."""

from collections.abc import Iterable
from typing import Literal

from grue.messages import JsonObject
from grue.protocol.chat_wire.json_text import to_json
from grue.protocol.chat_wire.reply import as_object, as_text
from grue.protocol.chat_wire.server_events import ServerEvent
from grue.protocol.chat_wire.wire_format import Delta

_TEXTS: dict[str, Literal["content", "reasoning"]] = {
    "response.output_text.delta": "content",
    "response.refusal.delta": "content",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
}
_LAST = ("response.completed", "response.incomplete", "response.failed")


class ResponsesAssembler:
    """Waits for the event that holds the response, and passes on the text of those before it."""

    def __init__(self) -> None:
        self.finished = False
        self._response: JsonObject = {}
        self._items: list[object] = []

    @property
    def whole(self) -> bool:
        """The event that holds the response has come."""
        return self.finished

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Take the next event in, and return the text in it."""
        said = event.object
        kind = as_text(said.get("type")) or event.kind
        if kind in _LAST:
            self.finished = True
            self._response = as_object(said.get("response"))
        elif kind == "error":
            self.finished = True
            self._response = {"error": as_object(said.get("error")) or said}
        elif kind == "response.output_item.done":
            self._items.append(said.get("item"))
        elif kind in _TEXTS:
            text = as_text(said.get("delta"))
            return (Delta(text, _TEXTS[kind]),) if text else ()
        return ()

    def body(self) -> bytes:
        """Return the response; the items that are done stand in where it holds none itself."""
        if self._items and self._response.get("output") == []:
            return to_json({**self._response, "output": self._items})
        return to_json(self._response)
