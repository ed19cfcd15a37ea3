"""What the formats share: reading completions, sealing reasoning, and the stream of chat completions.

Providers return some reasoning encrypted or signed, and check it when it comes back. `sealed` and
`signature_of` imitate that with digests, so that a change is detected.

Each event of a stream is returned as bytes, with its blank line. As in real streams, texts are split into
several pieces, and arguments into fragments that are not valid JSON by themselves.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

Owed: TypeAlias = Mapping[str, Sequence[Json]]
"""The reasoning that a request must repeat unchanged, by the id of the tool call that followed it."""

_SIGNED = "scripted-"
_SEALED = "gAAAA"


def words(text: str) -> frozenset[str]:
    """Split a text into a set of names."""
    return frozenset(text.split())


def first_choice(completion: Json) -> tuple[Json, str]:
    """Return the assistant's message of a completion, and its finish reason."""
    choice = completion["choices"][0]
    return choice["message"], choice.get("finish_reason") or "stop"


def reasoning_of(message: Json) -> str:
    """Return a message's reasoning, from either of the fields that providers use; empty: none."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def details(usage: Json, which: str) -> Json:
    """Return `prompt_tokens_details` or `completion_tokens_details` of a usage object; empty if missing."""
    found: Json = usage.get(f"{which}_tokens_details") or {}
    return found


def given(body: Json, *names: str) -> Json:
    """Return those of the named fields of `body` that are present and not null."""
    return {name: body[name] for name in names if body.get(name) is not None}


def one_or_parts(parts: list[Json]) -> str | list[Json]:
    """Return the content of a chat message: a string if it is a single text without a cache marker."""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"])
    return parts


def number_of(*said: object) -> str:
    """Return a digest of contents, to make ids of: equal contents get equal ids."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:24]


def signature_of(thinking: str) -> str:
    """Return the signature of a thinking block, as Anthropic's endpoint would sign it."""
    return _SIGNED + number_of("thinking", thinking)


def sealed(reasoning: str) -> str:
    """Return reasoning in the form of encrypted content, in which a change is detected."""
    text = base64.urlsafe_b64encode(reasoning.encode()).decode()
    return f"{_SEALED}{number_of('sealed', reasoning)}.{text}"


def is_sealed(text: str) -> bool:
    """Return whether `sealed` made this text."""
    try:
        return sealed(base64.urlsafe_b64decode(text.partition(".")[2]).decode()) == text
    except (ValueError, binascii.Error):
        return False


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
