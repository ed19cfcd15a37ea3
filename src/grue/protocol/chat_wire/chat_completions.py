"""OpenAI-style chat completions, `POST {base_url}/chat/completions`: requests and replies as data.

A request is put together from parts, each encoded once: a head (model, sampling), the messages, and a tail
(tools, or the shape of the answer). Nothing that varies from request to request stands before the messages,
so that each request begins with the very bytes of the one before, up to its last message.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import assert_never

import msgspec
from msgspec import Struct

from grue.messages import (
    AnswerSchema,
    AssistantText,
    CallId,
    ConversationItem,
    JsonObject,
    SystemText,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    Usage,
    UserText,
)
from grue.protocol.chat_wire.failures import Fault, fault_of_error
from grue.protocol.chat_wire.json_text import from_json, json_object, to_json
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.strict_schema import strict_schema
from grue.protocol.tool_names import WireNames
from grue.protocol.tool_schemas import openai_tool

EMPTY = "(empty)"
"""What stands for an empty or blank text, which some endpoints refuse."""

NAMELESS = "unnamed"
"""What a call without a name is called."""

_ECHOED = ("reasoning_details", "reasoning_content")


class Reply(Struct, frozen=True, kw_only=True):
    """A completion, read.

    Attributes:
        content: Its text, `None` if it has none; may stand beside tool calls.
        tool_calls: Canonical names, ids unique in the turn, arguments as JSON text or what was sent for it.
        echo: What the provider wants to see again in the assistant's message.
    """

    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    model: str = ""
    usage: Usage = Usage()
    echo: JsonObject = {}


# --- Requests ---


def encode_head(settings: ModelSettings, profile: WireProfile) -> bytes:
    """Encode a request's beginning, up to the opening bracket of the messages."""
    fields: JsonObject = {
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "top_k": settings.top_k,
        "min_p": settings.min_p,
        "max_tokens": settings.max_tokens,
        "stop": list(settings.stop) or None,
    }
    body: JsonObject = {"model": settings.model}
    for name, value in fields.items():
        if value is not None and name in profile.sampling:
            body[profile.max_tokens_field if name == "max_tokens" else name] = value
    return to_json(body)[:-1] + b',"messages":['


def encode_item(item: ConversationItem, *, marked: bool = False) -> bytes:
    """Encode a message that is not a reply of this conversation.

    Args:
        item: The message.
        marked: Put a cache marker on its text (R4.7, P15); only system and user messages take one.
    """
    match item:
        case SystemText(text=text):
            return to_json({"role": "system", "content": _content(text, marked)})
        case UserText(text=text):
            return to_json({"role": "user", "content": _content(text, marked)})
        case AssistantText(text=text):
            return to_json({"role": "assistant", "content": _shown(text)})
        case ToolMessage(call_id=call_id, content=text):
            return to_json({"role": "tool", "tool_call_id": call_id, "content": _shown(text)})
        case _:
            assert_never(item)


def _content(text: str, marked: bool) -> object:
    shown = _shown(text)
    if not marked:
        return shown
    return [{"type": "text", "text": shown, "cache_control": {"type": "ephemeral"}}]


def _shown(text: str) -> str:
    return text if text and not text.isspace() else EMPTY


def encode_assistant(reply: Reply, names: WireNames) -> bytes | None:
    """Encode the assistant's message as the history has to show it; `None` if there is nothing to show.

    Arguments that are not a JSON object go back as `{}`: gateways that parse them again would fail.
    """
    text = reply.content if reply.content and not reply.content.isspace() else None
    if not reply.tool_calls:
        if text is None:
            return None
        echo = {key: value for key, value in reply.echo.items() if key != "reasoning_content"}
        return to_json({"role": "assistant", "content": text, **echo})
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {
                "name": names.to_wire(call.name),
                "arguments": call.arguments if json_object(call.arguments) is not None else "{}",
            },
        }
        for call in reply.tool_calls
    ]
    return to_json({"role": "assistant", "content": text, "tool_calls": calls, **reply.echo})


def encode_tools(tools: Iterable[ToolDefinition], profile: WireProfile, names: WireNames) -> bytes:
    """Encode a listing; empty bytes for an empty one, which no request may carry (R4.1, P10)."""
    encoded = [
        openai_tool(_shortened(tool, profile.max_description_chars), name=names.to_wire(tool.name))
        for tool in tools
    ]
    return to_json(encoded) if encoded else b""


def _shortened(tool: ToolDefinition, max_chars: int | None) -> ToolDefinition:
    if max_chars is None or len(tool.description) <= max_chars:
        return tool
    return msgspec.structs.replace(tool, description=f"{tool.description[: max_chars - 1]}…")


def offer_tail(tools: bytes) -> bytes:
    """Encode the end of a request that offers tools (R4.1), or has none to offer."""
    return b',"tools":' + tools + b',"tool_choice":"auto"' if tools else b""


