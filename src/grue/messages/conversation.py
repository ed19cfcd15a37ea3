"""The items of a conversation, and the entries in which its history is kept."""

from typing import TypeAlias

from msgspec import Struct

from grue.messages.message import CallId, ConversationId, JsonObject
from grue.messages.tools import ToolCall
from grue.vocabulary import MediaKind


class Attachment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image, a recording or a file that a tool returned, validated, for the model.

    Attributes:
        mime: Media type, detected from the first bytes. The server's own claim is ignored.
        data: Base64, padded, without line breaks.
        bytes: Size of the decoded data.
        name: File name, for a `file`.
    """

    kind: MediaKind
    mime: str
    data: str
    bytes: int
    name: str = ""


class ToolMessage(Struct, frozen=True, tag="tool", omit_defaults=True):
    """The answer to one tool call in the conversation; `content` is JSON text.

    Attributes:
        attachments: The media that `content` describes, in the same order. An endpoint that does not
            support one of them gets the description only.

    Source: R11.5, P44
    """

    call_id: CallId
    content: str
    attachments: tuple[Attachment, ...] = ()


class CachePoint(Struct, frozen=True):
    """A place where an endpoint's prompt cache is to end: a `cache_control` that a caller has set.

    Attributes:
        end: Characters of the text before it.
        control: The marker, as it is sent.
    """

    end: int
    control: JsonObject


class SystemText(Struct, frozen=True, tag="system", omit_defaults=True):
    """Instructions that open a conversation."""

    text: str
    cache_points: tuple[CachePoint, ...] = ()


class UserText(Struct, frozen=True, tag="user", omit_defaults=True):
    """The host's text for the model.

    Attributes:
        attachments: The images that belong to it. An endpoint that does not support one of them gets a
            description.
        stub: What takes its place if a `ContextPolicy` clears it; empty: it stays.
    """

    text: str
    cache_points: tuple[CachePoint, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    stub: str = ""


class AssistantText(Struct, frozen=True, tag="assistant"):
    """A text of the assistant in a conversation that a server composed for sampling."""

    text: str


class Echo(Struct, frozen=True, kw_only=True):
    """Parts of a reply that the provider requires back: thoughts, signatures, their order among the texts.

    Attributes:
        wire: The wire format that it is written in.
        model: The model, as the settings name it. Another model cannot read it.
        data: A JSON object; each wire format has its own.
    """

    wire: str
    model: str
    data: JsonObject


class AssistantReply(Struct, frozen=True, kw_only=True, tag="reply", omit_defaults=True):
    """A reply of the model, as a conversation keeps it.

    Attributes:
        echo: What the provider requires back with it; `None`: nothing.
    """

    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    echo: Echo | None = None


ConversationItem: TypeAlias = SystemText | UserText | AssistantText | ToolMessage

HistoryItem: TypeAlias = UserText | AssistantReply | ToolMessage
"""An entry of a conversation's earlier turns; `TurnRequest.history` consists of them."""


class Cleared(Struct, frozen=True, kw_only=True, tag="cleared", omit_defaults=True):
    """A change of a conversation's history: shorter texts take the place of tool results and user texts.

    Attributes:
        results: The new answers of their calls. They have no attachments.
        texts: How many of the oldest user texts that have a stub, and do not consist of it yet, are replaced
            by it.
    """

    results: tuple[ToolMessage, ...] = ()
    texts: int = 0


class Summarised(Struct, frozen=True, tag="summarised"):
    """A change of a conversation's history: `items` take the place of everything after its first entry."""

    items: tuple[UserText, ...]


class AnswerSchema(Struct, frozen=True):
    """The shape of a final answer: a name for the endpoint and a JSON Schema."""

    name: str
    schema: JsonObject


class Said(Struct, frozen=True, tag="said", omit_defaults=True):
    """The texts and tool results of one request, as a conversation keeps them.

    Attributes:
        answer: The schema that the request asked for, if it asked for one.
    """

    items: tuple[ConversationItem, ...]
    answer: AnswerSchema | None = None


class Rewritten(Struct, frozen=True, tag="rewritten"):
    """A change of a conversation's history: `entries` take the place of the entries `start` to `stop`."""

    start: int
    stop: int
    entries: tuple[Said | AssistantReply, ...] = ()


HistoryEntry: TypeAlias = Said | AssistantReply | Rewritten
"""One step of a conversation. A conversation is the sequence of its entries, and nothing else."""


class HistoryReference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reference to a conversation's entries before a turn.

    Attributes:
        length: How many entries the conversation had, rewrites included.
        digest: A SHA-256 of their JSON, in hexadecimal; empty if there were none.
        file: The file that the conversation is appended to; empty: none.
    """

    conversation: ConversationId
    length: int
    digest: str
    file: str = ""
