"""Which images, recordings and files of a tool's result an endpoint is sent, and what is said of the others.

What is attached to a tool's result was checked before (`protocol/tool_media.py`). Here a profile decides what
its endpoint takes. The formats say how each is written.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue.messages import Attachment, ConversationItem, ToolMessage
from grue.protocol.chat_wire.profile import WireProfile

SHOWN_NEXT = "shown in the next message"
REFUSED = "not shown: the model's endpoint refused it"

_PLURALS = {"image": "images", "audio": "audio", "file": "files"}


class Shown(Struct, frozen=True):
    """What tools returned beside text, as a user's message: for formats whose tool messages are text.

    Attributes:
        results: The tool messages of one reply, as far as the endpoint is sent anything of theirs.
    """

    results: tuple[ToolMessage, ...]


WireItem: TypeAlias = ConversationItem | Shown


def sent(message: ToolMessage, profile: WireProfile) -> tuple[Attachment, ...]:
    """Return what of a tool message's attachments the endpoint is sent."""
    return tuple(each for each in message.attachments if _takes(profile, each))


def result_text(message: ToolMessage, profile: WireProfile, *, shown: str = "") -> str:
    """Return the text of a tool message, with a line for each attachment that does not stand beside it.

    Args:
        message: The message.
        profile: The endpoint's.
        shown: What is said of attachments that are sent elsewhere; empty: they stand beside the text.
    """
    lines = [message.content]
    for each in message.attachments:
        if not _takes(profile, each):
            lines.append(_line(each, f"not shown: the model takes no {_PLURALS[each.kind]}"))
        elif shown:
            lines.append(_line(each, shown))
    return "\n".join(lines)


def label(message: ToolMessage) -> str:
    """Return what stands before the attachments of a tool message that are in a message of their own."""
    return f"[Returned by the tool call {message.call_id}:]"


def with_shown(items: Sequence[ConversationItem], profile: WireProfile) -> tuple[WireItem, ...]:
    """Return the items with a message behind each run of tool messages that shows what they could not carry.

    It stands behind the last of them: providers want every call answered before anything else is said.
    """
    arranged: list[WireItem] = []
    waiting: list[ToolMessage] = []
    for item in items:
        if isinstance(item, ToolMessage):
            waiting += [item] if sent(item, profile) else []
        elif waiting:
            arranged.append(Shown(tuple(waiting)))
            waiting = []
        arranged.append(item)
    return (*arranged, Shown(tuple(waiting))) if waiting else tuple(arranged)


def without_attachments(items: Iterable[ConversationItem]) -> tuple[ConversationItem, ...]:
    """Return the items with nothing attached, and a line in place of each attachment."""
    return tuple(_stripped(item) if isinstance(item, ToolMessage) else item for item in items)


def has_attachments(items: Iterable[ConversationItem], profile: WireProfile) -> bool:
    """Say whether the endpoint is sent an attachment of any of the items."""
    return any(isinstance(item, ToolMessage) and sent(item, profile) for item in items)


def data_url(attachment: Attachment) -> str:
    """Return an attachment as a URL."""
    return f"data:{attachment.mime};base64,{attachment.data}"


def _takes(profile: WireProfile, attachment: Attachment) -> bool:
    match attachment.kind:
        case "image":
            return profile.images
        case "audio":
            return profile.audio and profile.wire == "chat_completions"
        case "file":
            return profile.files


def _stripped(message: ToolMessage) -> ToolMessage:
    lines = [message.content, *(_line(each, REFUSED) for each in message.attachments)]
    return replace(message, content="\n".join(lines), attachments=())


def _line(attachment: Attachment, said: str) -> str:
    return f"[{attachment.mime}, {attachment.bytes:,} bytes: {said}]"
