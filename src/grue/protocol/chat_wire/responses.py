"""The wire format of OpenAI's responses, `POST {base_url}/responses`.

The endpoint stores nothing (`store: false`), so every request contains the whole history, as in the other
formats. The endpoint returns a model's reasoning encrypted. It has to be sent back unchanged, before the
calls that followed it.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from grue import messages as m
from grue.protocol.chat_wire.failures import Fault, fault_of_error
from grue.protocol.chat_wire.json_text import json_object, to_json
from grue.protocol.chat_wire.media import Shown, WireItem, data_url, label, result_text, sent, user_text
from grue.protocol.chat_wire.profile import WireProfile
from grue.protocol.chat_wire.reply import (
    MAX_CALLS,
    CallIds,
    Reply,
    as_object,
    as_text,
    cost,
    facts_of,
    listed,
    no_completion,
    read_call,
    read_object,
    text_of,
    tokens,
    unless_cut,
)
from grue.protocol.chat_wire.responses_stream import ResponsesAssembler
from grue.protocol.chat_wire.strict_schema import strict_format
from grue.protocol.chat_wire.wire_format import (
    Assembler,
    Choice,
    Said,
    WireFormat,
    WireRequest,
    encode_head,
    encode_tail,
    join_body,
    non_blank,
    shortened,
)
from grue.protocol.tools.arguments import CUT_MARK
from grue.protocol.tools.names import WireNames
from grue.protocol.tools.schemas import openai_tool

_OUTPUT = "output"
"""Key in a reply's echo: its output items, in order."""


class Responses(WireFormat):
    """The format of OpenAI's newest models and of compatible gateways."""

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
    json_objects = True
    echoes_text = True
    results_carry_media = True
    marks_results = False

    def headers(self, key: str) -> dict[str, str]:
        """Return the header with the key as a bearer token; none for an empty key."""
        return {"Authorization": f"Bearer {key}"} if key else {}

    def encode_items(self, items: Sequence[WireItem], marked: Collection[int], profile: WireProfile) -> Said:
        """Encode each item as a separate input item; the format has no cache markers."""
        del marked
        return Said(messages=tuple(to_json(_input(item, profile)) for item in items))

    def encode_reply(self, reply: Reply, names: WireNames) -> tuple[bytes, ...]:
        """Encode the items of a reply: unchanged, except calls, which are taken from `tool_calls`."""
        items = listed(reply.echo.get(_OUTPUT)) or _items_of(reply)
        calls = {call.call_id: call for call in reply.tool_calls}
        encoded: list[m.JsonObject] = []
        for item in map(as_object, items):
            if item.get("type") != "function_call":
                encoded.append(item)
            elif (call := calls.get(str(item.get("call_id")))) is not None:  # type: ignore[call-overload]  # NewType
                encoded.append(item | _called(call, names))
        while encoded and encoded[-1].get("type") == "reasoning":
            # The endpoint refuses a reasoning item that is not followed by another item.
            encoded.pop()
        return tuple(map(to_json, encoded))

    def encode_tools(
        self, tools: Iterable[m.ToolDefinition], profile: WireProfile, names: WireNames
    ) -> bytes:
        """Encode a list of tools; an empty list gives empty bytes, because no request may contain it.

        Source: R4.1, P10
        """
        encoded: list[m.JsonObject] = []
        for tool in tools:
            short = shortened(tool, profile.max_description_chars)
            function = as_object(openai_tool(short, name=names.to_wire(tool.name))["function"])
            # Otherwise the endpoint requires its strict dialect, which schemas of MCP servers do not follow.
            encoded.append({"type": "function", **function, "strict": False})
        return to_json(encoded) if encoded else b""

    def body(self, request: WireRequest) -> bytes:
        """Return the body of a request."""
        head = encode_head(_head(request), request.extra, "input")
        tail: m.JsonObject = {**_answer(request.answer, request.profile), **request.extra}
        if request.stream:
            tail["stream"] = True
        choice = to_json(_choice(request.choice))
        return join_body(head, request.messages, encode_tail(request.tools, choice, tail))

    def decode(
        self, body: bytes, names: WireNames, *, request: int, used_ids: Collection[str] = ()
    ) -> Reply | Fault:
        """Read the body of a reply with HTTP status 200.

        Source: R4.2, P11
        """
        answer = read_object(body)
        if isinstance(answer, Fault):
            return answer
        if answer.get("error"):
            return fault_of_error(answer["error"])
        if not isinstance(answer.get("output"), list):
            return no_completion("no output")
        if len(listed(answer["output"])) > MAX_CALLS:
            return no_completion(f"more than {MAX_CALLS} items")
        if answer.get("status") in ("failed", "cancelled"):
            return fault_of_error({"message": f"the response is {answer['status']}"})
        return _read(answer, CallIds(request, used_ids), names)

    def assembler(self) -> Assembler:
        """Return an assembler for a streamed reply."""
        return ResponsesAssembler()


