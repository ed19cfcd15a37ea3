"""The base class of span exporters, and functions that cut and format the content that they send."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.names import openai_call
from grue.runtime.trace.recorder import Envelope
from grue.tracing.observers.spans import AsSent, SpanClosed, SpanFeed, SpanId, SpanNoted, SpanOpened

CONTENT_LIMIT = 20_000  # the most characters of one text, of a call's arguments or of an output
# The most characters of a request's earlier messages. Beyond it, only system texts are shown.
HISTORY_LIMIT = 200_000
DETAIL_LIMIT = 1_000  # most characters of a verdict's detail, or of a tool's description

Capture: TypeAlias = bool | Literal["reference"]
"""`True`: content is sent. `reference`: of a request's messages, only those that no earlier request had."""


class SpanSink(ABC):
    """The base of span exporters. An outbox calls `consume` and `finish`, and counts their exceptions."""

    def __init__(self, feed: SpanFeed) -> None:
        self._feed = feed
        self._spans: dict[SpanId, Any] = {}
        self._ended_turn: dict[SpanId, Any] = {}

    def consume(self, envelope: Envelope[Any]) -> None:
        """Export the spans that begin or end with `envelope`, and the events in them."""
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
                    self._spans[event.span] = self.open(event, self._found(event.parent))
                case SpanNoted():
                    self.note(event, self._found(event.span))
                case SpanClosed():
                    span = self._spans.pop(event.span, None)
                    if span is None:
                        continue  # `open` raised for this span
                    if isinstance(event.subject, m.RunTurn):
                        # Keep the ended turn's span: the host may still make calls that belong to the turn.
                        self._ended_turn = {event.span: span}
                    self.close(event, span)
                case never:
                    assert_never(never)

    def _found(self, span: SpanId | None) -> Any:
        """Return the backend's object for a span, or `None`, for example because `open` failed."""
        return None if span is None else self._spans.get(span) or self._ended_turn.get(span)

    @abstractmethod
    def open(self, event: SpanOpened, inside: Any) -> Any:
        """Begin a span, and return the backend's object for it; `inside`: its parent's object, or `None`."""

    @abstractmethod
    def note(self, event: SpanNoted, span: Any) -> None:
        """Add an event to a span. `span` is what `open` returned, or `None` if `open` failed."""

    @abstractmethod
    def close(self, event: SpanClosed, span: Any) -> None:
        """End a span. `span` is what `open` returned."""

    @abstractmethod
    def flush(self) -> None:
        """Send everything that is not sent yet. Blocks."""


def nanoseconds(seconds: float) -> int:
    """Convert seconds since the epoch to nanoseconds, rounded to the microseconds that a float can hold."""
    return round(seconds * 1_000_000) * 1_000


def clipped(value: object, limit: int = CONTENT_LIMIT) -> object:
    """Return `value`. If its text or JSON has over `limit` characters, return the beginning and a note."""
    text = value if isinstance(value, str) else json_text(value)
    if len(text) <= limit:
        return value
    return f"{text[:limit]}… [cut: {len(text) - limit} of {len(text)} characters]"


def clipped_text(value: object, limit: int = CONTENT_LIMIT) -> str:
    """Return a text, or any other value as JSON, cut as by `clipped`."""
    value = clipped(value, limit)
    return value if isinstance(value, str) else json_text(value)


def json_text(value: object) -> str:
    """Return a value encoded as JSON text."""
    return msgspec.json.encode(value).decode()


def shown_history(
    sent: AsSent, *, whole: bool
) -> tuple[tuple[m.ConversationItem | m.AssistantReply, ...], int]:
    """Return the messages of `sent` that a generation's span shows, and how many it does not show."""
    # It shows the new messages and, if `whole`, as many of the latest earlier messages as fit into
    # `HISTORY_LIMIT` characters, and all system texts before these.
    earlier, new = sent.said[: len(sent.said) - sent.fresh], sent.said[len(sent.said) - sent.fresh :]
    if not whole:
        return new, len(earlier)
    left, first = HISTORY_LIMIT, len(earlier)
    while first and (left := left - _size(earlier[first - 1])) >= 0:
        first -= 1
    heads = tuple(item for item in earlier[:first] if isinstance(item, m.SystemText))
    return (*heads, *earlier[first:], *new), first - len(heads)


def _size(item: m.ConversationItem | m.AssistantReply) -> int:
    match item:
        case m.AssistantReply(content=content, tool_calls=calls):
            texts = (content or "", *(call.arguments for call in calls))
            return sum(min(len(text), CONTENT_LIMIT) for text in texts)
        case m.ToolMessage(content=text):
            return min(len(text), CONTENT_LIMIT)
        case _:
            return min(len(item.text), CONTENT_LIMIT)


def chat_messages(items: Iterable[m.ConversationItem | m.AssistantReply]) -> list[m.JsonObject]:
    """Return messages of a conversation in chat-completions format, each text clipped."""
    return [_chat_message(item) for item in items]


def _chat_message(item: m.ConversationItem | m.AssistantReply) -> m.JsonObject:
    match item:
        case m.AssistantReply(content=content, tool_calls=calls):
            return _reply_message({"content": content}, calls)
        case m.SystemText(text=text):
            return {"role": "system", "content": clipped(text)}
        case m.UserText(text=text):
            return {"role": "user", "content": clipped(text)}
        case m.AssistantText(text=text):
            return {"role": "assistant", "content": clipped(text)}
        case m.ToolMessage(call_id=call_id, content=content):
            return {"role": "tool", "tool_call_id": call_id, "content": clipped(content)}
        case never:
            assert_never(never)


def chat_reply(reply: m.CompletionReceived) -> m.JsonObject:
    """Return a reply in chat-completions format."""
    parts = ("content", "refusal", "reasoning")
    return _reply_message({part: getattr(reply, part) for part in parts}, reply.tool_calls)


def _reply_message(texts: dict[str, str | None], calls: tuple[m.ToolCall, ...]) -> m.JsonObject:
    message: m.JsonObject = {"role": "assistant"}
    message |= {part: clipped(text) for part, text in texts.items() if text is not None}
    if calls:
        cut = (replace(call, arguments=clipped_text(call.arguments)) for call in calls)
        message["tool_calls"] = [openai_call(call) for call in cut]
    return message
