"""The wire format of Anthropic's messages, `POST {base_url}/messages`.

Tool results and user texts between two replies form one user message, because the endpoint requires the
results of all calls in the message after the calls. Signed thinking blocks have to be sent back unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.chat_wire import server_events
from grue.protocol.chat_wire import wire_format as w
from grue.protocol.chat_wire.failures import Fault, fault_in, fault_of_error
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.strict_schema import strict_format
from grue.protocol.json_text import strict_object, strict_value, to_json
from grue.protocol.tools.names import WireNames

_PIECES = {  # the field that a delta carries; blocks have these fields, except for `partial_json`
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_ADDS_TO = {  # deltas that each kind of block consists of; a block of another kind may have any
    "text": frozenset({"text_delta", "citations_delta"}),
    "thinking": frozenset({"thinking_delta", "signature_delta"}),
    "tool_use": frozenset({"input_json_delta"}),
}
_KINDS = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"}
    | {"message_stop", "error"}
)
_KEPT = ("stop_reason", "stop_sequence", "stop_details")  # come only with the last events of the stream
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
        # Arguments that are not strict JSON stay text, which `read_arguments` reads or rejects later.
        with contextlib.suppress(ValueError):
            return self.fields | begun | {"input": strict_value(text)}
        return self.fields | begun | {"input": text}


class AnthropicAssembler:
    """Assembles a message from its events."""

    def __init__(self) -> None:
        self.finished = False
        self.held = 0
        self._message: m.JsonObject = {}
        self._started = False
        self._blocks: list[_Block] = []
        self._latest: dict[str, _Block] = {}
        self._open = 0

    @property
    def begun(self) -> bool:
        """`True` if a block has begun."""
        return bool(self._blocks)

    @property
    def whole(self) -> bool:
        """`True` if the reply has ended. A stop reason is enough: some endpoints leave out `message_stop`."""
        return self.finished or bool(self._message.get("stop_reason"))

    def feed(self, event: server_events.ServerEvent) -> Iterable[w.Delta]:
        said = server_events.intact(event.object, _EVENT)
        kind = w.as_text(said.get("type")) or event.kind
        if kind not in _KINDS and event.kind in _KINDS:
            raise server_events.DamagedStream(f"is of type {kind!a}, but is called {event.kind!a}")
        match kind:
            case "message_start":
                if self._started:
                    raise server_events.DamagedStream("starts the message a second time")
                self._started, self._message = True, dict(w.as_object(said.get("message")))
                self.held += w.weight(self._message)
            case "content_block_start":
                self._begin(said)
            case "content_block_delta":
                return self._add(said)
            case "content_block_stop":
                self._opened(said, "ends").open = False
                self._open -= 1
            case "message_delta":
                self._settle(said)
            case "message_stop":
                if not self.whole:
                    raise server_events.DamagedStream("ends the message, but no event gave it a stop_reason")
                self.finished = True
            case "error":
                self.finished = True
                self._message = {"error": w.as_object(said.get("error")) or {"message": event.text}}
        return ()

    def body(self) -> bytes:
        if not self._message or "error" in self._message:
            return to_json(self._message)
        return to_json({**self._message, "content": [block.whole() for block in self._blocks]})

    def _begin(self, said: m.JsonObject) -> None:
        self._expect_message("starts a block")
        index, key = said.get("index"), _key(said.get("index"))
        fields = said.get("content_block")
        if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
            raise server_events.DamagedStream("starts a block of no type")
        server_events.ungarbled(fields["type"], frozenset(_ADDS_TO), "block of type")
        if fields["type"] == "tool_use" and not isinstance(fields.get("name"), str):
            raise server_events.DamagedStream("starts a tool call without a name")
        if key in self._latest and self._latest[key].open:
            raise server_events.DamagedStream(f"starts block {key} a second time")
        before = self._blocks[-1].index if self._blocks else None
        # Some endpoints give all blocks one index, so a repeated index does not show that a block is lost.
        if isinstance(index, int) and isinstance(before, int) and index - before not in (0, 1):
            raise server_events.DamagedStream(f"starts block {index} after block {before}")
        if len(self._blocks) >= w.MAX_CALLS:
            raise server_events.OversizedStream(f"the reply has more than {w.MAX_CALLS} blocks")
        self._latest[key] = _Block(index, dict(server_events.intact(fields, _BLOCK)))
        self.held += w.weight(fields)
        self._blocks.append(self._latest[key])
        self._open += 1

    def _add(self, said: m.JsonObject) -> Iterable[w.Delta]:
        block = self._opened(said, "adds to")
        delta = server_events.intact(w.as_object(said.get("delta")), _DELTA)
        kind = w.as_text(delta.get("type")) or ""
        block_kind = str(block.fields["type"])
        if kind not in _ADDS_TO.get(block_kind, {kind}):
            raise server_events.DamagedStream(f"adds {kind!a} to a block of type {block_kind!a}")
        name = _PIECES.get(kind)
        if name is None:
            return ()
        text = delta.get(name)
        if name not in delta or not isinstance(text, str | None):
            raise server_events.DamagedStream(f"adds {kind} without a text")
        if text:
            block.pieces.setdefault(name, []).append(text)
            self.held += len(text)
            if name in ("text", "thinking"):
                return (w.Delta(text, "content" if name == "text" else "reasoning"),)
        return ()

    def _settle(self, said: m.JsonObject) -> None:
        self._expect_message("ends the message")
        delta = server_events.intact(w.as_object(said.get("delta")), _DELTA)
        begun = w.as_object(self._message.get("usage"))
        # Some endpoints repeat the counts of the message's start as `null` or 0.
        counted = {name: n for name, n in w.as_object(said.get("usage")).items() if n or name not in begun}
        usage = begun | counted
        self.held += w.weight(said)
        self._message |= {**{name: delta[name] for name in _KEPT if name in delta}, "usage": usage}
        if self._message.get("stop_reason") and self._open:
            raise server_events.DamagedStream("ends the message while a block is open")
        calls = any(block.fields["type"] == "tool_use" for block in self._blocks)
        if self._message.get("stop_reason") == "tool_use" and not calls:
            raise server_events.DamagedStream("ends the message with tool calls, but there are none")

    def _opened(self, said: m.JsonObject, does: str) -> _Block:
        key = _key(said.get("index"))
        block = self._latest.get(key)
        if block is None:
            raise server_events.DamagedStream(f"{does} block {key}, which has not started")
        if not block.open:
            raise server_events.DamagedStream(f"{does} block {key}, which has ended")
        return block

    def _expect_message(self, does: str) -> None:
        if not self._started:
            raise server_events.DamagedStream(f"{does}, but no message has started")


def _key(index: object) -> str:
    return repr(index)[:40]


API_VERSION = "2023-06-01"

_CONTENT = "content"  # key in `Reply.echo` for the reply's content blocks, in order
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}
_FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_EFFORTS = {"minimal": "low"}  # efforts that this format does not have, and what is sent instead


class AnthropicMessages(w.WireFormat):
    """The format of Anthropic's endpoint and of compatible gateways."""

    name = "messages"
    path = "/messages"
    profile = WireProfile(
        name="generic messages",
        wire="messages",
        cache_markers=4,
        names="encoded",
        sampling=frozenset({"temperature", "top_p", "top_k", "max_tokens", "stop"}),
        default_max_tokens=8192,
        reasoning="thinking",
        tools_with_forced=True,
        call_ids=r"[a-zA-Z0-9_-]+",
    )
    provider = "anthropic"
    inputs = frozenset({"image", "file"})
    own_fields = frozenset({"model", "messages", "system", "tools", "tool_choice", "stream"})
    limit_fields = frozenset({"max_tokens"})
    json_objects = False
    assembler = AnthropicAssembler
    marks_results = True
    batches = "anthropic"

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers with the API version and the key, which is left out if it is empty."""
        return {"anthropic-version": API_VERSION} | ({"x-api-key": key} if key else {})

    def encode_items(
        self, items: Sequence[w.WireItem], marked: Collection[int], profile: WireProfile
    ) -> w.EncodedItems:
        """Encode the items; consecutive items of one role form one message."""
        system: list[bytes] = []
        messages: list[tuple[str, list[m.JsonObject]]] = []
        for position, item in enumerate(items):
            blocks = _blocks(item, position in marked, profile)
            if isinstance(item, m.SystemText):
                system += map(to_json, blocks)
                continue
            role = "assistant" if isinstance(item, m.AssistantText) else "user"
            if not messages or messages[-1][0] != role:
                messages.append((role, []))
            messages[-1][1].extend(blocks)
        encoded = tuple(to_json({"role": role, "content": content}) for role, content in messages)
        return w.EncodedItems(tuple(system), encoded)

    def encode_reply(self, reply: w.Reply, names: WireNames) -> tuple[bytes, ...]:
        """Encode a reply's blocks, but only the calls in `reply.tool_calls`. Thoughts alone are not sent."""
        calls = {call.call_id: call for call in reply.tool_calls}
        blocks: list[m.JsonObject] = []
        for block in w.objects(reply.echo.get(_CONTENT)) or _blocks_of(reply):
            if block.get("type") != "tool_use":
                blocks.append(block)
            elif (call := calls.get(str(block.get("id")))) is not None:  # type: ignore[call-overload]  # NewType
                blocks.append(_called(call, names))
        if all(block.get("type") in _THOUGHTS for block in blocks):
            return ()
        return (to_json({"role": "assistant", "content": blocks}),)

    def has_thoughts(self, echo: m.JsonObject) -> bool:
        """Return whether `echo` has a block of thoughts."""
        return any(block.get("type") in _THOUGHTS for block in w.objects(echo.get(_CONTENT)))

    def tool(self, function: m.JsonObject) -> m.JsonObject:
        schema = function.pop("parameters")
        return {**function, "input_schema": schema}

    def body(self, request: w.WireRequest) -> bytes:
        if request.messages and request.messages[0].startswith(b'{"role":"assistant"'):
            # A history may begin with a greeting. Gateways require that a user's message comes first.
            first = to_json({"role": "user", "content": [_text(w.EMPTY)]})
            request = replace(request, messages=(first, *request.messages))
        return w.encode_body(request, "messages", _head(request), _choice(request.choice), _output(request))

    def read(self, answer: m.JsonObject, ids: w.CallIds, names: WireNames) -> w.Reply | Fault:
        if answer.get("error"):
            return fault_of_error(answer["error"])
        if not isinstance(answer.get("content"), list):
            return fault_in(answer, "no content")
        if len(w.listed(answer["content"])) > w.MAX_CALLS:
            return w.no_completion(f"more than {w.MAX_CALLS} blocks")
        return _read(answer, ids, names)


