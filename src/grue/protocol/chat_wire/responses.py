"""The wire format of OpenAI's responses, `POST {base_url}/responses`.

The endpoint stores nothing (`store: false`), so every request contains the whole history. Encrypted reasoning
has to be sent back unchanged, before the calls that followed it.

The last event of a stream has the response, which is checked against the earlier events: texts, calls and
arguments may not differ. Calls are identified mainly by their ids, because gateways number and order the
items in their own way. A gap in the sequence numbers counts as damage only if the last event does not repeat
the items, because a gateway may leave events out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from typing import Literal, assert_never

from msgspec import Struct, field

from grue import messages as m
from grue.protocol.chat_wire import server_events
from grue.protocol.chat_wire import wire_format as w
from grue.protocol.chat_wire.failures import Fault, fault_in, fault_of_error
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.strict_schema import strict_format
from grue.protocol.json_text import strict_object, to_json
from grue.protocol.tools.names import CUT_MARK, WireNames

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
_ENDINGS = {  # the events that end a reply, each with the status of the response in that event
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
_KINDS = frozenset({*_TEXTS, *_ENDINGS, _ARGUMENTS, _ALL_ARGUMENTS, _ADDED, _DONE, "error"})
_EVENT = frozenset(
    {"type", "delta", "item", "response", "error", "output_index", "sequence_number", "arguments", "item_id"}
)
_RESPONSE = frozenset({"output", "status", "error", "incomplete_details", "usage"})
_ITEM = frozenset({"type", "content", "arguments", "name", "call_id", "summary", "encrypted_content"})
_TYPES = frozenset({"message", "function_call", "reasoning", "output_text", "refusal", "summary_text"})
_PART = frozenset({"type", "text", "refusal"})
_CALL = "function_call"
_MOST_COMPARED = 100  # earlier calls that are compared by name and arguments with a call whose id is new


class _CallEvents(Struct):
    """What the events so far contain about one tool call; `told`: the last event's response has it too."""

    ids: frozenset[str] = frozenset()
    name: str | None = None
    pieces: list[str] = field(default_factory=list)
    whole: str | None = None
    done: bool = False
    told: bool = False

    def add(self, item: m.JsonObject) -> None:
        for name, known, other in (("name", self.name, "another"), ("arguments", self.whole, "other")):
            if known is not None and name in item and item[name] != known:
                raise server_events.DamagedStream(
                    f"has a tool call with {other} {name} than the events before it"
                )
        self.name = w.as_text(item.get("name")) or self.name
        arguments = w.as_text(item.get("arguments"))
        if arguments is None:
            return
        if self.pieces and "".join(self.pieces) != arguments:
            raise server_events.DamagedStream(
                "has a tool call with other arguments than the events before it"
            )
        self.whole = arguments

    def agrees(self, item: m.JsonObject) -> bool:
        said = "".join(self.pieces) if self.whole is None else self.whole
        return item.get("type") == _CALL and (self.name, said) == (item.get("name"), item.get("arguments"))


