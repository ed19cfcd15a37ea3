"""The interface of a wire format, and the code that the formats share.

To add a wire format, derive a class from `WireFormat` and write an assembler for its streams, each in a
module of its own, and add a row to `formats.py`. mypy names what the class lacks.

The body of a request has three parts, each encoded once: a head (model, sampling), the messages, and a tail
(tools, or the schema of the answer). Whatever changes from request to request is in the tail. Each request
therefore begins with the same bytes as the one before it, and the endpoint can use its prompt cache.

The attachments of tool results and of the user's texts were checked before (`protocol/tools/results.py`).
Here the profile decides which of them its endpoint accepts; the others are described in words.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import MediaKind
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.profile import ModelSettings, WireProfile
from grue.protocol.chat_wire.reply import Reply
from grue.protocol.chat_wire.server_events import ServerEvent
from grue.protocol.json_text import to_json
from grue.protocol.tools.names import WireNames

if TYPE_CHECKING:
    from grue.protocol.chat_wire.batch_forms import BatchForm

SHOWN_NEXT = "shown in the next message"
REFUSED = "not shown: the model's endpoint refused it"

_PLURALS = {"image": "images", "audio": "audio", "file": "files"}


class Shown(Struct, frozen=True):
    """A user message with the attachments of tool results, for formats whose tool messages are text only.

    Attributes:
        results: The tool messages of one reply that have an attachment to send.
    """

    results: tuple[m.ToolMessage, ...]


WireItem: TypeAlias = m.ConversationItem | Shown


def sent(message: m.ToolMessage | m.UserText, profile: WireProfile) -> tuple[m.Attachment, ...]:
    """Return the attachments of a message that the endpoint accepts."""
    return tuple(each for each in message.attachments if each.kind in profile.inputs)


def result_text(message: m.ToolMessage | m.UserText, profile: WireProfile, *, shown: str = "") -> str:
    """Return the text of a message, with a line for each attachment that is not in that message.

    Args:
        message: The message.
        profile: The endpoint's profile.
        shown: The text for attachments that are sent in another message; empty if they are in this one.
    """
    lines = [message.text if isinstance(message, m.UserText) else message.content]
    for each in message.attachments:
        if each.kind not in profile.inputs:
            lines.append(_line(each, f"not shown: the model takes no {_PLURALS[each.kind]}"))
        elif shown:
            lines.append(_line(each, shown))
    return "\n".join(lines)


def user_text(message: m.UserText, profile: WireProfile) -> m.UserText:
    """Return a user's text with a line for each attachment that the endpoint does not accept."""
    if len(sent(message, profile)) == len(message.attachments):
        return message
    return replace(message, text=result_text(message, profile))


def label(message: m.ToolMessage) -> str:
    """Return the heading for the attachments of a tool message, if they are in a separate message."""
    return f"[Returned by the tool call {message.call_id}:]"


def with_shown(items: Sequence[m.ConversationItem], profile: WireProfile) -> tuple[WireItem, ...]:
    """Insert a user message with the attachments after each run of tool messages that has any.

    It comes after the last tool message of the run, because providers require the results of all calls before
    any other message.
    """
    arranged: list[WireItem] = []
    waiting: list[m.ToolMessage] = []
    for item in items:
        if isinstance(item, m.ToolMessage):
            waiting += [item] if sent(item, profile) else []
        elif waiting:
            arranged.append(Shown(tuple(waiting)))
            waiting = []
        arranged.append(item)
    return (*arranged, Shown(tuple(waiting))) if waiting else tuple(arranged)


def without_attachments(items: Iterable[m.ConversationItem]) -> tuple[m.ConversationItem, ...]:
    """Return the items with a line of text in place of each attachment."""
    return tuple(_stripped(item) if isinstance(item, m.ToolMessage | m.UserText) else item for item in items)


def has_attachments(items: Iterable[m.ConversationItem], profile: WireProfile) -> bool:
    """Return whether any of the items has an attachment that the endpoint accepts."""
    return any(isinstance(item, m.ToolMessage | m.UserText) and sent(item, profile) for item in items)