# --- Requests ---

_THINKS = ("thinking", "adaptive")
_THOUGHTS = ("thinking", "redacted_thinking")


def _head(request: w.WireRequest) -> m.JsonObject:
    settings, profile = request.settings, request.profile
    fields: m.JsonObject = {"model": settings.model}
    thinking = _thinking(request)
    for name, value in profile.sampled(settings).items():
        if name in ("max_tokens", "stop"):
            fields["stop_sequences" if name == "stop" else name] = value
        elif thinking is None or thinking["type"] == "disabled":
            # Send sampling settings only without thinking: the endpoint refuses both together.
            fields[name] = value
    fields["thinking"] = thinking
    return fields


def _thinking(request: w.WireRequest) -> m.JsonObject | None:
    settings, profile = request.settings, request.profile
    if profile.reasoning not in _THINKS:
        return None
    if settings.reasoning_effort == "none":
        return {"type": "disabled"}
    if request.choice.mode in ("required", "named"):
        return None  # the endpoint refuses thinking in a request that forces a call
    if settings.reasoning_tokens and profile.reasoning == "thinking":
        return {"type": "enabled", "budget_tokens": settings.reasoning_tokens}
    return {"type": "adaptive"} if settings.reasoning_effort or settings.reasoning_tokens else None


def _output(request: w.WireRequest) -> m.JsonObject:
    effort, answer = request.settings.reasoning_effort, request.answer
    config: m.JsonObject = {}
    if request.profile.reasoning in _THINKS and effort not in (None, "none"):
        config["effort"] = _EFFORTS.get(effort, effort)
    if answer is not None and request.profile.response_format == "json_schema":
        config["format"] = {"type": "json_schema", "schema": strict_format(answer)["schema"]}
    return {"output_config": config} if config else {}


