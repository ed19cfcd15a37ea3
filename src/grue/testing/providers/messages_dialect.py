"""Translate Anthropic's `/v1/messages` to chat completions and back.

In chat completions, tool results are messages of their own and arguments are JSON text. In this format,
results are blocks in the user's message, arguments are objects, and the system text is a field of the
request. The rules of this format are in `messages_rules.py`.
"""

import json
from collections.abc import Iterator

from grue.testing.providers.chat_shapes import (
    Json,
    details,
    first_choice,
    given,
    number_of,
    one_or_parts,
    reasoning_of,
    signature_of,
)
from grue.testing.providers.reply_streams import BROKEN, named_event, pieces

THINKING = frozenset({"thinking", "redacted_thinking"})

_CHOICES = {"auto": "auto", "none": "none", "any": "required"}
_STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def to_chat(body: Json) -> Json:
    """Return a request to `/v1/messages` as a chat completions request."""
    chat = given(body, "model", "temperature", "top_p", "top_k", "max_tokens", "stream")
    chat["messages"] = [*_system(body.get("system")), *_messages(body.get("messages") or [])]
    if "tools" in body:
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
    if choice := body.get("tool_choice"):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = _CHOICES.get(choice["type"], named)
        if "disable_parallel_tool_use" in choice:
            chat["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    if "stop_sequences" in body:
        chat["stop"] = body["stop_sequences"]
    if user := (body.get("metadata") or {}).get("user_id"):
        chat["user"] = user
    return {**chat, **_output(body.get("output_config") or {}), **_reasoning(body.get("thinking") or {})}


def _output(config: Json) -> Json:
    chat: Json = {}
    if shape := config.get("format"):
        named = {"name": "output", "schema": shape["schema"], "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": named}
    if effort := config.get("effort"):
        chat["reasoning_effort"] = effort
    return chat


def _reasoning(thinking: Json) -> Json:
    match thinking:
        case {"type": "enabled", "budget_tokens": budget}:
            return {"reasoning": {"max_tokens": budget}}
        case {"type": "disabled"}:
            return {"reasoning": {"enabled": False}}
        case {"type": _}:
            return {"reasoning": {"enabled": True}}
        case _:
            return {}


def _tool(tool: Json) -> Json:
    function = {
        "name": tool.get("name"),
        "parameters": tool.get("input_schema"),
        **given(tool, "description"),
    }
    return {"type": "function", "function": function | ({"strict": True} if tool.get("strict") else {})}


def _system(system: str | list[Json] | None) -> Iterator[Json]:
    if system is None:
        return
    content = system if isinstance(system, str) else one_or_parts([_part(block) for block in system])
    yield {"role": "system", "content": content}


def _messages(messages: list[Json]) -> Iterator[Json]:
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        yield from _assistant(blocks) if message["role"] == "assistant" else _user(message["role"], blocks)


def _user(role: str, blocks: list[Json]) -> Iterator[Json]:
    """Yield a message for each result, then one for the rest, images and documents of results included."""
    parts: list[Json] = []
    for block in blocks:
        if block["type"] != "tool_result":
            parts.append(_part(block))
            continue
        said = block.get("content") or ""
        inside = [{"type": "text", "text": said}] if isinstance(said, str) else said
        text = "".join(part["text"] for part in inside if part["type"] == "text")
        parts += [_part(part) for part in inside if part["type"] != "text"]
        yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}
    if parts:
        yield {"role": role, "content": one_or_parts(parts)}


def _part(block: Json) -> Json:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"], **given(block, "cache_control")}
    source = block.get("source") or {}
    if block["type"] == "document":
        url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "file", "file": {"filename": block.get("title") or "document", "file_data": url}}
    url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(blocks: list[Json]) -> Iterator[Json]:
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    message: Json = {"role": "assistant", "content": "".join(texts) if texts else None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls := [_call(block) for block in blocks if block["type"] == "tool_use"]:
        message["tool_calls"] = calls
    yield message


def _call(block: Json) -> Json:
    arguments = json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))
    return {
        "id": block["id"],
        "type": "function",
        "function": {"name": block["name"], "arguments": arguments},
    }