class ResponsesAssembler:
    """Takes the response from the last event, and checks it against the events before it."""

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
    def begun(self) -> bool:
        """`True` once a piece of text, a part of a call, or a whole item has arrived."""
        return bool(self._held["pieces"] or self._held["items"])

    @property
    def held(self) -> int:
        """The size of the reply: the largest of its copies, as pieces, as items, and as a whole response."""
        return max(self._held.values())

    @property
    def whole(self) -> bool:
        return self.finished

    def feed(self, event: server_events.ServerEvent) -> Iterable[w.Delta]:
        said = server_events.intact(event.object, _EVENT)
        kind = w.as_text(said.get("type")) or event.kind
        if kind not in _KINDS and event.kind in _KINDS:
            raise server_events.DamagedStream(f"is of type {kind!a}, but is called {event.kind!a}")
        if kind == "error":
            self.finished = True
            self._response = {"error": w.as_object(said.get("error")) or said}
            return ()
        self._count(said.get("sequence_number"))
        if kind in _ENDINGS:
            self._end(said, _ENDINGS[kind])
        elif kind in (_ADDED, _DONE):
            self._announce(said, done=kind == _DONE)
        elif kind == _ALL_ARGUMENTS:
            self._call_of(said).add({"arguments": w.as_text(said.get("arguments"))})
        elif kind in _TEXTS or kind == _ARGUMENTS:
            return self._add(kind, said)
        return ()

    def body(self) -> bytes:
        """Return the response or error as JSON. If `output` is empty, take the items from earlier events."""
        if self._items and self._response.get("output") == []:
            return to_json({**self._response, "output": list(self._items.values())})
        return to_json(self._response)

    def _count(self, number: object) -> None:
        """Remember the first gap in the sequence numbers. A gateway may give all events one number."""
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

    def _add(self, kind: str, said: m.JsonObject) -> Iterable[w.Delta]:
        text = said.get("delta")
        if not isinstance(text, str | None) or "delta" not in said:
            raise server_events.DamagedStream(f"is a {kind} without a text")
        self._held["pieces"] += len(text or "")
        if text and kind == _ARGUMENTS:
            self._call_of(said).pieces.append(text)
        index = said.get("output_index")
        if text and kind == _SAID and isinstance(index, int):
            self._room(self._texts)
            self._texts.setdefault(index, []).append(text)
        return (w.Delta(text, _TEXTS[kind]),) if text and kind in _TEXTS else ()

    def _room(self, held: Sized) -> None:
        if len(held) > w.MAX_CALLS:
            raise server_events.OversizedStream(f"the reply has more than {w.MAX_CALLS} items")

    def _announce(self, said: m.JsonObject, *, done: bool) -> None:
        index, item = said.get("output_index"), said.get("item")
        if not isinstance(item, dict):
            raise server_events.DamagedStream(f"{'ends' if done else 'begins'} an item that is not an object")
        self._announces = True
        if done:
            place = index if isinstance(index, int) else len(self._items)
            if place in self._items and not _differs(self._items[place], item):
                raise server_events.DamagedStream(f"ends item {place} a second time")
            # Some gateways give two items the same index, and some send no index. Take the next free place.
            while place in self._items:
                place += 1
            self._room(self._items)
            self._items[place] = item
            self._held["items"] += w.weight(item)
        if item.get("type") == _CALL:
            call = self._call_of(said, item)
            call.done = call.done or done
            call.add(item if done else {"name": item.get("name")})

    def _call_of(self, said: m.JsonObject, item: m.JsonObject | None = None) -> _CallEvents:
        """Find or add the event's call. Some endpoints give several calls the same id or the same index."""
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
            raise server_events.DamagedStream("ends the reply without a response")
        self._response = server_events.intact(response, _RESPONSE)
        self._held["response"] = w.weight(response)
        if response.get("status", status) != status:
            raise server_events.DamagedStream(f"is called {status}, but its response is not")
        repeated = [_item(item) for item in w.listed(response.get("output"))]
        output = repeated or [_item(item) for item in self._items.values()]
        if self._gap and not repeated:
            # The last event does not repeat the items, so nothing shows what was lost.
            raise server_events.DamagedStream(f"follows a gap: one {self._gap}")
        # Compare only the items in the response: some endpoints leave out items that are not calls.
        for index, item in enumerate(output):
            _compare(item, self._texts.get(index, []), self._items.get(index, {}))
        self._compare_calls(output, whole=status == "completed")
        self.finished = True

    def _compare_calls(self, output: list[m.JsonObject], *, whole: bool) -> None:
        for index, item in enumerate(output):
            call = self._told(item, index)
            if call is not None and item.get("type") == _CALL:
                call.add(item)
            elif self._announces and item.get("type") == _CALL:
                raise server_events.DamagedStream("has a tool call that is not in the events before it")
        # A response that was cut may lack a call whose end has not arrived.
        for call in self._calls:
            if not call.told and (call.done or whole):
                raise server_events.DamagedStream("lacks a tool call of the events before it")

    def _told(self, item: m.JsonObject, index: int) -> _CallEvents | None:
        """Return the call of earlier events that `item` repeats, if any. No call is returned twice."""
        call = next((call for call in self._alike(item, index) if not call.told), None)
        if call is not None:
            call.told = True
        return call

    def _alike(self, item: m.JsonObject, index: int) -> Iterator[_CallEvents]:
        """Yield the calls of earlier events that may be the same call as `item`, the likeliest first."""
        ids = _ids(item)
        for given in ids:
            calls = self._by_id.get(given, [])
            while calls and calls[0].told:  # forget this call: no second item may repeat it
                calls.pop(0)
            yield from calls
        here = self._named.get((index, ""))
        if here is not None and item.get("type") == _CALL and not (ids and here.ids):
            yield here
        # Some gateways give a call another id in the response than in the events before.
        yield from (call for call in self._calls[:_MOST_COMPARED] if call.agrees(item))