# --- Requests ---


def _head(request: WireRequest) -> m.JsonObject:
    settings, profile = request.settings, request.profile
    fields: m.JsonObject = {"model": settings.model, "store": False}
    for name, value in profile.sampled(settings).items():
        fields["max_output_tokens" if name == "max_tokens" else name] = value
    if profile.reasoning != "none":
        fields["include"] = ["reasoning.encrypted_content"]
        if settings.reasoning_effort is not None:
            fields["reasoning"] = {"effort": settings.reasoning_effort}
    return fields


def _input(item: WireItem, profile: WireProfile) -> m.JsonObject:
    match item:
        case m.SystemText(text=text):
            return {"role": profile.system_role, "content": non_blank(text)}
        case m.UserText():
            text = non_blank(user_text(item, profile).text)
            images = [_part(each) for each in sent(item, profile)]
            return {"role": "user", "content": [*images, _text(text)] if images else text}
        case m.AssistantText(text=text):
            return {"role": "assistant", "content": non_blank(text)}
        case m.ToolMessage(call_id=call_id):
            text = non_blank(result_text(item, profile))
            output = [_text(text), *map(_part, sent(item, profile))]
            return {
                "type": "function_call_output",
                "call_id": call_id,
                "output": output if len(output) > 1 else text,
            }
        case Shown(results=results):
            content = [part for each in results for part in _parts(each, profile)]
            return {"role": "user", "content": content}
        case _:
            assert_never(item)


def _parts(result: m.ToolMessage, profile: WireProfile) -> list[m.JsonObject]:
    return [_text(label(result)), *map(_part, sent(result, profile))]


def _text(text: str) -> m.JsonObject:
    return {"type": "input_text", "text": text}


def _part(attachment: m.Attachment) -> m.JsonObject:
    url = data_url(attachment)
    if attachment.kind == "image":
        return {"type": "input_image", "detail": "auto", "image_url": url}
    return {"type": "input_file", "filename": attachment.name, "file_data": url}


def _items_of(reply: Reply) -> list[object]:
    """Return items for a reply that was received in another format or made by a host."""
    text = reply.content if reply.content and not reply.content.isspace() else None
    message: list[object] = [{"role": "assistant", "content": text}] if text else []
    return message + [{"type": "function_call", "call_id": call.call_id} for call in reply.tool_calls]


def _called(call: m.ToolCall, names: WireNames) -> m.JsonObject:
    arguments = call.arguments if json_object(call.arguments) is not None else "{}"
    return {"call_id": call.call_id, "name": names.to_wire(call.name), "arguments": arguments}


def _choice(choice: Choice) -> object:
    return {"type": "function", "name": choice.name} if choice.mode == "named" else choice.mode


