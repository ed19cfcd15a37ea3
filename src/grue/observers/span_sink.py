"""The base class of span exporters, and the format in which they send content."""

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
"""Longest text of a prompt, an argument or an output, in characters; the trace holds the whole text."""

DETAIL_LIMIT = 1_000
"""Longest text of a failure's reason."""


class SpanSink(ABC):
    """The base of span exporters, used as an outbox's consumer. Runs in one thread.

    Args:
        feed: Turns envelopes into spans.
    """

    def __init__(self, feed: SpanFeed) -> None:
        self._feed = feed

    def consume(self, envelope: Envelope[Any]) -> None:
        """Export the spans and notes of `envelope`."""
        self._write(self._feed.feed(envelope))

    def finish(self) -> None:
        """Close all open spans, and send everything that is not sent yet."""
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
        """Add a note to a span. Ignore a span that is not known: it was not begun, or was lost."""

    @abstractmethod
    def close(self, event: SpanClosed) -> None:
        """End a span. Ignore a span that is not known: it was not begun, or was lost."""

    @abstractmethod
    def flush(self) -> None:
        """Send everything that is not sent yet. Blocks."""


def nanoseconds(seconds: float) -> int:
    """Return seconds since the epoch as OpenTelemetry counts them."""
    # Round to microseconds, because a float of this size has no more digits.
    return round(seconds * 1_000_000) * 1_000


def clipped(value: object, limit: int = CONTENT_LIMIT) -> object:
    """Return a JSON value unchanged, or the beginning of its text if that is longer than `limit`."""
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
    """Return a conversation's new messages in chat-completions format, each text clipped."""
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
    """Return a reply in the same format."""
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
