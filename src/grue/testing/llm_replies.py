"""Replies for a `ScriptedLlmServer`. Completions are chat completions; the server translates them."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from grue.testing.providers.chat_rules import chat_call, chat_completion

_call_numbers = itertools.count(1)


class Pace(Struct, frozen=True, kw_only=True):
    """A slow transmission: `size` bytes, then a pause of `every_s` seconds, and so on."""

    size: int
    every_s: float


class LlmReply(Struct, frozen=True, kw_only=True):
    """A reply of the scripted server.

    Attributes:
        body: A chat completion or an error in OpenAI's shape, sent in the format of the request. Any other
            body is not translated.
        then: What to do after sending: `keep` the connection, `hang` (send nothing more until the server
            closes), `drop` (close the connection), or `reset` it.
        after: Fraction of the body to send before `then`, from 0 to 1; in a stream, the fraction of its
            events. `None`: with `keep`, the whole reply; else `body` alone, without status line and headers.
        pace: How slowly to send the body; `None`: without pauses.
        amid: What to send in the middle of a stream: bytes, or `error` for an error event that ends the
            stream. `after` is then the fraction of the events before it, by default half; `then` comes after
            the last event. A reply that is not streamed is sent whole.
        gzip: How many times the body, or each event of a stream, is compressed; 0: not at all.
        events: The events of a stream, sent instead of the body. The server sets them.
    """

    status: int = 200
    headers: dict[str, str] = {}
    body: bytes = b""
    then: Literal["keep", "hang", "drop", "reset"] = "keep"
    after: float | None = None
    pace: Pace | None = None
    amid: bytes | Literal["error"] = b""
    gzip: int = 0
    events: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a `body` of a wrong type now. Later the tested client would only see a broken connection."""
        if not isinstance(self.body, bytes | bytearray | memoryview):
            raise TypeError(f"LlmReply: body= wants bytes, not {type(self.body).__name__}.")


def text_reply(content: str | None, *, finish_reason: str = "stop", **message: object) -> LlmReply:
    """Return a completion with text.

    `message` has further fields of the assistant's message, such as `reasoning_content`.

    Raises:
        TypeError: The content is neither a `str` nor `None`.
    """
    if not isinstance(content, str | None):
        raise TypeError(
            f"text_reply wants a text, not {type(content).__name__}; for a structured answer: json.dumps(...)"
        )
    return completion({"role": "assistant", "content": content, **message}, finish_reason=finish_reason)


def tool_calls_reply(
    *calls: tuple[str, Mapping[str, object] | str],
    content: str | None = None,
    ids: Sequence[str] = (),
    **message: object,
) -> LlmReply:
    """Return a completion with tool calls.

    Args:
        calls: The calls, each as a pair: name, and arguments as a mapping or as the JSON text to send.
        content: Text beside the calls.
        ids: The ids of the calls; default: new ones.
        message: Further fields of the assistant's message, such as `reasoning_content`. If they have
            reasoning, the server refuses later requests that repeat the calls without the reasoning (in chat
            completions only with `ProviderRules.echo_reasoning`).

    Raises:
        TypeError: A call is not such a pair, there are not as many ids as calls, or `content` is not a text.
    """
    for call in calls:
        match call:
            case (str(), str() | Mapping()):
                continue
        raise TypeError(
            'tool_calls_reply: write tool_calls_reply(("server.tool", {...})), one pair for each call.'
        )
    if not isinstance(ids, list | tuple) or len(ids) not in (0, len(calls)):
        raise TypeError(f"tool_calls_reply: ids= wants a list with an id for each of the {len(calls)} calls.")
    if content is not None:
        _check_form("tool_calls_reply", "content=", content, str)
    wanted = ids or [f"call_scripted_{next(_call_numbers)}" for _ in calls]
    tool_calls = [
        chat_call(call_id, name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for call_id, (name, arguments) in zip(wanted, calls, strict=True)
    ]
    said = {"role": "assistant", "content": content, "tool_calls": tool_calls, **message}
    return completion(said, finish_reason="tool_calls")


def refusal_reply(words: str) -> LlmReply:
    """Return a completion in which the model refuses to answer, with `words` in its field `refusal`."""
    _check_form("refusal_reply", "words", words, str)
    return completion({"role": "assistant", "content": None, "refusal": words})


def completion(
    message: Mapping[str, object], *, finish_reason: str = "stop", usage: Mapping[str, object] | None = None
) -> LlmReply:
    """Return a completion with any `message`. Default `usage`: 10 prompt tokens, 5 completion tokens."""
    _check_form("completion", "message", message, Mapping)
    counted = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return json_reply(chat_completion(message, finish_reason, counted if usage is None else usage))


def error_reply(
    status: int, message: str, headers: Mapping[str, str] | None = None, **error: object
) -> LlmReply:
    """Return an error in OpenAI's shape; `error` has the error's further fields, such as `metadata`."""
    _check_form("error_reply", "status", status, int)
    _check_form("error_reply", "message", message, str)
    if headers is not None:
        _check_form("error_reply", "headers", headers, Mapping)
    return json_reply({"error": {"message": message, **error}}, status=status, headers=headers)


def json_reply(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> LlmReply:
    """Return a reply with any JSON body."""
    return LlmReply(
        status=status,
        headers={"Content-Type": "application/json", **(headers or {})},
        body=json.dumps(body).encode(),
    )


def _check_form(function: str, argument: str, value: object, form: type) -> None:
    if not isinstance(value, form):
        wanted = {str: "a text", int: "a number, such as 503"}.get(form, "a dictionary")
        raise TypeError(f"{function}: {argument} wants {wanted}, not {type(value).__name__}.")


def silence() -> LlmReply:
    """Return a reply that sends nothing and keeps the connection open until the server closes."""
    return LlmReply(then="hang")


def hang_up(sent: bytes = b"") -> LlmReply:
    """Return a reply of these raw bytes, such as half a reply, after which the connection is closed."""
    return LlmReply(body=sent, then="drop")
