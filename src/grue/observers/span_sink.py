"""What an exporter of spans is, and how content looks in it."""

from abc import ABC, abstractmethod
from typing import Any, assert_never

import msgspec

from grue.messages import (
    AssistantText,
    CompletionReceived,
    ConversationItem,
    JsonObject,
    SystemText,
    ToolMessage,
    UserText,
)
from grue.observers.span_feed import SpanFeed
from grue.observers.spans import SpanClosed, SpanNoted, SpanOpened
from grue.runtime.trace import Envelope

CONTENT_LIMIT = 20_000
"""Longest text of a prompt, an argument, an output, in characters; the trace has the whole."""

DETAIL_LIMIT = 1_000
"""Longest text that says why something failed."""


class SpanSink(ABC):
    """Write spans down; an outbox's consumer. Runs in one thread.

    Args:
        feed: Makes the spans of the envelopes.
    """

    def __init__(self, feed: SpanFeed) -> None:
        self._feed = feed

    def consume(self, envelope: Envelope[Any]) -> None:
        """Write down what `envelope` begins, notes and ends."""
        self._write(self._feed.feed(envelope))

    def finish(self) -> None:
        """Close what is open, and send everything that is not sent yet."""
        try:
            self._write(self._feed.finish())
        finally:
            self.flush()

    def _write(self, events: list[SpanOpened | SpanNoted | SpanClosed]) -> None:
        for event in events:
            match event:
                case SpanOpened():
                    self.open(event)
                case SpanNoted():
                    self.note(event)
                case SpanClosed():
                    self.close(event)
                case never:
                    assert_never(never)

    @abstractmethod
    def open(self, event: SpanOpened) -> None:
        """Begin a span."""

    @abstractmethod
    def note(self, event: SpanNoted) -> None:
        """Say what happened in a span; one that is not known was not begun, or is lost."""

    @abstractmethod
    def close(self, event: SpanClosed) -> None:
        """End a span; one that is not known was not begun, or is lost."""

    @abstractmethod
    def flush(self) -> None:
        """Send what is not sent yet, blocking."""


def nanoseconds(seconds: float) -> int:
    """Return seconds since the epoch as OpenTelemetry counts them."""
    # By way of microseconds: a float of this size has no more digits.
    return round(seconds * 1_000_000) * 1_000


def clipped(value: object, limit: int = CONTENT_LIMIT) -> object:
    """Return a JSON value as it is, or, if its text is longer than `limit`, the beginning of its text."""
    text = value if isinstance(value, str) else json_text(value)
    if len(text) <= limit:
        return value
    return f"{text[:limit]}… [cut: {len(text) - limit} of {len(text)} characters]"


def clipped_text(text: str, limit: int = CONTENT_LIMIT) -> str:
    """Return a text, or its beginning."""
    return str(clipped(text, limit))


def json_text(value: object) -> str:
    """Return a JSON value's text."""
    return msgspec.json.encode(value).decode()


def chat_messages(items: tuple[ConversationItem, ...]) -> list[JsonObject]:
    """Return what is new in a conversation in the shape of chat completions, each text clipped."""
    return [_chat_message(item) for item in items]


def _chat_message(item: ConversationItem) -> JsonObject:
    match item:
        case SystemText(text=text):
            return {"role": "system", "content": clipped(text)}
        case UserText(text=text):
            return {"role": "user", "content": clipped(text)}
        case AssistantText(text=text):
            return {"role": "assistant", "content": clipped(text)}
        case ToolMessage(call_id=call_id, content=content):
            return {"role": "tool", "tool_call_id": call_id, "content": clipped(content)}
        case never:
            assert_never(never)


def chat_reply(reply: CompletionReceived) -> JsonObject:
    """Return a reply in the same shape."""
    message: JsonObject = {"role": "assistant"}
    for part in ("content", "refusal", "reasoning"):
        text = getattr(reply, part)
        if text is not None:
            message[part] = clipped(text)
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": clipped(call.arguments)},
            }
            for call in reply.tool_calls
        ]
    return message