def data_url(attachment: m.Attachment) -> str:
    """Return an attachment as a `data:` URL."""
    return f"data:{attachment.mime};base64,{attachment.data}"


def _stripped(message: m.ToolMessage | m.UserText) -> m.ToolMessage | m.UserText:
    lines = [_line(each, REFUSED) for each in message.attachments]
    if isinstance(message, m.UserText):
        return replace(message, text="\n".join([message.text, *lines]), attachments=())
    return replace(message, content="\n".join([message.content, *lines]), attachments=())


def _line(attachment: m.Attachment, said: str) -> str:
    return f"[{attachment.mime}, {attachment.bytes:,} bytes: {said}]"


EMPTY = "(empty)"
"""Sent in place of an empty or blank text, which some endpoints refuse."""


class EncodedItems(Struct, frozen=True):
    """Encoded messages; `system` is for formats that keep the instructions apart from the messages."""

    system: tuple[bytes, ...] = ()
    messages: tuple[bytes, ...] = ()


class Choice(Struct, frozen=True):
    """The tool that the model has to call; `name` is a wire name, and is set only if `mode` is `named`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


class WireRequest(Struct, frozen=True, kw_only=True):
    """The parts of a request's body.

    Attributes:
        settings: The model and its sampling.
        profile: What the endpoint accepts.
        system: The encoded instructions, for formats that keep them apart from the messages.
        messages: The encoded messages of the conversation; a part may hold several, joined by commas.
        tools: The encoded list of tools; if it is empty, the request does not mention tools.
        choice: Whether the model may or has to call a tool.
        answer: The schema of the answer; `None` allows any text.
        extra: Further fields of the body.
        stream: Whether the reply is requested as a stream of events.
    """

    settings: ModelSettings
    profile: WireProfile
    system: Sequence[bytes] = ()
    messages: Sequence[bytes] = ()
    tools: bytes = b""
    choice: Choice = Choice()
    answer: m.AnswerSchema | None = None
    extra: Mapping[str, object] = {}
    stream: bool = False


class Delta(Struct, frozen=True):
    """A piece of the text of a streamed reply."""

    text: str
    part: Literal["content", "reasoning"] = "content"


class Assembler(Protocol):
    """Assembles the events of a streamed reply into the body that an unstreamed reply would have."""

    finished: bool
    """Whether the last event has arrived; the rest of the stream is not needed."""

    @property
    def held(self) -> int:
        """Characters of text and of arguments so far, and the `weight` of all else that is kept."""
        ...

    @property
    def whole(self) -> bool:
        """Whether the reply is complete, even if the last event has not arrived."""
        ...

    def feed(self, event: ServerEvent) -> Iterable[Delta]:
        """Add the next event, and return the text in it."""
        ...

    def body(self) -> bytes:
        """Return the reply so far as a body for `decode`; after an error event, the body of that error."""
        ...


class WireFormat(Protocol):
    """Encodes requests and decodes replies of one API. A format has no state."""

    name: str
    """Its name in settings and traces, one of `WireName`."""

    path: str
    """The path of the request, after the base URL. A base URL that ends in it selects the format."""

    profile: WireProfile
    """What an unknown endpoint of this format is taken to accept."""

    provider: str
    """The provider whose format it is, as OpenTelemetry spells it; the name of an unknown host's provider."""

    inputs: frozenset[MediaKind]
    """The kinds of input besides text that it can express, whatever the endpoint accepts."""

    own_fields: frozenset[str]
    """The fields of a request that the turn sets, and that `extra_body` may not replace."""

    json_objects: bool
    """Whether a request can ask for a JSON object of any shape."""

    echoes_text: bool
    """Whether the echo of a reply repeats its text."""

    results_carry_media: bool
    """Whether tool messages can contain images and files; if not, a user message (`Shown`) has them."""

    marks_results: bool
    """Whether tool messages can have a cache marker."""

    batches: "BatchForm | None"
    """The form of its providers' batches; `None`: they have none."""

    def headers(self, key: str) -> dict[str, str]:
        """Return the header with the key, and the other headers that the format needs."""
        ...

    def encode_items(
        self, items: Sequence[WireItem], marked: Collection[int], profile: WireProfile
    ) -> EncodedItems:
        """Encode the items between two replies; those at the positions `marked` get a cache marker."""
        ...

    def encode_reply(self, reply: Reply, names: WireNames) -> tuple[bytes, ...]:
        """Encode a reply as the assistant's message for the history; empty if it has nothing to show."""
        ...

    def encode_tools(
        self, tools: Iterable[m.ToolDefinition], profile: WireProfile, names: WireNames
    ) -> bytes:
        """Encode a list of tools; an empty list gives empty bytes, because no request may contain it.

        Source: R4.1, P10
        """
        ...

    def body(self, request: WireRequest) -> bytes:
        """Return the body of a request."""
        ...

    def decode(
        self, body: bytes, names: WireNames, *, request: int, used_ids: Collection[str] = ()
    ) -> Reply | Fault:
        """Read the body of a reply with HTTP status 200.

        Args:
            body: The body; it is untrusted and may be any bytes.
            names: Converts wire names to canonical names.
            request: Number of the request in its turn.
            used_ids: Call ids that the turn has used so far.

        Source: R4.2, P11
        """
        ...

    def assembler(self) -> Assembler:
        """Return an assembler for a streamed reply."""
        ...


