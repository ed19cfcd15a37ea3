"""Convert message dicts of `LLMClient` to an `EncodedConversation`, and replies to an `LLMResponse`.

```
{"role": "system" | "user", "content": "...", "cache_control": {"type": "ephemeral"}}
{"role": "system" | "user", "content": [{"type": "text", "text": "...", "cache_control": {...}}, ...]}
{"role": "assistant", "content": "...", "tool_calls": [{"id": "...", "function": {"name", "arguments"}}, ...]}
{"role": "tool", "tool_call_id": "...", "content": "..."}
```
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

from grue import MCPError
from grue import messages as m
from grue.hosting import WireProfile
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.profile import ModelSettings
from grue.protocol.chat_wire.wire_format import Reply


@dataclass
class FunctionCall:
    """The function and the arguments of a tool call: a name such as `server.tool`, and JSON text."""

    name: str
    arguments: str


@dataclass
class ToolCall:
    """A tool call from the model; `type` is always `function`."""

    id: str
    type: str
    function: FunctionCall


@dataclass
class LLMResponse:
    """A completion. `content` is `None` if there are tool calls. `usage` has OpenAI's keys."""

    content: str | None
    model: str
    usage: dict[str, int] | None = None
    tool_calls: list[ToolCall] | None = None
    finish_reason: str | None = None


ChatMessage: TypeAlias = Mapping[str, Any]


class Sampling(TypedDict, total=False):
    """Sampling settings; to leave one out is the same as `None`."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    max_tokens: int | None
    stop: str | Sequence[str] | None


def model_settings(model: str, sampling: Sampling) -> ModelSettings:
    """Return the settings of a model. A single `stop` text becomes a tuple."""
    stop = sampling.get("stop") or ()
    alone = isinstance(stop, str) or not isinstance(stop, Iterable)
    chosen: dict[str, Any] = {**sampling, "stop": (stop,) if alone else tuple(stop)}
    return ModelSettings(model=model, **chosen)


_ECHOED = ("reasoning_details", "reasoning_content")


def given_tool(schema: Mapping[str, Any], server: m.ServerName | None = None) -> m.ToolDefinition:
    """Convert a tool from OpenAI's format, and keep its name even if it is not of the form `server.tool`."""
    function = schema.get("function") if isinstance(schema, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise MCPError("A tool in OpenAI's format is an object with a 'function' that has a 'name'.")
    parameters = function.get("parameters")
    return m.ToolDefinition(
        server=server or m.ServerName(""),
        tool=name,
        full_name=name,
        description=str(function.get("description") or ""),
        input_schema=dict(parameters) if isinstance(parameters, Mapping) else {"type": "object"},
    )


def conversation_of(
    messages: Sequence[ChatMessage],
    tools: Iterable[Mapping[str, Any]] | None,
    mode: m.OfferTools | m.RequireAnswer,
    profile: WireProfile,
) -> EncodedConversation:
    """Return a conversation with these messages, ready for a request of the given `mode`.

    Tool calls without a result are left out, because providers refuse them. Without `tools`, the
    conversation has the tools that `messages` call, because some endpoints require a list of these.
    """
    if not all(isinstance(message, Mapping) for message in messages):
        raise MCPError('Each of the messages is a dictionary, such as {"role": "user", "content": "..."}.')
    given = sum(len(_cache_points(message)) for message in messages)
    conversation = EncodedConversation(profile, given_markers=given)
    named = dict.fromkeys(call.name for message in messages for call in _calls(message))
    given_tools = tuple(tools or ()) or [{"function": {"name": name}} for name in named]
    conversation.ask((), m.OfferTools(tuple(map(given_tool, given_tools))))
    new: list[m.ConversationItem] = []
    for message in messages:
        if message.get("role") == "assistant":
            conversation.ask(new, mode)
            conversation.keep(_reply(message))
            new = []
        else:
            new.append(_item(message))
    conversation.ask(new, mode)
    return conversation


def response_of(reply: Reply, model: str) -> LLMResponse:
    """Return a completion as an `LLMResponse`."""
    calls = [
        ToolCall(id=call.call_id, type="function", function=FunctionCall(call.name, call.arguments))
        for call in reply.tool_calls
    ]
    return LLMResponse(
        content=None if calls else reply.content or reply.refusal,
        model=reply.model or model,
        usage=_tokens(reply.usage),
        tool_calls=calls or None,
        finish_reason=reply.finish_reason,
    )


def _tokens(usage: m.Usage) -> dict[str, int] | None:
    if usage == m.Usage():
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _item(message: ChatMessage) -> m.ConversationItem:
    text = _text(message.get("content"))
    match message.get("role"):
        case "system" | "developer":
            return m.SystemText(text, _cache_points(message))
        case "user":
            return m.UserText(text, _cache_points(message))
        case "tool":
            return m.ToolMessage(m.CallId(str(message.get("tool_call_id"))), text)
        case role:
            raise MCPError(f"A message has the role {role!r}; it should be system, user, assistant or tool.")


def _reply(message: ChatMessage) -> Reply:
    echo: m.JsonObject = {key: message[key] for key in _ECHOED if message.get(key)}
    content = _text(message.get("content")) or None
    return Reply(content=content, tool_calls=tuple(_calls(message)), echo=echo)


def _calls(message: ChatMessage) -> Iterator[m.ToolCall]:
    calls = message.get("tool_calls") or ()
    for call in calls if isinstance(calls, list | tuple) else (calls,):
        match call:
            case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
                yield m.ToolCall(call_id=m.CallId(call_id), name=name, arguments=arguments)
            case _:
                raise MCPError(
                    "Each of an assistant's 'tool_calls' has an 'id', and a 'function' with 'name' and"
                    " 'arguments'; all three are texts."
                )


def _cache_points(message: ChatMessage) -> tuple[m.CachePoint, ...]:
    if message.get("role") not in ("system", "developer", "user"):
        return ()
    content = message.get("content")
    points: list[m.CachePoint] = []
    end = 0
    for part in content if isinstance(content, list) else ():
        end += len(_text([part]))
        if isinstance(part, Mapping) and isinstance(part.get("cache_control"), Mapping):
            points.append(m.CachePoint(end, dict(part["cache_control"])))
    if isinstance(control := message.get("cache_control"), Mapping):
        points.append(m.CachePoint(len(_text(content)), dict(control)))
    return tuple(points)


def _text(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise MCPError("A message holds something else than text; this client sends text only.")
    return "".join(str(text) for text in texts)
