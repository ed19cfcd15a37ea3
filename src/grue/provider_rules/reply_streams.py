"""Encode replies as streams of server-sent events, in each of the three formats.

Each event is returned as bytes, with its blank line. As in real streams, texts are split into several pieces,
and arguments into fragments that are not valid JSON by themselves.
"""

import itertools
import json
from collections.abc import Callable, Iterator

from grue.provider_rules.chat_shapes import Json, first_choice, given
from grue.provider_rules.dialects import DialectName

PIECES = 12
"""Largest number of pieces that a text is split into."""

_LEAST_PIECE = 4
_BROKEN = "The upstream broke off."


def stream_of(dialect: DialectName, reply: Json, request: Json) -> tuple[bytes, ...]:
    """Return the events of a reply.

    Args:
        dialect: The format of the reply: a chat completion, a Response or a Message.
        reply: The body that would be sent without streaming.
        request: The request; `stream_options` in it may ask for usage.
    """
    return tuple(_STREAMS[dialect](reply, request))


def error_event(dialect: DialectName) -> bytes:
    """Return the event that reports an error in the middle of a stream."""
    match dialect:
        case "chat":
            broken = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
            error = {"code": 502, "message": _BROKEN}
            return _event({"object": "chat.completion.chunk", "error": error, "choices": [broken]})
        case "responses":
            said = {"type": "error", "code": "server_error", "message": _BROKEN, "param": None}
            return _named({**said, "sequence_number": 99})
        case "messages":
            return _named({"type": "error", "error": {"type": "overloaded_error", "message": _BROKEN}})


def pieces(text: str) -> list[str]:
    """Split a text into at most `PIECES` pieces, all but the last of the same length."""
    size = max(_LEAST_PIECE, -(-len(text) // PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _event(content: object, name: str = "") -> bytes:
    line = f"event: {name}\n" if name else ""
    try:
        # Without ASCII escapes: a client must be able to join a character that is split between two chunks.
        data = json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        data = json.dumps(content).encode()
    return b"%bdata: %b\n\n" % (line.encode(), data)


def _named(content: Json) -> bytes:
    return _event(content, content["type"])


def _chat(completion: Json, request: Json) -> Iterator[bytes]:
    message, finish = first_choice(completion)
    head = {"object": "chat.completion.chunk", **given(completion, "id", "created", "model")}

    def chunk(delta: Json, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event({**head, "choices": [choice]})

    # Gateways send comments like this one while they wait for the upstream provider.
    yield b": PROCESSING\n\n"
    yield chunk({"role": "assistant", "content": ""})
    for field, value in message.items():
        if field not in {"role", "tool_calls"} and value:
            for piece in pieces(value) if isinstance(value, str) else [value]:
                yield chunk({field: piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        begun = {**call, "index": index, "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        for piece in pieces(arguments) if isinstance(arguments, str) else [arguments]:
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, finish)
    if (request.get("stream_options") or {}).get("include_usage"):
        yield _event({**head, "choices": [], "usage": completion.get("usage")})
    yield b"data: [DONE]\n\n"


def _messages(message: Json, request: Json) -> Iterator[bytes]:
    del request
    usage = message["usage"]
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None}
    yield _named({"type": "message_start", "message": {**begun, "usage": {**usage, "output_tokens": 1}}})
    yield _named({"type": "ping"})
    for index, block in enumerate(message["content"]):
        empty, deltas = _block(block)
        yield _named({"type": "content_block_start", "index": index, "content_block": empty})
        for delta in deltas:
            yield _named({"type": "content_block_delta", "index": index, "delta": delta})
        yield _named({"type": "content_block_stop", "index": index})
    ended = given(message, "stop_reason", "stop_sequence", "stop_details")
    yield _named({"type": "message_delta", "delta": {"stop_sequence": None, **ended}, "usage": usage})
    yield _named({"type": "message_stop"})


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


def _responses(response: Json, request: Json) -> Iterator[bytes]:
    del request
    numbers = itertools.count()

    def event(kind: str, **content: object) -> bytes:
        return _named({"type": kind, "sequence_number": next(numbers), **content})

    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        empty, steps = _item(item)
        yield event("response.output_item.added", output_index=index, item=empty)
        for kind, content in steps:
            yield event(f"response.{kind}", output_index=index, item_id=item["id"], **content)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{response['status']}", response=response)


def _item(item: Json) -> tuple[Json, list[tuple[str, Json]]]:
    """Return an output item as the stream starts it, and the events (kind, content) that complete it."""
    match item["type"]:
        case "message":
            steps = [step for number, part in enumerate(item["content"]) for step in _part(number, part)]
            return {**item, "status": "in_progress", "content": []}, steps
        case "function_call":
            text = item["arguments"]
            steps = [("function_call_arguments.delta", {"delta": piece}) for piece in pieces(text)]
            done = ("function_call_arguments.done", {"arguments": text, "name": item["name"]})
            return {**item, "status": "in_progress", "arguments": ""}, [*steps, done]
        case "reasoning":
            steps = [step for number, part in enumerate(item["summary"]) for step in _summary(number, part)]
            begun = {key: value for key, value in item.items() if key != "encrypted_content"}
            return {**begun, "summary": []}, steps
        case _:
            return item, []


def _part(number: int, part: Json) -> Iterator[tuple[str, Json]]:
    field = "text" if part["type"] == "output_text" else "refusal"
    kind, more = ("output_text", {"logprobs": []}) if field == "text" else ("refusal", Json())
    where = {"content_index": number}
    yield "content_part.added", {**where, "part": {**part, field: ""}}
    for piece in pieces(part[field]):
        yield f"{kind}.delta", {**where, "delta": piece, **more}
    yield f"{kind}.done", {**where, field: part[field], **more}
    yield "content_part.done", {**where, "part": part}


def _summary(number: int, part: Json) -> Iterator[tuple[str, Json]]:
    where = {"summary_index": number}
    yield "reasoning_summary_part.added", {**where, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield "reasoning_summary_text.delta", {**where, "delta": piece}
    yield "reasoning_summary_text.done", {**where, "text": part["text"]}
    yield "reasoning_summary_part.done", {**where, "part": part}


_STREAMS: dict[DialectName, Callable[[Json, Json], Iterator[bytes]]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
}
