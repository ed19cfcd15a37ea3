"""Convert what models and tools said to the attributes of OpenTelemetry's conventions for GenAI.

The conventions give a JSON schema for each attribute with content. Every text is cut at `CONTENT_LIMIT`.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from grue import messages as m
from grue.tracing.observers.span_sink import CONTENT_LIMIT, chat_messages, clipped, clipped_text, json_text


def said(items: tuple[m.ConversationItem | m.AssistantReply, ...], *, capture: bool) -> dict[str, Any]:
    """Return the attributes for what the model was told; without content, its size."""
    if not capture:
        return {"grue.input_chars": len(json_text(chat_messages(items)))}
    instructions = [_text(item.text) for item in items if isinstance(item, m.SystemText)]
    rest = [_message(item) for item in items if not isinstance(item, m.SystemText)]
    return {
        "gen_ai.system_instructions": json_text(instructions) if instructions else None,
        "gen_ai.input.messages": json_text(rest),
    }


def replied(reply: m.CompletionReceived) -> str:
    """Return a reply of the model as the one message of an output."""
    parts: list[m.JsonObject] = []
    if reply.reasoning:
        parts.append({"type": "reasoning", "content": clipped_text(reply.reasoning)})
    if text := reply.content or reply.refusal:
        parts.append(_text(text))
    parts += map(_call, reply.tool_calls)
    return _output(parts, reply.finish_reason or "stop")


def answered(text: str) -> str:
    """Return the answer of a turn or an episode as the one message of an output."""
    return _output([_text(text)], "stop")


def tool_definitions(tools: Iterable[m.ToolDefinition]) -> str | None:
    """Return the tools on offer; only their names if that is too long, and `None` if there are none."""
    named = [{"type": "function", "name": tool.name} for tool in tools]
    full = [
        {**name, "description": tool.description, "parameters": tool.input_schema}
        for name, tool in zip(named, tools, strict=True)
    ]
    text = json_text(full)
    if len(text) > CONTENT_LIMIT:
        text = json_text(named)
    return text if named else None


def value_text(value: object) -> str:
    """Return a JSON value as text, cut."""
    value = clipped(value)
    return value if isinstance(value, str) else json_text(value)


def _output(parts: list[m.JsonObject], finish_reason: str) -> str:
    return json_text([{"role": "assistant", "parts": parts, "finish_reason": finish_reason}])


def _message(item: m.ConversationItem | m.AssistantReply) -> m.JsonObject:
    match item:
        case m.ToolMessage(call_id=call_id, content=content, attachments=media):
            answer = {"type": "tool_call_response", "id": call_id, "response": clipped_text(content)}
            return {"role": "tool", "parts": [answer, *map(_medium, media)]}
        case m.AssistantReply(content=content, tool_calls=calls):
            texts = [_text(content)] if content else []
            return {"role": "assistant", "parts": [*texts, *map(_call, calls)]}
        case m.UserText(text=text, attachments=media):
            return {"role": "user", "parts": [_text(text), *map(_medium, media)]}
        case _:
            return {"role": "assistant", "parts": [_text(item.text)]}


def _text(text: str) -> m.JsonObject:
    return {"type": "text", "content": clipped_text(text)}


def _call(call: m.ToolCall) -> m.JsonObject:
    arguments: object = clipped_text(call.arguments)
    if len(call.arguments) <= CONTENT_LIMIT:
        try:
            arguments = msgspec.json.decode(call.arguments)
        except (msgspec.DecodeError, RecursionError):
            arguments = call.arguments
    return {"type": "tool_call", "id": call.call_id, "name": call.name, "arguments": arguments}


def _medium(medium: m.Attachment) -> m.JsonObject:
    """Return an image, a recording or a file without its data, which may be megabytes."""
    return {"type": "grue_medium", "modality": medium.kind, "mime_type": medium.mime, "bytes": medium.bytes}