def answer_tail(answer: AnswerSchema | None, profile: WireProfile, tools: bytes = b"") -> bytes:
    """Encode the end of a request for a final answer (R5.8, R5.9).

    Args:
        answer: Its shape; `None`: any text.
        profile: How the endpoint wants to be told.
        tools: A listing that must go along, not to be called (`WireProfile.tools_with_forced`).
    """
    tail = b',"tools":' + tools + b',"tool_choice":"none"' if tools else b""
    if answer is None or profile.response_format == "none":
        return tail
    if profile.response_format == "json_object":
        return tail + b',"response_format":{"type":"json_object"}'
    # A schema's name has to match the pattern of a tool's name.
    shape: JsonObject = {"name": WireNames("encoded").to_wire(answer.name)}
    try:
        shape |= {"strict": True, "schema": strict_schema(answer.schema)}
    except ValueError:
        shape |= {"schema": answer.schema}
    return tail + b',"response_format":' + to_json({"type": "json_schema", "json_schema": shape})


def join_request(head: bytes, messages: Sequence[bytes], tail: bytes) -> bytes:
    """Put a request's body together."""
    return b"".join((head, b",".join(messages), b"]", tail, b"}"))


# --- Replies ---


def decode_reply(
    body: bytes, names: WireNames, *, request: int, used_ids: Collection[str] = ()
) -> Reply | Fault:
    """Read the body of a reply with HTTP status 200 (R4.2, P11).

    What counts is whether there are tool calls, never `finish_reason`, which some endpoints set to `stop`
    all the same. Ids that are missing, empty or in use become `call_{request}_{n}`.

    Args:
        body: The body; it may be anything.
        names: Brings wire names back.
        request: Number of the request in its turn.
        used_ids: Call ids of the turn so far.
    """
    try:
        answer = from_json(body)
    except ValueError:
        start = body[:200].decode("utf-8", "replace")
        return Fault(kind="invalid_reply", status=200, message=f"not JSON: {start or 'an empty body'}")
    if not isinstance(answer, dict):
        return Fault(kind="invalid_reply", status=200, message="not a completion: a JSON object is missing")
    match answer.get("choices"):
        case [{"error": error}, *_] if error:
            return fault_of_error(error)
        case [{"message": dict() as message} as choice, *_]:
            return _read(answer, choice, message, _Ids(request, used_ids), names)
        case _ if answer.get("error"):
            return fault_of_error(answer["error"])
        case _:
            return Fault(kind="invalid_reply", status=200, message="not a completion: no choices")


def _read(
    answer: JsonObject, choice: Mapping[str, object], message: JsonObject, ids: "_Ids", names: WireNames
) -> Reply:
    listed = message.get("tool_calls")
    finish = choice.get("finish_reason")
    model = answer.get("model")
    return Reply(
        content=_text(message.get("content")) or _text(message.get("refusal")) or None,
        tool_calls=tuple(
            _call(call, ids, names)
            for call in (listed if isinstance(listed, list) else ())
            if isinstance(call, dict)
        ),
        finish_reason=finish if isinstance(finish, str) else None,
        model=model if isinstance(model, str) else "",
        usage=_usage(_dict(answer.get("usage"))),
        echo={key: message[key] for key in _ECHOED if message.get(key)},
    )


class _Ids:
    """Gives each call of a reply an id that no other call of the turn has."""

    def __init__(self, request: int, used: Collection[str]) -> None:
        self._request = request
        self._used = used
        self._given: set[str] = set()
        self._numbers = count(1)

    def give(self, wanted: object) -> CallId:
        call_id = wanted if isinstance(wanted, str) else ""
        while not call_id or call_id in self._used or call_id in self._given:
            call_id = f"call_{self._request}_{next(self._numbers)}"
        self._given.add(call_id)
        return CallId(call_id)


def _call(call: JsonObject, ids: _Ids, names: WireNames) -> ToolCall:
    # Some local servers leave the inner object out.
    function = _dict(call.get("function")) or call
    name = function.get("name")
    return ToolCall(
        call_id=ids.give(call.get("id")),
        name=names.to_canonical(name) if isinstance(name, str) and name else NAMELESS,
        arguments=_arguments(function.get("arguments")),
    )


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value if value.strip() else "{}"
    return "{}" if value is None else to_json(value).decode()


def _text(content: object) -> str:
    match content:
        case str():
            return content
        case list():
            return "".join(_text(part) for part in content)
        case {"text": str() as text} | {"refusal": str() as text}:
            return text
        case _:
            return ""


def _usage(usage: JsonObject) -> Usage:
    cost = usage.get("cost")
    cached = _dict(usage.get("prompt_tokens_details")).get(
        "cached_tokens", usage.get("prompt_cache_hit_tokens")
    )
    return Usage(
        input_tokens=_tokens(usage.get("prompt_tokens")),
        output_tokens=_tokens(usage.get("completion_tokens")),
        cached_tokens=_tokens(cached),
        reasoning_tokens=_tokens(_dict(usage.get("completion_tokens_details")).get("reasoning_tokens")),
        cost_usd=float(cost) if isinstance(cost, int | float) and 0 <= cost < _ABSURD else None,
    )


_ABSURD = 2**53


def _tokens(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < _ABSURD else 0


def _dict(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}