def _ids(item: m.JsonObject) -> frozenset[str]:
    given = (w.as_text(item.get("call_id")), w.as_text(item.get("id")))
    return frozenset(each for each in given if each)


def _differs(one: m.JsonObject, other: m.JsonObject) -> bool:
    ids = (one.get("call_id") or one.get("id"), other.get("call_id") or other.get("id"))
    return None not in ids and ids[0] != ids[1]


def _item(value: object) -> m.JsonObject:
    item = server_events.intact(w.as_object(value), _ITEM)
    server_events.ungarbled(w.as_text(item.get("type")) or "", _TYPES, "item of type")
    for part in (*w.listed(item.get("content")), *w.listed(item.get("summary"))):
        server_events.intact(w.as_object(part), _PART)
        server_events.ungarbled(w.as_text(w.as_object(part).get("type")) or "", _TYPES, "part of type")
    return item


def _compare(item: m.JsonObject, pieces: list[str], done: m.JsonObject) -> None:
    """Check that an item of the response has the text and the type that earlier events gave it."""
    if "type" in done and not _differs(done, item) and done["type"] != item.get("type"):
        raise server_events.DamagedStream("has an item with another type than the events before it")
    parts = w.objects(item.get("content"))
    text = "".join(w.as_text(part.get("text")) or "" for part in parts if part.get("type") == "output_text")
    # Compare without white space at the ends: some endpoints trim the whole text, but not its pieces.
    if pieces and parts and "".join(pieces).strip() != text.strip():
        raise server_events.DamagedStream("has another text than the events before it")


_OUTPUT = "output"  # key in `Reply.echo` for the reply's output items, in order


