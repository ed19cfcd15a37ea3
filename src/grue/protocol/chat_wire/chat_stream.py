"""Assemble a streamed chat completion from its chunks.

Chunks have no numbers, so a lost chunk can be noticed only in the others: every call has to begin with
its name, the indexes of calls count up one by one (or never, at some servers, or are absent), and the reply
has to end with a reason. A stream that breaks one of these rules raises `DamagedStream`.
"""

from collections.abc import Iterable

from msgspec import Struct, field

from grue.messages import JsonObject
from grue.protocol.chat_wire.json_text import json_object, to_json
from grue.protocol.chat_wire.reply import MAX_CALLS, as_object, as_text, listed, text_of
from grue.protocol.chat_wire.server_events import DamagedStream, OversizedStream, ServerEvent, intact
from grue.protocol.chat_wire.wire_format import Delta

_THOUGHTS = ("reasoning_content", "reasoning")
_TEXTS = ("content", "refusal", *_THOUGHTS)

_CHUNK = frozenset({"choices", "error", "usage", "model", "object", "created"})
_CHOICE = frozenset({"delta", "message", "finish_reason", "error", "index", "logprobs"})
_DELTA = frozenset({*_TEXTS, "tool_calls", "reasoning_details", "role"})
_PIECE = frozenset({"index", "function", "type", "extra_content"})
_FUNCTION = frozenset({"name", "arguments"})


class _Call(Struct):
    """A call whose pieces are coming in.

    Attributes:
        index: As the stream has it; `None`: it has none.
        whole: Arguments that came as an object and not as text.
        closed: Its arguments were complete when the next call began.
    """

    index: object
    id: str
    name: str
    texts: list[str] = field(default_factory=list)
    whole: object = None
    extra: object = None
    closed: bool = False

    def as_json(self) -> JsonObject:
        arguments = "".join(self.texts) if self.whole is None else self.whole
        function: JsonObject = {"name": self.name, "arguments": arguments}
        call: JsonObject = {"index": self.index, "id": self.id, "type": "function", "function": function}
        return call | ({"extra_content": self.extra} if self.extra else {})