def non_blank(text: str) -> str:
    """Return a text that every endpoint accepts: `EMPTY` in place of a blank one."""
    return text if text and not text.isspace() else EMPTY


EPHEMERAL: m.JsonObject = {"type": "ephemeral"}
"""The cache marker: the endpoint is asked to cache the prompt up to this place."""


def marked_pieces(item: m.SystemText | m.UserText, marked: bool) -> list[tuple[str, m.JsonObject | None]]:
    """Split a text at its cache markers; return the pieces, each with the marker at its end or `None`.

    Args:
        item: The text, with the markers that its caller has set, if any.
        marked: Whether to put a marker at the end if the caller has set none.
    """
    text = item.text
    points = item.cache_points or ((m.CachePoint(len(text), EPHEMERAL),) if marked else ())
    if _is_blank(text):
        return [(EMPTY, points[-1].control if points else None)]
    pieces: list[tuple[str, m.JsonObject | None]] = []
    start = 0
    for point in points:
        # Endpoints refuse a blank piece.
        if not _is_blank(text[start : point.end]):
            pieces.append((text[start : point.end], point.control))
            start = point.end
    rest = text[start:]
    return pieces if _is_blank(rest) else [*pieces, (rest, None)]


def _is_blank(text: str) -> bool:
    return not text or text.isspace()  # `strip` would copy the text, which may be megabytes


def shortened(tool: m.ToolDefinition, max_chars: int | None) -> m.ToolDefinition:
    """Return the tool with its description cut to `max_chars`."""
    if max_chars is None or len(tool.description) <= max_chars:
        return tool
    return msgspec.structs.replace(tool, description=f"{tool.description[: max_chars - 1]}…")


def encode_body(
    request: WireRequest, messages: str, head: m.JsonObject, choice: object, tail: m.JsonObject
) -> bytes:
    """Return the body of a request.

    Args:
        request: Its messages and tools are encoded already.
        messages: The name of the list that the messages are in.
        head: The fields before them. One that is `None`, or that the user sets in `extra`, is left out.
        choice: Which of the tools the model may or has to call, in the words of the format.
        tail: The fields behind the messages, those of `extra` included.
    """
    fields = {name: value for name, value in head.items() if value is not None and name not in request.extra}
    system = b'"system":[' + b",".join(request.system) + b"]," if request.system else b""
    members = [b'"tools":' + request.tools, b'"tool_choice":' + to_json(choice)] if request.tools else []
    if tail:
        members.append(to_json(tail)[1:-1])
    encoded = [part for message in request.messages for part in (b",", message)][1:]
    begin = (to_json(fields)[:-1], b",", system, b'"' + messages.encode() + b'":[')
    return b"".join((*begin, *encoded, b"]", *(b"," + member for member in members), b"}"))