def from_chat(completion: Json, request: Json) -> Json:
    """Return a chat completion as a Message.

    Arguments that are not valid JSON are put into `input` as text, because a script may send a malformed
    reply on purpose.
    """
    message, finish = first_choice(completion)
    content = [*_blocks(message)]
    refusal = message.get("refusal")
    stop = "refusal" if refusal else _STOPS.get(finish, finish)
    if stop == "end_turn" and message.get("tool_calls"):
        stop = "tool_use"
    explained = {"type": "refusal", "category": None, "explanation": refusal}
    return {
        "id": f"msg_{number_of(message)}",
        "type": "message",
        "role": "assistant",
        "model": completion.get("model", request.get("model")),
        "content": content,
        "stop_reason": stop,
        "stop_sequence": (request.get("stop_sequences") or [None])[0] if stop == "stop_sequence" else None,
        "stop_details": explained if stop == "refusal" else None,
        "usage": _usage(completion.get("usage") or {}),
    }


def _blocks(message: Json) -> Iterator[Json]:
    if thinking := reasoning_of(message):
        yield {"type": "thinking", "thinking": thinking, "signature": signature_of(thinking)}
    if hidden := message.get("redacted_thinking"):
        yield {"type": "redacted_thinking", "data": hidden}
    if message.get("content"):
        yield {"type": "text", "text": message["content"], "citations": None}
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"] or "{}"
        try:
            parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError:
            parsed = arguments
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": parsed}


def _usage(usage: Json) -> Json:
    sent, written = details(usage, "prompt"), details(usage, "completion")
    read, created = sent.get("cached_tokens") or 0, sent.get("cache_write_tokens") or 0
    # Unlike in chat completions, tokens read from or written to the cache are not part of the input tokens.
    counted = {
        "input_tokens": max(0, usage.get("prompt_tokens", 0) - read - created),
        "output_tokens": usage.get("completion_tokens", 0),
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
    }
    if "reasoning_tokens" in written:
        counted["output_tokens_details"] = {"thinking_tokens": written["reasoning_tokens"]}
    return counted


def error(status: int, said: Json) -> Json:
    """Return an error in Anthropic's shape. In a reply with status 200, the error's `code` is its status."""
    code = said.get("code")
    status = code if status == 200 and isinstance(code, int) else status
    kind = _ERROR_TYPES.get(
        status, "api_error" if status >= 500 or status == 200 else "invalid_request_error"
    )
    message = said.get("message")
    return {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": f"req_{number_of(said)}",
    }


def owed(message: Json) -> dict[str, list[Json]]:
    """Return the thinking that later requests must repeat, by the id of each call, or else of the Message."""
    blocks = message["content"]
    thinking = [block for block in blocks if block["type"] in THINKING]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"] or [message["id"]]
    return dict.fromkeys(ids, thinking) if thinking else {}


def broken_off() -> bytes:
    """Return the event that reports an error in the middle of a stream."""
    return named_event({"type": "error", "error": {"type": "overloaded_error", "message": BROKEN}})


def events(message: Json, request: Json) -> Iterator[bytes]:
    """Yield the events of a reply in this format."""
    del request
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
    yield named_event({"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 1}}})
    yield named_event({"type": "ping"})
    for index, block in enumerate(message["content"]):
        empty, deltas = _block(block)
        yield named_event({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            yield named_event({"type": "content_block_delta", "index": index, "delta": delta})
        yield named_event({"type": "content_block_stop", "index": index})
    ended = given(message, "stop_reason", "stop_sequence", "stop_details")
    yield named_event({"type": "message_delta", "delta": {"stop_sequence": None, **ended}, "usage": usage})
    yield named_event({"type": "message_stop"})


def _block(block: Json) -> tuple[Json, list[Json]]:
    """Return a content block as the stream starts it, and the deltas that complete it."""
    match block:
        case {"type": "text", "text": text}:
            return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(text)]
        case {"type": "thinking", "thinking": text, "signature": signature}:
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(text)]
            proof = {"type": "signature_delta", "signature": signature}
            return {**block, "thinking": "", "signature": ""}, [*thoughts, proof]
        case {"type": "tool_use", "input": given_input}:
            text = (
                given_input if isinstance(given_input, str) else json.dumps(given_input, ensure_ascii=False)
            )
            # Anthropic sends an empty fragment first.
            fragments = ["", *pieces(text)]
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": each} for each in fragments
            ]
        case _:
            return block, []
