"""The wire format of OpenAI-style chat completions, `POST {base_url}/chat/completions`, and of its streams.

A lost chunk is noticed only if the rest breaks a rule, such as: a call's first piece has the tool's name;
the indexes of calls count up one by one (or are all equal, or missing); the reply has a `finish_reason`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.chat_wire import wire_format as w
from grue.protocol.chat_wire.failures import Fault, error_in, fault_in, fault_of_error
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.server_events import DamagedStream, OversizedStream, ServerEvent, intact
from grue.protocol.chat_wire.strict_schema import strict_format
from grue.protocol.json_text import strict_object, to_json
from grue.protocol.tools.names import WireNames

_ECHOED = ("reasoning_details", "reasoning_content")
_OF_CALLS = "tool_calls"  # key in `Reply.echo` for the calls' fields `extra_content`, by call id
_NO_SIGNATURE = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}


def without_signature(reply: w.Reply) -> w.Reply:
    """Return a reply whose first call tells Google's endpoints that it has no signature to be checked."""
    return replace(reply, echo={_OF_CALLS: {call.call_id: _NO_SIGNATURE for call in reply.tool_calls[:1]}})


# --- Requests ---


def _head(request: w.WireRequest) -> m.JsonObject:
    settings, profile = request.settings, request.profile
    fields: m.JsonObject = {"model": settings.model}
    for name, value in profile.sampled(settings).items():
        fields[profile.max_tokens_field if name == "max_tokens" else name] = value
    effort, budget = settings.reasoning_effort, settings.reasoning_tokens
    if profile.reasoning == "reasoning_effort":
        fields["reasoning_effort"] = effort
    elif profile.reasoning == "reasoning" and (effort or budget):
        # Send an effort or a number of tokens, not both. The number is more exact.
        fields["reasoning"] = {"max_tokens": budget} if budget else {"effort": effort}
    return fields


def _message(item: w.WireItem, marked: bool, profile: WireProfile) -> m.JsonObject:
    match item:
        case m.SystemText():
            return {"role": profile.system_role, "content": _content(item, marked)}
        case m.UserText():
            images = [_part(each) for each in w.sent(item, profile)]
            return {"role": "user", "content": _content(w.user_text(item, profile), marked, images)}
        case m.AssistantText(text=text):
            return {"role": "assistant", "content": w.non_blank(text)}
        case m.ToolMessage(call_id=call_id):
            text = w.result_text(item, profile, shown=w.SHOWN_NEXT)
            return {"role": "tool", "tool_call_id": call_id, "content": w.non_blank(text)}
        case w.Shown(results=results):
            return {"role": "user", "content": [part for each in results for part in _parts(each, profile)]}
        case _:
            assert_never(item)


def _content(item: m.SystemText | m.UserText, marked: bool, images: Sequence[m.JsonObject] = ()) -> object:
    pieces = w.marked_pieces(item, marked)
    if not images and not any(control for _, control in pieces):
        return w.non_blank(item.text)
    texts = [
        {"type": "text", "text": text, **({"cache_control": control} if control else {})}
        for text, control in pieces
    ]
    return [*images, *texts]


def _parts(result: m.ToolMessage, profile: WireProfile) -> list[m.JsonObject]:
    return [{"type": "text", "text": w.label(result)}, *map(_part, w.sent(result, profile))]


def _part(attachment: m.Attachment) -> m.JsonObject:
    match attachment.kind:
        case "image":
            return {"type": "image_url", "image_url": {"url": w.data_url(attachment)}}
        case "audio":
            format_ = "wav" if attachment.mime == "audio/wav" else "mp3"
            return {"type": "input_audio", "input_audio": {"data": attachment.data, "format": format_}}
        case "file":
            file = {"filename": attachment.name, "file_data": w.data_url(attachment)}
            return {"type": "file", "file": file}
        case _:
            assert_never(attachment.kind)