def _blocks(item: w.WireItem, marked: bool, profile: WireProfile) -> list[m.JsonObject]:
    match item:
        case m.ToolMessage(call_id=call_id):
            text = w.non_blank(w.result_text(item, profile))
            attached = [_attached(each) for each in w.sent(item, profile)]
            content = [_text(text), *attached] if attached else text
            marker: m.JsonObject = {"cache_control": w.EPHEMERAL} if marked else {}
            return [{"type": "tool_result", "tool_use_id": call_id, "content": content, **marker}]
        case w.Shown():
            raise NotImplementedError  # `Shown` is made only for formats without `results_carry_media`
        case m.AssistantText(text=text):
            return [_text(w.non_blank(text))]
        case m.UserText():
            images = [_attached(each) for each in w.sent(item, profile)]
            return [*images, *_pieces(w.user_text(item, profile), marked)]
        case m.SystemText():
            return _pieces(item, marked)
        case _:
            assert_never(item)


def _pieces(item: m.SystemText | m.UserText, marked: bool) -> list[m.JsonObject]:
    pieces = w.marked_pieces(item, marked)
    return [_text(text) | ({"cache_control": control} if control else {}) for text, control in pieces]


def _text(text: str) -> m.JsonObject:
    return {"type": "text", "text": text}


