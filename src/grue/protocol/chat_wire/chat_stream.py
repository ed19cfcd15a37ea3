"""Assemble a streamed chat completion from its chunks.

Chunks have no numbers, so a lost chunk can be noticed only in the others: every call has to begin with
its name, the indexes of calls count up one by one (or never, at some servers, or are absent), and the reply
has to end with a reason. A stream that breaks one of these rules raises `DamagedStream`. So does one with
several choices, which would be joined to one text.
"""

from collections.abc import Iterable

from msgspec import Struct, field

from grue import messages as m
from grue.protocol.chat_wire.reply import MAX_CALLS, as_object, as_text, listed, text_of, weight
from grue.protocol.chat_wire.server_events import DamagedStream, OversizedStream, ServerEvent, intact
from grue.protocol.chat_wire.wire_format import Delta
from grue.protocol.json_text import strict_object, to_json

_THOUGHTS = ("reasoning_content", "reasoning")
_TEXTS = ("content", "refusal", *_THOUGHTS)

_KEPT = ("error", "id", "model", "usage", "service_tier", "system_fingerprint")
"""Members of chunks that belong to the completion; the last of each counts."""

_MOST_READ = 64 * 2**20
"""Characters of arguments that are read, over and over, to see whether a call is complete."""

_CHUNK = frozenset({"choices", "error", "usage", "model", "object", "created"})
_CHOICE = frozenset({"delta", "message", "finish_reason", "error", "index", "logprobs", "token_ids"})
_DELTA = frozenset({*_TEXTS, "tool_calls", "reasoning_details", "role"})
_TOKEN = ("id", "token", "logprob")
_PIECE = frozenset({"index", "function", "type", "extra_content"})
_FUNCTION = frozenset({"name", "arguments"})


class _Call(Struct):
    """A call whose pieces are coming in.

    Attributes:
        index: As the stream has it; `None`: it has none.
        whole: Arguments that came as an object and not as text.
        closed: Its arguments were complete when the next call began.
        chunk: The number of the chunk that brought its last piece.
    """

    index: object
    id: str
    name: str
    texts: list[str] = field(default_factory=list)
    whole: object = None
    extra: object = None
    closed: bool = False
    chunk: int = 0

    @property
    def written(self) -> str:
        """The arguments so far, as text."""
        return "".join(self.texts)

    @property
    def complete(self) -> bool:
        """Whether its arguments are a whole object."""
        return self.whole is not None or strict_object(self.written) is not None

    def as_json(self) -> m.JsonObject:
        arguments = self.written if self.whole is None else self.whole
        function: m.JsonObject = {"name": self.name, "arguments": arguments}
        call: m.JsonObject = {"index": self.index, "id": self.id, "type": "function", "function": function}
        return call | ({"extra_content": self.extra} if self.extra else {})


class ChatAssembler:
    """Joins the texts of deltas, and sorts the pieces of tool calls by their index."""

    def __init__(self) -> None:
        self.finished = False
        self.held = 0
        self._top: m.JsonObject = {}
        self._texts: dict[str, list[str]] = {}
        self._calls = _Calls()
        self._details: list[object] = []
        self._ids: list[object] = []
        self._logprobs: list[object] = []
        self._finish: object = None
        self._choice: object = None

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
        for key in _KEPT:
            if chunk.get(key) is not None:
                self.held += weight(chunk[key]) - weight(self._top.get(key))
                self._top[key] = chunk[key]
        if chunk.get("error"):
            self.finished = True
        choices = chunk.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise DamagedStream("has choices that are not a list")
        self._calls.chunk += 1
        return [delta for choice in listed(choices) for delta in self._add(_member(choice, "choice"))]

    def body(self) -> bytes:
        """Return the completion so far."""
        message: m.JsonObject = {"role": "assistant"}
        message |= {key: "".join(pieces) for key, pieces in self._texts.items()}
        if self._details:
            message["reasoning_details"] = self._details
        calls = self._calls.as_json()
        if calls:
            message["tool_calls"] = calls
        began = self._texts or calls or self._finish is not None
        if self._top.get("error") or not began:
            return to_json(self._top)
        choice: m.JsonObject = {"index": 0, "message": message, "finish_reason": self._finish}
        choice |= {"token_ids": self._ids} if self._ids else {}
        choice |= {"logprobs": {"content": self._logprobs}} if self._logprobs else {}
        return to_json({**self._top, "choices": [choice]})

    def _add(self, choice: m.JsonObject) -> Iterable[Delta]:
        intact(choice, _CHOICE)
        index = choice.get("index")
        self._choice = index if self._choice is None else self._choice
        if index is not None and index != self._choice:
            raise DamagedStream(f"has choice {_key(index):.40} beside choice {_key(self._choice):.40}")
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
        self._add_tokens(choice)
        for call in listed(delta.get("tool_calls")):
            self.held += self._calls.add(_member(call, "tool call"))
        if self._finish == "tool_calls" and not self._calls:
            raise DamagedStream("ends the reply with tool calls, but there are none")
        details = listed(delta.get("reasoning_details"))
        if details:
            self.held += weight(details)
            self._details += details
        for name in _TEXTS:
            text = _text(delta.get(name), name)
            if text:
                self._texts.setdefault(name, []).append(text)
                self.held += len(text)
                yield Delta(text, "reasoning" if name in _THOUGHTS else "content")

    def _add_tokens(self, choice: m.JsonObject) -> None:
        ids = listed(choice.get("token_ids"))
        content = listed(as_object(choice.get("logprobs")).get("content"))
        # The other tokens that there might have been are many times as long, and nobody reads them.
        logprobs = [
            {name: entry[name] for name in _TOKEN if name in entry} for entry in map(as_object, content)
        ]
        if ids or logprobs:
            self.held += weight([ids, logprobs])
            self._ids += ids
            self._logprobs += logprobs