class ChatAssembler:
    """Joins the texts of deltas, and sorts the pieces of tool calls by their index."""

    def __init__(self) -> None:
        self.finished = False
        self.held = 0
        self._top: JsonObject = {}
        self._texts: dict[str, list[str]] = {}
        self._calls = _Calls()
        self._details: list[object] = []
        self._finish: object = None

    @property
    def whole(self) -> bool:
        """Whether the reply has ended. Some servers leave out the final event."""
        return self.finished or self._finish is not None

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Add the next chunk, and return the text in it.

        Raises:
            DamagedStream: This chunk or an earlier one is damaged.
            OversizedStream: The reply has too many calls.
        """
        if event.text.strip() == "[DONE]":
            if self._finish is None:
                raise DamagedStream("ends the reply, but no event gave it a finish_reason")
            self.finished = True
            return ()
        chunk = intact(event.object, _CHUNK)
        self._top |= {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        if chunk.get("error"):
            self.finished = True
        choices = chunk.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise DamagedStream("has choices that are not a list")
        return [delta for choice in listed(choices) for delta in self._add(_member(choice, "choice"))]

    def body(self) -> bytes:
        """Return the completion so far."""
        message: JsonObject = {"role": "assistant"}
        message |= {key: "".join(pieces) for key, pieces in self._texts.items()}
        if self._details:
            message["reasoning_details"] = self._details
        calls = self._calls.as_json()
        if calls:
            message["tool_calls"] = calls
        began = self._texts or calls or self._finish is not None
        if self._top.get("error") or not began:
            return to_json(self._top)
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return to_json({**self._top, "choices": [choice]})

    def _add(self, choice: JsonObject) -> Iterable[Delta]:
        intact(choice, _CHOICE)
        if choice.get("error"):
            self._top["error"] = choice["error"]
            self.finished = True
            return
        delta = _member(choice.get("delta") or {}, "delta")
        if not (delta or self._texts or self._calls):
            # A gateway that does not stream sends the whole message as its one chunk.
            delta = _member(choice.get("message") or {}, "message")
        intact(delta, _DELTA)
        self._finish = choice.get("finish_reason") or self._finish
        for call in listed(delta.get("tool_calls")):
            self.held += self._calls.add(_member(call, "tool call"))
        if self._finish == "tool_calls" and not self._calls:
            raise DamagedStream("ends the reply with tool calls, but there are none")
        self._details += listed(delta.get("reasoning_details"))
        for name in _TEXTS:
            text = _text(delta.get(name), name)
            if text:
                self._texts.setdefault(name, []).append(text)
                self.held += len(text)
                yield Delta(text, "reasoning" if name in _THOUGHTS else "content")


class _Calls:
    """The tool calls of a reply.

    A piece belongs to the call with its index. Without an index it belongs to the call with its id, and
    without an id to the last call.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[str, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def as_json(self) -> list[JsonObject]:
        return [call.as_json() for call in self._calls]

    def add(self, piece: JsonObject) -> int:
        """Add a piece of a call; return how many characters of arguments it brought.

        Raises:
            DamagedStream: The piece does not belong to a call that has begun, and does not begin one.
        """
        said = intact(_member(intact(piece, _PIECE).get("function") or {}, "function"), _FUNCTION)
        call = self._of(piece, said)
        # Names come whole; some gateways repeat them with every piece.
        call.name = as_text(said.get("name")) or call.name
        arguments = said.get("arguments")
        if isinstance(arguments, str):
            if call.closed and arguments.strip():
                raise DamagedStream("adds to a tool call whose arguments are complete")
            call.texts.append(arguments)
        elif arguments is not None:
            call.whole = arguments
        call.extra = piece.get("extra_content") or call.extra
        return len(arguments) if isinstance(arguments, str) else 0

    def _of(self, piece: JsonObject, said: JsonObject) -> _Call:
        index, call_id = piece.get("index"), as_text(piece.get("id")) or ""
        if self._calls and (index is None) != (self._calls[-1].index is None):
            raise DamagedStream("has a piece of a tool call with an index, or without, unlike the others")
        known = self._known(index, call_id, said)
        if known is None:
            return self._begin(index, call_id, said)
        if call_id and not known.id:
            known.id = call_id
            self._by_id[call_id] = known
        return known

    def _known(self, index: object, call_id: str, said: JsonObject) -> _Call | None:
        if index is None:
            if call_id or not self._calls or said.get("name"):
                return self._by_id.get(call_id)
            return self._calls[-1]
        latest = self._by_index.get(_key(index))
        # Another id under the same index is another call: some servers never count up.
        if latest is None or not (call_id and latest.id) or latest.id == call_id:
            return latest
        other = self._by_id.get(call_id)
        return other if other is not None and other.index == index else None

    def _begin(self, index: object, call_id: str, said: JsonObject) -> _Call:
        if not isinstance(said.get("name"), str):
            raise DamagedStream("adds to a tool call that has not begun")
        before = self._calls[-1].index if self._calls else None
        # The first may have any number: some gateways count the text before it.
        if isinstance(index, int) and isinstance(before, int) and index - before not in (0, 1):
            raise DamagedStream(f"begins tool call {index} after tool call {before}")
        if len(self._calls) >= MAX_CALLS:
            raise OversizedStream(f"the reply has more than {MAX_CALLS} tool calls")
        if self._calls:
            latest = self._calls[-1]
            latest.closed = json_object("".join(latest.texts)) is not None
        call = _Call(index, call_id, "")
        self._calls.append(call)
        self._by_index[_key(index)] = call
        if call_id:
            self._by_id[call_id] = call
        return call


def _key(index: object) -> str:
    return str(index) if isinstance(index, int) else repr(index)


def _member(value: object, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise DamagedStream(f"has a {what} that is not an object")
    return as_object(value)


def _text(value: object, name: str) -> str:
    if value is not None and not isinstance(value, str | list | dict):
        raise DamagedStream(f"has a {name} that is not a text")
    return text_of(value)