class Responses(w.WireFormat):
    """The format of OpenAI's Responses API and of compatible gateways."""

    name = "responses"
    path = "/responses"
    profile = WireProfile(
        name="generic responses",
        wire="responses",
        names="encoded",
        sampling=frozenset({"temperature", "top_p", "max_tokens"}),
        reasoning="reasoning",
    )
    provider = "openai"
    inputs = frozenset({"image", "file"})
    own_fields = frozenset({"model", "input", "tools", "tool_choice", "stream"})
    limit_fields = frozenset({"max_output_tokens"})
    assembler = ResponsesAssembler
    batches = "openai"

    def encode_items(
        self, items: Sequence[w.WireItem], marked: Collection[int], profile: WireProfile
    ) -> w.EncodedItems:
        """Encode each item as one item of `input`. `marked` is ignored: the format has no cache markers."""
        del marked
        return w.EncodedItems(messages=tuple(to_json(_input(item, profile)) for item in items))

    def encode_reply(self, reply: w.Reply, names: WireNames) -> tuple[bytes, ...]:
        """Encode a reply's items, but only the calls in `reply.tool_calls`, and no reasoning at the end."""
        items = w.listed(reply.echo.get(_OUTPUT)) or _items_of(reply)
        calls = {call.call_id: call for call in reply.tool_calls}
        encoded: list[m.JsonObject] = []
        for item in map(w.as_object, items):
            if item.get("type") != "function_call":
                encoded.append(item)
            elif (call := calls.get(str(item.get("call_id")))) is not None:  # type: ignore[call-overload]  # NewType
                encoded.append(item | _called(call, names))
        while encoded and encoded[-1].get("type") == "reasoning":
            # The endpoint refuses reasoning at the end of a reply: a call or a text has to follow it.
            encoded.pop()
        return tuple(map(to_json, encoded))

    def has_thoughts(self, echo: m.JsonObject) -> bool:
        """Return whether `echo` has an item that is neither a message nor a call."""
        return any(
            item.get("type") not in ("message", "function_call") for item in w.objects(echo.get(_OUTPUT))
        )

    def tool(self, function: m.JsonObject) -> m.JsonObject:
        # The strict dialect, which is the default, cannot express every schema of an MCP server.
        return {"type": "function", **function, "strict": False}

    def body(self, request: w.WireRequest) -> bytes:
        choice = request.choice
        chosen = {"type": "function", "name": choice.name} if choice.mode == "named" else choice.mode
        own = _answer(request.answer, request.profile)
        return w.encode_body(request, "input", _head(request), chosen, own)

    def read(self, answer: m.JsonObject, ids: w.CallIds, names: WireNames) -> w.Reply | Fault:
        if answer.get("error"):
            return fault_of_error(answer["error"])
        if not isinstance(answer.get("output"), list):
            return fault_in(answer, "no output")
        if len(w.listed(answer["output"])) > w.MAX_CALLS:
            return w.no_completion(f"more than {w.MAX_CALLS} items")
        if answer.get("status") in ("failed", "cancelled"):
            return fault_of_error({"message": f"the response is {answer['status']}"})
        return _read(answer, ids, names)


# --- Requests ---


def _head(request: w.WireRequest) -> m.JsonObject:
    settings, profile = request.settings, request.profile
    fields: m.JsonObject = {"model": settings.model, "store": False}
    for name, value in profile.sampled(settings).items():
        fields["max_output_tokens" if name == "max_tokens" else name] = value
    if profile.reasoning != "none":
        fields["include"] = ["reasoning.encrypted_content"]
        if settings.reasoning_effort is not None:
            fields["reasoning"] = {"effort": settings.reasoning_effort}
    return fields


def _input(item: w.WireItem, profile: WireProfile) -> m.JsonObject:
    match item:
        case m.SystemText(text=text):
            return {"role": profile.system_role, "content": w.non_blank(text)}
        case m.UserText():
            text = w.non_blank(w.user_text(item, profile).text)
            images = [_part(each) for each in w.sent(item, profile)]
            return {"role": "user", "content": [*images, _text(text)] if images else text}
        case m.AssistantText(text=text):
            return {"role": "assistant", "content": w.non_blank(text)}
        case w.Shown():
            raise NotImplementedError  # `Shown` is made only for formats without `results_carry_media`
        case m.ToolMessage(call_id=call_id):
            text = w.non_blank(w.result_text(item, profile))
            output = [_text(text), *map(_part, w.sent(item, profile))]
            return {
                "type": "function_call_output",
                "call_id": call_id,
                "output": output if len(output) > 1 else text,
            }
        case _:
            assert_never(item)


def _text(text: str) -> m.JsonObject:
    return {"type": "input_text", "text": text}


def _part(attachment: m.Attachment) -> m.JsonObject:
    url = w.data_url(attachment)
    if attachment.kind == "image":
        return {"type": "input_image", "detail": "auto", "image_url": url}
    return {"type": "input_file", "filename": attachment.name, "file_data": url}


def _items_of(reply: w.Reply) -> list[object]:
    """Return items for a reply whose `echo` has none, such as one in another format."""
    text = reply.content if reply.content and not reply.content.isspace() else None
    message: list[object] = [{"role": "assistant", "content": text}] if text else []
    return message + [{"type": "function_call", "call_id": call.call_id} for call in reply.tool_calls]


def _called(call: m.ToolCall, names: WireNames) -> m.JsonObject:
    arguments = call.arguments if strict_object(call.arguments) is not None else "{}"
    return {"call_id": call.call_id, "name": names.to_wire(call.name), "arguments": arguments}


