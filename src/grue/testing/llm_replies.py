"""What a scripted endpoint says: replies as chat completions, whatever format they will be sent in.

`completion` makes any reply, the others the usual ones. Ways to fail are in `llm_faults.py`.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

_call_numbers = itertools.count(1)


class Pace(Struct, frozen=True, kw_only=True):
    """How slowly a body goes out: `size` bytes, then a wait of `every_s` seconds, and again."""

    size: int
    every_s: float


class LlmReply(Struct, frozen=True, kw_only=True):
    """What the server sends back.

    Attributes:
        body: A chat completion or an error in OpenAI's shape, sent in the format of the request; anything
            else is sent as it is.
        then: `keep` the connection; `hang`: send nothing more until the server closes; `drop`: close the
            connection; `reset` it.
        after: Share of the body that goes out before `then`, from 0 to 1; of a stream, the share of its
            events. `None`: with `keep` all of it; otherwise `body` alone, raw, without a head.
        pace: How slowly the body goes out; `None`: at once.
        amid: Sent in the middle of a stream, after that share of it: these bytes; `error`: an error event,
            and nothing more. A reply that is not streamed is sent as it is.
        events: The events of a stream, sent in place of the body.
    """

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes = b""
    then: Literal["keep", "hang", "drop", "reset"] = "keep"
    after: float | None = None
    pace: Pace | None = None
    amid: bytes | Literal["error"] = b""
    events: tuple[bytes, ...] = ()


def text_reply(content: str | None, *, finish_reason: str = "stop", **message: object) -> LlmReply:
    """Return a completion with text.

    Args:
        content: The text.
        finish_reason: Such as `length` or `content_filter`.
        message: Further fields of the assistant's message, such as `reasoning_content`.
    """
    return completion({"role": "assistant", "content": content, **message}, finish_reason=finish_reason)


def tool_calls_reply(
    *calls: tuple[str, Mapping[str, object] | str],
    content: str | None = None,
    ids: Sequence[str] = (),
    **message: object,
) -> LlmReply:
    """Return a completion with tool calls.

    Args:
        calls: Name, and arguments as a mapping or as the JSON text to send.
        content: Text beside the calls.
        ids: Their ids; default: fresh ones.
        message: Further fields of the assistant's message, such as `reasoning_content`, which the server then
            wants back with the calls.
    """
    wanted = ids or [f"call_scripted_{next(_call_numbers)}" for _ in calls]
    tool_calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for call_id, (name, arguments) in zip(wanted, calls, strict=True)
    ]
    said = {"role": "assistant", "content": content, "tool_calls": tool_calls, **message}
    return completion(said, finish_reason="tool_calls")


def refusal_reply(words: str) -> LlmReply:
    """Return a completion in which the model declines to answer."""
    return completion({"role": "assistant", "content": None, "refusal": words})


def completion(
    message: Mapping[str, object], *, finish_reason: str = "stop", usage: Mapping[str, object] | None = None
) -> LlmReply:
    """Return a completion with any assistant's message, well-formed or not.

    Args:
        message: As it is to stand in the completion.
        finish_reason: Why the message ends.
        usage: As chat completions count it; default: 10 tokens sent, 5 written.
    """
    counted = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return json_reply(
        {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
            "usage": counted if usage is None else usage,
        }
    )


def error_reply(
    status: int, message: str, headers: Mapping[str, str] | None = None, **error: object
) -> LlmReply:
    """Return an error in OpenAI's shape.

    Args:
        status: HTTP status.
        message: The provider's words.
        headers: Such as `{"Retry-After": "3"}`.
        error: Further fields of the error object, such as `metadata`.
    """
    return json_reply({"error": {"message": message, **error}}, status=status, headers=headers)


def json_reply(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> LlmReply:
    """Return any JSON."""
    return LlmReply(
        status=status,
        headers={"Content-Type": "application/json", **(headers or {})},
        body=json.dumps(body).encode(),
    )


def silence() -> LlmReply:
    """Return no reply at all, for as long as the server lives."""
    return LlmReply(then="hang")


def hang_up(sent: bytes = b"") -> LlmReply:
    """Close the connection after these raw bytes, which may be half a reply."""
    return LlmReply(body=sent, then="drop")
