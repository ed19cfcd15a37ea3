"""A streamed chat completion, put together from its chunks."""

from collections.abc import Iterable

from grue.messages import JsonObject
from grue.protocol.chat_wire.json_text import to_json
from grue.protocol.chat_wire.reply import as_object, as_text, listed, text_of
from grue.protocol.chat_wire.server_events import ServerEvent
from grue.protocol.chat_wire.wire_format import Delta

_THOUGHTS = ("reasoning_content", "reasoning")


class ChatAssembler:
    """Adds up deltas: texts are joined, tool calls are told apart by their index, the last word counts."""

    def __init__(self) -> None:
        self.finished = False
        self._top: JsonObject = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: list[JsonObject] = []
        self._details: list[object] = []
        self._finish: object = None

    @property
    def whole(self) -> bool:
        """The reply has ended; some servers leave out the event that says so."""
        return self.finished or self._finish is not None

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Take the next chunk in, and return the text in it."""
        if event.text.strip() == "[DONE]":
            self.finished = True
            return ()
        chunk = event.object
        self._top |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        self.finished = self.finished or bool(chunk.get("error"))
        return [delta for choice in listed(chunk.get("choices")) for delta in self._add(as_object(choice))]

    def body(self) -> bytes:
        """Return the completion so far."""
        message: JsonObject = {"role": "assistant"}
        message |= {key: "".join(pieces) for key, pieces in self._texts.items()}
        if self._details:
            message["reasoning_details"] = self._details
        if self._calls:
            message["tool_calls"] = self._calls
        began = self._texts or self._calls or self._finish is not None
        if self._top.get("error") or not began:
            return to_json(self._top)
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return to_json({**self._top, "choices": [choice]})

    def _add(self, choice: JsonObject) -> Iterable[Delta]:
        if choice.get("error"):
            self._top["error"] = choice["error"]
            self.finished = True
            return
        delta = as_object(choice.get("delta"))
        if not (delta or self._texts or self._calls):
            # A gateway that does not stream sends the whole message as its one chunk.
            delta = as_object(choice.get("message"))
        self._finish = choice.get("finish_reason") or self._finish
        for call in listed(delta.get("tool_calls")):
            self._call(as_object(call))
        self._details += listed(delta.get("reasoning_details"))
        for field in ("content", "refusal", *_THOUGHTS):
            text = text_of(delta.get(field))
            if text:
                self._texts.setdefault(field, []).append(text)
                yield Delta(text, "reasoning" if field in _THOUGHTS else "content")

    def _call(self, piece: JsonObject) -> None:
        call = self._call_of(piece)
        function = as_object(call["function"])
        said = as_object(piece.get("function"))
        # Names come whole; some gateways repeat them with every piece.
        function["name"] = as_text(said.get("name")) or function["name"]
        arguments = said.get("arguments")
        if isinstance(arguments, str):
            function["arguments"] = f"{function['arguments']}{arguments}"
        elif arguments is not None:
            function["arguments"] = to_json(arguments).decode()
        if piece.get("extra_content"):
            call["extra_content"] = piece["extra_content"]

    def _call_of(self, piece: JsonObject) -> JsonObject:
        """Return the call that a piece belongs to: by index, and where there is none by id, or the last."""
        index, call_id = piece.get("index"), as_text(piece.get("id")) or ""
        for call in reversed(self._calls):
            if index is not None and call["index"] is not None and call["index"] != index:
                continue
            # Another id under the same index is another call: some servers never count up.
            if call["id"] == call_id if call_id and call["id"] else index is not None:
                call["id"] = call["id"] or call_id
                return call
        if index is None and not call_id and self._calls and not as_object(piece.get("function")).get("name"):
            return self._calls[-1]
        self._calls.append(
            {
                "index": index,
                "id": call_id,
                "type": "function",
                "function": {"name": "", "arguments": ""},
            }
        )
        return self._calls[-1]