def _answer(answer: m.AnswerSchema | None, profile: WireProfile) -> m.JsonObject:
    if answer is None or profile.response_format == "none":
        return {}
    if profile.response_format == "json_object":
        return {"text": {"format": {"type": "json_object"}}}
    return {"text": {"format": {"type": "json_schema", **strict_format(answer)}}}


# --- Replies ---


def _read(answer: m.JsonObject, ids: w.CallIds, names: WireNames) -> w.Reply:
    items = w.objects(answer["output"])
    kept: list[object] = []
    calls: list[m.ToolCall] = []
    for item in items:
        if item.get("type") == "function_call":
            arguments = item.get("arguments")
            # Arguments that were cut off at the length limit may happen to be valid JSON.
            if item.get("status") == "incomplete":
                arguments = f"{arguments}{CUT_MARK}"
            call = w.read_call(item.get("call_id"), item.get("name"), arguments, ids, names)
            calls.append(call)
            # Use grue's id: the endpoint may have sent no id, or the id of another call.
            item = item | {"call_id": call.call_id}
        # Later requests repeat the items, in order: OpenAI refuses a call without the reasoning before it.
        again = _again(item)
        if again:
            kept.append(again)
    # A reply may have several message items, with reasoning and calls between them.
    parts = [part for item in items for part in w.objects(item.get("content"))]
    finish = _finish(answer, bool(calls))
    # An item may have no `status`. Then only the status of the whole reply shows that the item may be cut.
    if finish == "length" and calls and items[-1].get("type") == "function_call":
        calls = list(w.unless_cut(calls, items[-1].get("arguments")))
    return w.Reply(
        content="".join(w.text_of(part) for part in parts if part.get("type") == "output_text") or None,
        tool_calls=tuple(calls),
        refusal="".join(w.as_text(part.get("refusal")) or "" for part in parts) or None,
        reasoning=_reasoning(items),
        finish_reason=finish,
        cut=finish == "length",
        model=w.as_text(answer.get("model")) or "",
        facts=w.facts_of(answer),
        usage=_usage(w.as_object(answer.get("usage"))),
        echo={_OUTPUT: kept},
    )


def _again(item: m.JsonObject) -> m.JsonObject:
    """Return an item as later requests repeat it; empty: it cannot be sent back."""
    said = _without_nulls(item)  # the endpoint would refuse `null`, which some gateways write
    match said.get("type"):
        case "function_call":
            return said
        case "message":
            parts = list(map(_without_nulls, w.objects(said.get("content"))))
            parts = [part for part in parts if part.get("type")]
            return {**said, "content": parts} if parts else {}
        case "reasoning" if said.get("encrypted_content") or said.get("content"):
            # Other reasoning is not sent back: only an endpoint that has stored the item could use it.
            return said
        case _:
            return {}


def _without_nulls(value: m.JsonObject) -> m.JsonObject:
    return {name: item for name, item in value.items() if item is not None}


def _finish(answer: m.JsonObject, calls: bool) -> str | None:
    status = w.as_text(answer.get("status"))
    if status == "completed":
        return "tool_calls" if calls else "stop"
    why = w.as_text(w.as_object(answer.get("incomplete_details")).get("reason"))
    if status == "incomplete" and why:
        return "length" if why == "max_output_tokens" else why
    return status


def _reasoning(items: Iterable[m.JsonObject]) -> str | None:
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    said = [w.text_of(item.get("summary")) or w.text_of(item.get("content")) for item in thoughts]
    return "\n".join(text for text in said if text) or None


def _usage(usage: m.JsonObject) -> m.Usage:
    prompt = w.as_object(usage.get("input_tokens_details"))
    return w.usage_of(
        usage,
        input_tokens=usage.get("input_tokens"),
        output_tokens=usage.get("output_tokens"),
        cached_tokens=prompt.get("cached_tokens"),
        cache_write_tokens=prompt.get("cache_write_tokens"),
        reasoning_tokens=w.as_object(usage.get("output_tokens_details")).get("reasoning_tokens"),
    )
