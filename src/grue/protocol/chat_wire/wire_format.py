"""What a wire format does: it puts requests together and reads replies, both as data.

A request is put together from parts, each encoded once: a head (model, sampling), the messages, and a tail
(tools, or the shape of the answer). Nothing that varies from request to request stands before the messages,
so that each request begins with the very bytes of the one before, up to its last message.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from grue.messages import AnswerSchema, CachePoint, JsonObject, SystemText, ToolDefinition, UserText
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.json_text import to_json
from grue.protocol.chat_wire.media import WireItem
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.chat_wire.server_events import ServerEvent
from grue.protocol.tool_names import WireNames

EMPTY = "(empty)"
"""What stands for an empty or blank text, which some endpoints refuse."""


class Said(Struct, frozen=True):
    """Messages, encoded; what a format keeps apart from them as `system` is in there."""

    system: tuple[bytes, ...] = ()
    messages: tuple[bytes, ...] = ()


class Choice(Struct, frozen=True):
    """Which tool the model has to call; `name` is a wire name, and only where `mode` is `named`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


class WireRequest(Struct, frozen=True, kw_only=True):
    """Everything that a request's body is made of.

    Attributes:
        system: What the format keeps apart from the messages.
        messages: The conversation, each message encoded.
        tools: The encoded listing; empty: the request must not mention tools at all.
        choice: What to do with them.
        answer: The shape of the answer; `None`: any text.
        extra: Further fields of the body.
        stream: The reply is to come as events.
    """

    settings: ModelSettings
    profile: WireProfile
    system: Sequence[bytes] = ()
    messages: Sequence[bytes] = ()
    tools: bytes = b""
    choice: Choice = Choice()
    answer: AnswerSchema | None = None
    extra: Mapping[str, object] = {}
    stream: bool = False


class Delta(Struct, frozen=True):
    """A piece of a reply's text as it comes."""

    text: str
    part: Literal["content", "reasoning"] = "content"


class Assembler(Protocol):
    """Puts the events of a streamed reply together; the result is the body that would have come at once."""

    finished: bool
    """The last event has come: nothing that follows is needed."""

    @property
    def whole(self) -> bool:
        """What has come is all of a reply, whether or not its last event has come."""
        ...

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Take the next event in, and return the text in it."""
        ...

    def body(self) -> bytes:
        """Return the reply so far as a body for `decode`; an error event's, where one came."""
        ...


class WireFormat(Protocol):
    """One way of talking to a model. Formats keep nothing: what they need, they are given."""

    path: str
    """What follows the base URL."""

    results_carry_media: bool
    """Images and files go into the tool messages; otherwise into a user's message (`Shown`) behind them."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry the key, and what else the format asks for."""
        ...

    def encode_items(self, items: Sequence[WireItem], marked: Collection[int], profile: WireProfile) -> Said:
        """Encode what was said between two replies; the items at the positions `marked` get cache markers."""
        ...

    def encode_reply(self, reply: Reply, names: WireNames) -> tuple[bytes, ...]:
        """Encode the assistant's message as the history has to show it; nothing if there is none to show."""
        ...

    def encode_tools(self, tools: Iterable[ToolDefinition], profile: WireProfile, names: WireNames) -> bytes:
        """Encode a listing; empty bytes for an empty one, which no request may carry (R4.1, P10)."""
        ...

    def body(self, request: WireRequest) -> bytes:
        """Put a request's body together."""
        ...

    def decode(
        self, body: bytes, names: WireNames, *, request: int, used_ids: Collection[str] = ()
    ) -> Reply | Fault:
        """Read the body of a reply with HTTP status 200 (R4.2, P11).

        Args:
            body: The body; it may be anything.
            names: Brings wire names back.
            request: Number of the request in its turn.
            used_ids: Call ids of the turn so far.
        """
        ...

    def assembler(self) -> Assembler:
        """Return what puts a streamed reply together."""
        ...


def shown(text: str) -> str:
    """Return a text that every endpoint takes."""
    return text if text and not text.isspace() else EMPTY


EPHEMERAL: JsonObject = {"type": "ephemeral"}
"""The marker of a place up to which an endpoint is to keep a prompt in its cache."""


def marked_pieces(item: SystemText | UserText, marked: bool) -> list[tuple[str, JsonObject | None]]:
    """Return a text in pieces, each with the cache marker at its end; mostly one piece, without or with one.

    Args:
        item: The text; where its caller has set markers, it is cut at them.
        marked: Without those, put one at its end.
    """
    text = item.text
    points = item.cache_points or ((CachePoint(len(text), EPHEMERAL),) if marked else ())
    if not text.strip():
        return [(EMPTY, points[-1].control if points else None)]
    pieces: list[tuple[str, JsonObject | None]] = []
    start = 0
    for point in points:
        # A blank piece would be refused.
        if text[start : point.end].strip():
            pieces.append((text[start : point.end], point.control))
            start = point.end
    rest = text[start:]
    return [*pieces, (rest, None)] if rest.strip() else pieces


def shortened(tool: ToolDefinition, max_chars: int | None) -> ToolDefinition:
    """Return a tool whose description is no longer than the endpoint takes."""
    if max_chars is None or len(tool.description) <= max_chars:
        return tool
    return msgspec.structs.replace(tool, description=f"{tool.description[: max_chars - 1]}…")


def opened(fields: JsonObject, extra: Mapping[str, object], key: str) -> bytes:
    """Encode a body up to the opening bracket of the list `key`; `extra` outranks `fields`."""
    head = {name: value for name, value in fields.items() if value is not None and name not in extra}
    return to_json(head)[:-1] + b',"' + key.encode() + b'":['


def closed(tools: bytes, choice: bytes, fields: JsonObject) -> bytes:
    """Encode what follows that list, up to the end of the body; `tools` and `choice` are encoded already."""
    members = [b'"tools":' + tools, b'"tool_choice":' + choice] if tools else []
    if fields:
        members.append(to_json(fields)[1:-1])
    return b"".join((b"]", *(b"," + member for member in members), b"}"))