def _attached(attachment: m.Attachment) -> m.JsonObject:
    source = {"type": "base64", "media_type": attachment.mime, "data": attachment.data}
    if attachment.kind == "image":
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, "title": attachment.name}


def _blocks_of(reply: w.Reply) -> list[m.JsonObject]:
    """Return content blocks for a reply whose `echo` has none, such as one in another format."""
    text = reply.content if reply.content and not reply.content.isspace() else None
    block: list[m.JsonObject] = [{"type": "text", "text": text}] if text else []
    return block + [{"type": "tool_use", "id": call.call_id} for call in reply.tool_calls]


def _called(call: m.ToolCall, names: WireNames) -> m.JsonObject:
    arguments = strict_object(call.arguments) or {}
    return {"type": "tool_use", "id": call.call_id, "name": names.to_wire(call.name), "input": arguments}


def _choice(choice: w.Choice) -> object:
    named = choice.mode == "named"
    return {"type": "tool", "name": choice.name} if named else {"type": _CHOICES[choice.mode]}


# --- Replies ---


def _read(answer: m.JsonObject, ids: w.CallIds, names: WireNames) -> w.Reply:
    kept: list[object] = []
    calls: list[m.ToolCall] = []
    blocks = w.objects(answer["content"])
    for block in blocks:
        match block.get("type"):  # other blocks are not kept: the endpoint may refuse them in a request
            case "tool_use":
                calls.append(w.read_call(block.get("id"), block.get("name"), block.get("input"), ids, names))
                # The call's name and arguments are in `Reply.tool_calls`: keep only its place and its id.
                kept.append({"type": "tool_use", "id": calls[-1].call_id})
            case "text":
                text = w.text_of(block)
                # Models write empty and blank texts beside calls. Anthropic refuses such texts in a request.
                if text and not text.isspace():
                    kept.append({"type": "text", "text": text})
            case "thinking" | "redacted_thinking":
                # If the reply calls tools, the next request must repeat its thinking, unchanged and in place.
                kept.append(block)
    said = "".join(w.text_of(block) for block in blocks if block.get("type") == "text")
    stop = w.as_text(answer.get("stop_reason"))
    finish = _FINISHES.get(stop, stop) if stop else None
    if finish == "length" and calls and blocks[-1].get("type") == "tool_use":
        # Only the last block can be cut. Its arguments may be valid JSON although a part is missing.
        calls = list(w.unless_cut(calls, blocks[-1].get("input")))
    # A refusal has HTTP status 200. Then `said` is what the model wrote before the endpoint ended the reply.
    why = w.as_text(w.as_object(answer.get("stop_details")).get("explanation"))
    refused = stop == "refusal"
    return w.Reply(
        content=None if refused else said or None,
        tool_calls=tuple(calls),
        refusal=(why or said or "the provider's safety system stopped the reply") if refused else None,
        reasoning="\n".join(w.as_text(block.get("thinking")) or "" for block in blocks).strip() or None,
        finish_reason=finish,
        cut=finish == "length",
        model=w.as_text(answer.get("model")) or "",
        facts=w.facts_of(answer),
        usage=_usage(w.as_object(answer.get("usage"))),
        echo={_CONTENT: kept},
    )


def _usage(usage: m.JsonObject) -> m.Usage:
    cached = w.tokens(usage.get("cache_read_input_tokens"))
    written = w.tokens(usage.get("cache_creation_input_tokens"))
    details = w.as_object(usage.get("output_tokens_details"))
    return w.usage_of(
        usage,
        input_tokens=w.tokens(usage.get("input_tokens")) + cached + written,
        output_tokens=usage.get("output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=details.get("thinking_tokens", details.get("reasoning_tokens")),
    )