class _Calls:
    """The tool calls of a reply.

    A piece belongs to the call with its index. Without an index it belongs to the call with its id, and
    without an id to the last call. Where it has a name, and no id tells it apart, it begins a call of its own
    if the call's arguments are complete, or if both are in one chunk. Before the arguments it is the rest of
    the name, or the same name again.

    Attributes:
        chunk: Number of the chunk whose pieces are added.
    """

    def __init__(self) -> None:
        self.chunk = 0
        self._read = 0
        self._calls: list[_Call] = []
        self._by_index: dict[str, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def as_json(self) -> list[m.JsonObject]:
        return [call.as_json() for call in self._calls]

    def add(self, piece: m.JsonObject) -> int:
        """Add a piece of a call; return how much it brought to hold.

        Raises:
            DamagedStream: The piece does not belong to a call that has begun, and does not begin one.
        """
        said = intact(_member(intact(piece, _PIECE).get("function") or {}, "function"), _FUNCTION)
        call = self._of(piece, said)
        arguments = said.get("arguments")
        if isinstance(arguments, str):
            if call.closed and arguments.strip():
                raise DamagedStream("adds to a tool call whose arguments are complete")
            call.texts.append(arguments)
        elif arguments is not None:
            call.whole = arguments
        call.extra = piece.get("extra_content") or call.extra
        call.chunk = self.chunk
        named = len(as_text(piece.get("id")) or "") + len(as_text(said.get("name")) or "")
        if isinstance(arguments, str):
            return named + len(arguments) + (weight(call.extra) if piece.get("extra_content") else 0)
        return named + weight([arguments, piece.get("extra_content")])

    def _of(self, piece: m.JsonObject, said: m.JsonObject) -> _Call:
        index, call_id = piece.get("index"), as_text(piece.get("id")) or ""
        if self._calls and (index is None) != (self._calls[-1].index is None):
            raise DamagedStream("has a piece of a tool call with an index, or without, unlike the others")
        known = self._known(index, call_id)
        name = as_text(said.get("name")) or ""
        if known is None or (name and self._is_another(known, call_id, name, said.get("arguments"))):
            return self._begin(index, call_id, said)
        if name != known.name:
            known.name += name
        if call_id and not known.id:
            known.id = call_id
            self._by_id[call_id] = known
        return known

    def _known(self, index: object, call_id: str) -> _Call | None:
        if index is None:
            if call_id or not self._calls:
                return self._by_id.get(call_id)
            return self._calls[-1]
        latest = self._by_index.get(_key(index))
        # Another id under the same index is another call: some servers never count up.
        if latest is None or not (call_id and latest.id) or latest.id == call_id:
            return latest
        other = self._by_id.get(call_id)
        return other if other is not None and other.index == index else None

    def _is_another(self, known: _Call, call_id: str, name: str, arguments: object) -> bool:
        """Return whether a piece with a name begins a call of its own, though its index is that of `known`.

        Raises:
            DamagedStream: It cannot: `known` lacks the end of its arguments.
        """
        if call_id and call_id == known.id:
            same = name == known.name or not known.written.strip()
        elif known.chunk == self.chunk:
            return True
        elif self._is_complete(known):
            # A gateway that repeats the name with every piece may add nothing more.
            return name != known.name or bool(arguments)
        else:
            same = name == known.name or not known.written.strip()
        if not same:
            raise DamagedStream("names another tool before the arguments of a call are complete")
        return False

    def _is_complete(self, call: _Call) -> bool:
        if call.whole is None and not (call.texts and call.texts[-1].rstrip().endswith("}")):
            return False
        # A stream may have a name and a brace in every piece, so the reading is bounded as a whole.
        self._read += len(call.written)
        if self._read > _MOST_READ:
            raise OversizedStream("the reply names its tool calls too often")
        return call.complete

    def _begin(self, index: object, call_id: str, said: m.JsonObject) -> _Call:
        name = said.get("name")
        if not isinstance(name, str):
            raise DamagedStream("adds to a tool call that has not begun")
        before = self._calls[-1].index if self._calls else None
        # The first may have any number: some gateways count the text before it.
        if isinstance(index, int) and isinstance(before, int) and index - before not in (0, 1):
            raise DamagedStream(f"begins tool call {index} after tool call {before}")
        if len(self._calls) >= MAX_CALLS:
            raise OversizedStream(f"the reply has more than {MAX_CALLS} tool calls")
        if self._calls:
            self._calls[-1].closed = self._calls[-1].complete
        call = _Call(index, call_id, name)
        self._calls.append(call)
        self._by_index[_key(index)] = call
        if call_id:
            self._by_id[call_id] = call
        return call


def _key(index: object) -> str:
    return str(index) if isinstance(index, int) else repr(index)


def _member(value: object, what: str) -> m.JsonObject:
    if not isinstance(value, dict):
        raise DamagedStream(f"has a {what} that is not an object")
    return as_object(value)


def _text(value: object, name: str) -> str:
    if value is not None and not isinstance(value, str | list | dict):
        raise DamagedStream(f"has a {name} that is not a text")
    return text_of(value)