def _answer(answer: m.AnswerSchema | None, profile: WireProfile) -> m.JsonObject:
    if answer is None or profile.response_format == "none":
        return {}
    if profile.response_format == "json_object":
        return {"text": {"format": {"type": "json_object"}}}
    return {"text": {"format": {"type": "json_schema", **strict_format(answer)}}}


# --- Replies ---


def _read(answer: m.JsonObject, ids: CallIds, names: WireNames) -> Reply:
    items = [as_object(item) for item in listed(answer["output"])]
    kept: list[object] = []
    calls: list[m.ToolCall] = []
    for item in items:
        if item.get("type") == "function_call":
            arguments = item.get("arguments")
            # The limit may strike in the middle of a call; what has come of it may still be valid JSON.
            if item.get("status") == "incomplete":
                arguments = f"{arguments}{CUT_MARK}"
            call = read_call(item.get("call_id"), item.get("name"), arguments, ids, names)
            calls.append(call)
            # The result names the call by this id, which is ours if the endpoint has sent none or one twice.
            item = item | {"call_id": call.call_id}
        # The endpoint stores nothing (`store` is false), so every item goes back, in this order: OpenAI
        # refuses a call without the reasoning that came before it.
        again = _again(item)
        if again:
            kept.append(again)
    # A reply may have several messages, with reasoning and calls between them.
    parts = [as_object(part) for item in items for part in listed(item.get("content"))]
    finish = _finish(answer, bool(calls))
    # An item need not have a `status`, and then only the reply says that it was cut.
    if finish == "length" and calls and items[-1].get("type") == "function_call":
        calls = list(unless_cut(calls, items[-1].get("arguments")))
    return Reply(
        content="".join(text_of(part) for part in parts if part.get("type") == "output_text") or None,
        tool_calls=tuple(calls),
        refusal="".join(as_text(part.get("refusal")) or "" for part in parts) or None,
        reasoning=_reasoning(items),
        finish_reason=finish,
        cut=finish == "length",
        model=as_text(answer.get("model")) or "",
        facts=facts_of(answer),
        usage=_usage(as_object(answer.get("usage"))),
        echo={_OUTPUT: kept},
    )


def _again(item: m.JsonObject) -> m.JsonObject:
    """Return an item in the form in which it can be sent back; empty if it cannot be.

    Some gateways write missing members as `null`. These are removed, because the endpoint would refuse them.
    """
    said = _without_nulls(item)
    match said.get("type"):
        case "function_call":
            return said
        case "message":
            parts = [_without_nulls(as_object(part)) for part in listed(said.get("content"))]
            parts = [part for part in parts if part.get("type")]
            return {**said, "content": parts} if parts else {}
        case "reasoning" if said.get("encrypted_content") or said.get("content"):
            # A reasoning item without either is only a reference to one that the endpoint has not stored.
            return said
        case _:
            return {}


def _without_nulls(value: m.JsonObject) -> m.JsonObject:
    return {name: item for name, item in value.items() if item is not None}


def _finish(answer: m.JsonObject, calls: bool) -> str | None:
    status = as_text(answer.get("status"))
    if status == "completed":
        return "tool_calls" if calls else "stop"
    why = as_text(as_object(answer.get("incomplete_details")).get("reason"))
    if status == "incomplete" and why:
        return "length" if why == "max_output_tokens" else why
    return status


def _reasoning(items: Iterable[m.JsonObject]) -> str | None:
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    said = [text_of(item.get("summary")) or text_of(item.get("content")) for item in thoughts]
    return "\n".join(text for text in said if text) or None


def _usage(usage: m.JsonObject) -> m.Usage:
    prompt = as_object(usage.get("input_tokens_details"))
    return m.Usage(
        input_tokens=tokens(usage.get("input_tokens")),
        output_tokens=tokens(usage.get("output_tokens")),
        cached_tokens=tokens(prompt.get("cached_tokens")),
        cache_write_tokens=tokens(prompt.get("cache_write_tokens")),
        reasoning_tokens=tokens(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
        cost_usd=cost(usage.get("cost")),
    )
