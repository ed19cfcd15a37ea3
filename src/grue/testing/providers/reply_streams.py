"""Replies as streams of server-sent events: what the formats share, and the stream of chat completions.

Each event is returned as bytes, with its blank line. As in real streams, texts are split into several pieces,
and arguments into fragments that are not valid JSON by themselves.
"""

import json
from collections.abc import Iterator

from grue.testing.providers.chat_shapes import Json, first_choice, given

PIECES = 12
"""Largest number of pieces that a text is split into."""

_LEAST_PIECE = 4
BROKEN = "The upstream broke off."
"""The message of an error in the middle of a stream."""


def pieces(text: str) -> list[str]:
    """Split a text into at most `PIECES` pieces, all but the last of the same length."""
    size = max(_LEAST_PIECE, -(-len(text) // PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def event_of(content: object, name: str = "") -> bytes:
    """Return an event, with a name if it has one."""
    line = f"event: {name}\n" if name else ""
    try:
        # Without ASCII escapes: a client must be able to join a character that is split between two chunks.
        data = json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        data = json.dumps(content).encode()
    return b"%bdata: %b\n\n" % (line.encode(), data)


def named_event(content: Json) -> bytes:
    """Return an event that is named for its type."""
    return event_of(content, content["type"])


def chat_error() -> bytes:
    """Return the event that reports an error in the middle of a stream."""
    broken = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
    error = {"code": 502, "message": BROKEN}
    return event_of({"object": "chat.completion.chunk", "error": error, "choices": [broken]})


def chat_events(completion: Json, request: Json) -> Iterator[bytes]:
    """Yield the events of a chat completion."""
    message, finish = first_choice(completion)
    head = {"object": "chat.completion.chunk", **given(completion, "id", "created", "model")}

    def chunk(delta: Json, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return event_of({**head, "choices": [choice]})

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
        yield event_of({**head, "choices": [], "usage": completion.get("usage")})
    yield b"data: [DONE]\n\n"