def _called(call: m.ToolCall, names: WireNames) -> m.JsonObject:
    arguments = call.arguments if strict_object(call.arguments) is not None else "{}"
    function = {"name": names.to_wire(call.name), "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _choice(choice: w.Choice) -> object:
    named = {"type": "function", "function": {"name": choice.name}}
    return named if choice.mode == "named" else choice.mode


def _answer(answer: m.AnswerSchema | None, profile: WireProfile) -> m.JsonObject:
    if answer is None or profile.response_format == "none":
        return {}
    if profile.response_format == "json_object":
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": strict_format(answer)}}


# --- Replies ---


def _read(
    answer: m.JsonObject, choice: m.JsonObject, message: m.JsonObject, ids: w.CallIds, names: WireNames
) -> w.Reply:
    raw_calls = [call for call in w.listed(message.get("tool_calls")) if isinstance(call, dict)]
    # Some local endpoints leave out the inner object `function`.
    functions = [w.as_object(call.get("function")) or call for call in raw_calls]
    calls = tuple(
        w.read_call(call.get("id"), function.get("name"), function.get("arguments"), ids, names)
        for call, function in zip(raw_calls, functions, strict=True)
    )
    finish = w.as_text(choice.get("finish_reason"))
    finish = "length" if finish and finish.lower() in w.LENGTH else finish
    if finish == "length" and raw_calls:
        calls = w.unless_cut(calls, functions[-1].get("arguments"))
    beside = {
        call.call_id: {"extra_content": raw["extra_content"]}
        for call, raw in zip(calls, raw_calls, strict=True)
        if raw.get("extra_content")
    }
    echo = {key: message[key] for key in _ECHOED if message.get(key)}
    content, refusal = w.text_of(message.get("content")), w.text_of(message.get("refusal"))
    thoughts = (w.text_of(message[name]) for name in _THOUGHTS if name in message)
    parts = w.objects(message.get("content"))
    refused = "".join(w.as_text(part.get("refusal")) or "" for part in parts)
    return w.Reply(
        content=content or None,
        tool_calls=calls,
        refusal=refusal or refused or None,
        reasoning=next(filter(None, thoughts), None),
        finish_reason=finish,
        cut=finish == "length",
        model=w.as_text(answer.get("model")) or "",
        facts=w.facts_of(answer),
        usage=_usage(w.as_object(answer.get("usage"))),
        echo=echo | ({_OF_CALLS: beside} if beside else {}),
        tokens=_tokens(choice),
    )


def _tokens(choice: m.JsonObject) -> m.ReplyTokens | None:
    """Return a reply's tokens, if any. An unreadable id drops all ids, an unreadable logprob all logprobs."""
    if not (choice.get("logprobs") or choice.get("token_ids")):
        return None
    content = w.objects(w.as_object(choice.get("logprobs")).get("content"))
    ids: list[object] = w.listed(choice.get("token_ids"))  # from vLLM, if `return_token_ids` is set
    ids = ids or [_token_id(entry) for entry in content]
    values = [entry.get("logprob") for entry in content]
    known = tuple(each for each in ids if type(each) is int and 0 <= each < 2**53)
    logprobs = tuple(float(each) for each in values if isinstance(each, int | float) and math.isfinite(each))
    read = m.ReplyTokens(
        ids=known if len(known) == len(ids) else (),
        # Drop logprobs if ids are readable, but not as many, as after a stop word or in a cut stream.
        logprobs=logprobs if len(logprobs) == len(values) and len(known) in (0, len(values)) else (),
    )
    return read if read.ids or read.logprobs else None


def _token_id(entry: m.JsonObject) -> object:
    token = entry.get("token")
    if isinstance(token, str) and token.startswith("token_id:"):  # vLLM with `return_tokens_as_token_ids`
        digits = token.removeprefix("token_id:")
        return int(digits) if digits.isdecimal() and len(digits) < 16 else None
    return entry.get("id")  # from llama.cpp


def _usage(usage: m.JsonObject) -> m.Usage:
    prompt = w.as_object(usage.get("prompt_tokens_details"))
    return w.usage_of(
        usage,
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        cached_tokens=prompt.get("cached_tokens", usage.get("prompt_cache_hit_tokens")),
        cache_write_tokens=prompt.get("cache_write_tokens"),
        reasoning_tokens=w.as_object(usage.get("completion_tokens_details")).get("reasoning_tokens"),
    )


_THOUGHTS = ("reasoning_content", "reasoning")
_TEXTS = ("content", "refusal", *_THOUGHTS)
_KEPT = ("error", "id", "model", "usage", "service_tier", "system_fingerprint")
"""Members of chunks that belong to the whole completion; the last value of each counts."""

_LARGE_WEIGHT = 16 * 2**10
"""A member of `_KEPT` with more weight counts in `ChatAssembler.held` each time it comes, so that the limit
on `held` bounds the work. A lighter one, which many chunks repeat, counts once: so `held` is above 0 from the
first chunk on, and a reply that breaks before its first text has cost its prompt."""

_MOST_READ = 64 * 2**20  # characters that `_is_complete` parses for one reply; repeated parsing counts again
_CHUNK = frozenset({"choices", "error", "usage", "model", "object", "created"})
_CHOICE = frozenset({"delta", "message", "finish_reason", "error", "index", "logprobs", "token_ids"})
_DELTA = frozenset({*_TEXTS, "tool_calls", "reasoning_details", "role"})
_TOKEN = ("id", "token", "logprob")
_PIECE = frozenset({"index", "function", "type", "extra_content"})
_FUNCTION = frozenset({"name", "arguments"})


class _Call(Struct):
    """A call whose pieces are coming in."""

    index: object
    id: str
    name: str
    texts: list[str] = field(default_factory=list)
    whole: object = None  # the arguments, if they did not come as text
    extra: object = None
    closed: bool = False  # the arguments were complete when the next call began, so no piece may add to them
    chunk: int = 0  # the number of the chunk that brought the last piece

    @property
    def written(self) -> str:
        return "".join(self.texts)

    @property
    def complete(self) -> bool:
        return self.whole is not None or strict_object(self.written) is not None

    def as_json(self) -> m.JsonObject:
        arguments: object = self.written
        # Some gateways begin a call with the arguments `{}`, and then send their text in pieces.
        if self.whole or (self.whole is not None and not self.written.strip()):
            arguments = self.whole
        function: m.JsonObject = {"name": self.name, "arguments": arguments}
        call: m.JsonObject = {"index": self.index, "id": self.id, "type": "function", "function": function}
        return call | ({"extra_content": self.extra} if self.extra else {})


class ChatAssembler:
    """Assembles a completion from chunks."""

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
    def begun(self) -> bool:
        """`True` if a piece of text, of a call or of `reasoning_details` has arrived."""
        return bool(self._texts or self._calls or self._details)

    @property
    def whole(self) -> bool:
        """`True` if the reply has ended. A `finish_reason` is enough: some endpoints leave out `[DONE]`."""
        return self.finished or self._finish is not None

    def feed(self, event: ServerEvent) -> Iterable[w.Delta]:
        if event.text.strip() == "[DONE]":
            if self._finish is None:
                raise DamagedStream("ends the reply, but no event gave it a finish_reason")
            self.finished = True
            return ()
        chunk = intact(event.object, _CHUNK)
        for key in _KEPT:
            if chunk.get(key) is not None:
                size, is_first = w.weight(chunk[key]), key not in self._top
                self.held += size if size > _LARGE_WEIGHT or is_first else 0
                self._top[key] = chunk[key]
        if chunk.get("error"):
            self.finished = True
        choices = chunk.get("choices")
        if choices is None and not chunk.get("error") and error_in(chunk) is not None:
            # The chunk is an error in an unusual shape, such as {"detail": ...}.
            self._top["error"] = chunk.get("base_resp") or chunk
            self.finished = True
        if choices is not None and not isinstance(choices, list):
            raise DamagedStream("has choices that are not a list")
        # No endpoint needs several choices in a chunk. Count all but the first in `held`, which is limited.
        self.held += sum(map(w.weight, choices[1:])) if choices else 0
        self._calls.chunk += 1
        return [delta for choice in w.listed(choices) for delta in self._add(_member(choice, "choice"))]

    def body(self) -> bytes:
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

    def _add(self, choice: m.JsonObject) -> Iterable[w.Delta]:
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
            # A gateway that does not stream sends the whole message in its only chunk.
            delta = _member(choice.get("message") or {}, "message")
        intact(delta, _DELTA)
        self._finish = choice.get("finish_reason") or self._finish
        self._add_tokens(choice)
        for call in w.listed(delta.get("tool_calls")):
            self.held += self._calls.add(_member(call, "tool call"))
        if self._finish == "tool_calls" and not self._calls:
            raise DamagedStream("ends the reply with tool calls, but there are none")
        details = w.listed(delta.get("reasoning_details"))
        if details:
            self.held += w.weight(details)
            self._details += details
        for name in _TEXTS:
            if name == "reasoning" and delta.get("reasoning_content"):
                continue  # vLLM and some gateways send the thoughts as `reasoning_content` too
            said = delta.get(name)
            text = _text(said, name)
            self.held += 0 if said is None or isinstance(said, str) else w.weight(said)
            if text:
                self._texts.setdefault(name, []).append(text)
                self.held += len(text)
                yield w.Delta(text, "reasoning" if name in _THOUGHTS else "content")

    def _add_tokens(self, choice: m.JsonObject) -> None:
        ids = w.listed(choice.get("token_ids"))
        content = w.objects(w.as_object(choice.get("logprobs")).get("content"))
        # Leave out the alternatives to each token, which are many times as long.
        logprobs = [{name: entry[name] for name in _TOKEN if name in entry} for entry in content]
        if ids or logprobs:
            self.held += w.weight([ids, logprobs])
            self._ids += ids
            self._logprobs += logprobs


class _Calls:
    """The tool calls of a reply. A piece with neither index nor id continues the last call, or begins one."""

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
        """Add a piece of a call, and return its size, which the caller adds to `ChatAssembler.held`."""
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
        named = len(w.as_text(piece.get("id")) or "") + len(w.as_text(said.get("name")) or "")
        if isinstance(arguments, str):
            return named + len(arguments) + (w.weight(call.extra) if piece.get("extra_content") else 0)
        return named + w.weight([arguments, piece.get("extra_content")])

    def _of(self, piece: m.JsonObject, said: m.JsonObject) -> _Call:
        index, call_id = piece.get("index"), w.as_text(piece.get("id")) or ""
        if self._calls and (index is None) != (self._calls[-1].index is None):
            raise DamagedStream("has a piece of a tool call with an index, or without, unlike the others")
        known = self._known(index, call_id)
        name = w.as_text(said.get("name")) or ""
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
            return self._by_id.get(call_id) if call_id or not self._calls else self._calls[-1]
        latest = self._by_index.get(_key(index))
        # Some endpoints give all calls one index, so a piece with another id belongs to another call.
        if latest is None or not (call_id and latest.id) or latest.id == call_id:
            return latest
        other = self._by_id.get(call_id)
        return other if other is not None and other.index == index else None

    def _is_another(self, known: _Call, call_id: str, name: str, arguments: object) -> bool:
        """Return whether a piece with a name begins a new call, although it seems to belong to `known`."""
        if not call_id or call_id != known.id:
            if known.chunk == self.chunk:
                return True
            if self._is_complete(known):
                # Some gateways repeat the name in every piece of a call. After complete arguments, a piece
                # with the same name and no arguments is therefore the call's last piece, not another call.
                return name != known.name or bool(arguments)
        if name != known.name and known.written.strip():
            raise DamagedStream("names another tool before the arguments of a call are complete")
        return False

    def _is_complete(self, call: _Call) -> bool:
        if call.whole is None and not (call.texts and call.texts[-1].rstrip().endswith("}")):
            return False
        # `complete` parses all arguments so far, perhaps for each piece, so limit the total.
        self._read += len(call.written)
        if self._read > _MOST_READ:
            raise OversizedStream("the reply names its tool calls too often")
        return call.complete

    def _begin(self, index: object, call_id: str, said: m.JsonObject) -> _Call:
        name = said.get("name")
        if not isinstance(name, str):
            raise DamagedStream("adds to a tool call that has not begun")
        before = self._calls[-1].index if self._calls else None
        # The first call may have any index, because some gateways also give an index to the text before it.
        if isinstance(index, int) and isinstance(before, int) and index - before not in (0, 1):
            raise DamagedStream(f"begins tool call {index} after tool call {before}")
        if len(self._calls) >= w.MAX_CALLS:
            raise OversizedStream(f"the reply has more than {w.MAX_CALLS} tool calls")
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
    return w.as_object(value)


def _text(value: object, name: str) -> str:
    if value is not None and not isinstance(value, str | list | dict):
        raise DamagedStream(f"has a {name} that is not a text")
    return w.text_of(value)


class ChatCompletions(w.WireFormat):
    """The format that most endpoints use."""

    name = "chat_completions"
    path = "/chat/completions"
    profile = WireProfile(name="generic")
    provider = "openai"
    inputs = frozenset({"image", "audio", "file"})
    own_fields = frozenset({"model", "messages", "tools", "tool_choice", "stream"})
    limit_fields = frozenset({"max_tokens", "max_completion_tokens"})
    echoes_text = False
    results_carry_media = False
    assembler = ChatAssembler
    batches: w.BatchFormName | None = "openai"

    def encode_items(
        self, items: Sequence[w.WireItem], marked: Collection[int], profile: WireProfile
    ) -> w.EncodedItems:
        encoded = (_message(item, position in marked, profile) for position, item in enumerate(items))
        return w.EncodedItems(messages=tuple(map(to_json, encoded)))

    def encode_reply(self, reply: w.Reply, names: WireNames) -> tuple[bytes, ...]:
        """Encode the assistant's message. Gateways may parse arguments, so invalid ones are sent as `{}`."""
        text = reply.content if reply.content and not reply.content.isspace() else None
        beside = w.as_object(reply.echo.get(_OF_CALLS))
        calls = [_called(call, names) | w.as_object(beside.get(call.call_id)) for call in reply.tool_calls]
        if not calls and text is None:
            return ()
        message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
        echoed = _ECHOED if calls else _ECHOED[:1]  # only a reply with calls needs its `reasoning_content`
        return (to_json(message | {key: reply.echo[key] for key in echoed if key in reply.echo}),)

    def has_thoughts(self, echo: m.JsonObject) -> bool:
        """Return whether `echo` has anything: it never repeats a text or a call."""
        return bool(echo)

    def tool(self, function: m.JsonObject) -> m.JsonObject:
        return {"type": "function", "function": function}

    def body(self, request: w.WireRequest) -> bytes:
        own = _answer(request.answer, request.profile)
        if request.stream:
            extra = dict(request.extra)
            own["stream_options"] = {"include_usage": True, **w.as_object(extra.pop("stream_options", None))}
            request = replace(request, extra=extra)
        return w.encode_body(request, "messages", _head(request), _choice(request.choice), own)

    def read(self, answer: m.JsonObject, ids: w.CallIds, names: WireNames) -> w.Reply | Fault:
        """Read the body of a reply. It may have tool calls although its `finish_reason` is `stop`."""
        match answer.get("choices"):
            case [{"error": error}, *_] if error:
                return fault_of_error(error)
            case [{"message": {"tool_calls": list(calls)}}, *_] if len(calls) > w.MAX_CALLS:
                return w.no_completion(f"more than {w.MAX_CALLS} tool calls")
            case [dict() as choice, *_] if isinstance(message := choice.get("message"), dict):
                return _read(answer, choice, message, ids, names)
            case _:
                return fault_in(answer, "no choices")
