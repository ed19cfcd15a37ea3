"""Select which images, audio and files are sent to an endpoint, and describe the others.

The attachments of tool results and of the user's texts were checked before (`protocol/tool_media.py`). Here
the profile decides which of them its endpoint accepts. The wire formats encode them.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue.messages import Attachment, ConversationItem, ToolMessage, UserText
from grue.protocol.chat_wire.profile import WireProfile

SHOWN_NEXT = "shown in the next message"
REFUSED = "not shown: the model's endpoint refused it"

_PLURALS = {"image": "images", "audio": "audio", "file": "files"}


class Shown(Struct, frozen=True):
    """A user message with the attachments of tool results, for formats whose tool messages are text only.

    Attributes:
        results: The tool messages of one reply that have an attachment to send.
    """

    results: tuple[ToolMessage, ...]


WireItem: TypeAlias = ConversationItem | Shown


def sent(message: ToolMessage | UserText, profile: WireProfile) -> tuple[Attachment, ...]:
    """Return the attachments of a message that the endpoint accepts."""
    return tuple(each for each in message.attachments if _takes(profile, each))


def result_text(message: ToolMessage | UserText, profile: WireProfile, *, shown: str = "") -> str:
    """Return the text of a message, with a line for each attachment that is not in that message.

    Args:
        message: The message.
        profile: The endpoint's profile.
        shown: The text for attachments that are sent in another message; empty if they are in this one.
    """
    lines = [message.text if isinstance(message, UserText) else message.content]
    for each in message.attachments:
        if not _takes(profile, each):
            lines.append(_line(each, f"not shown: the model takes no {_PLURALS[each.kind]}"))
        elif shown:
            lines.append(_line(each, shown))
    return "\n".join(lines)


def user_text(message: UserText, profile: WireProfile) -> UserText:
    """Return a user's text with a line for each attachment that the endpoint does not accept."""
    if len(sent(message, profile)) == len(message.attachments):
        return message
    return replace(message, text=result_text(message, profile))


def label(message: ToolMessage) -> str:
    """Return the heading for the attachments of a tool message, if they are in a separate message."""
    return f"[Returned by the tool call {message.call_id}:]"


def with_shown(items: Sequence[ConversationItem], profile: WireProfile) -> tuple[WireItem, ...]:
    """Insert a user message with the attachments after each run of tool messages that has any.

    It comes after the last tool message of the run, because providers require the results of all calls before
    any other message.
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
    """Return the items with a line of text in place of each attachment."""
    return tuple(_stripped(item) if isinstance(item, ToolMessage | UserText) else item for item in items)


def has_attachments(items: Iterable[ConversationItem], profile: WireProfile) -> bool:
    """Return whether any of the items has an attachment that the endpoint accepts."""
    return any(isinstance(item, ToolMessage | UserText) and sent(item, profile) for item in items)


def data_url(attachment: Attachment) -> str:
    """Return an attachment as a `data:` URL."""
    return f"data:{attachment.mime};base64,{attachment.data}"


def _takes(profile: WireProfile, attachment: Attachment) -> bool:
    match attachment.kind:
        case "image":
            return profile.images
        case "audio":
            return profile.audio and profile.wire == "chat_completions"
        case _:
            return profile.files


def _stripped(message: ToolMessage | UserText) -> ToolMessage | UserText:
    lines = [_line(each, REFUSED) for each in message.attachments]
    if isinstance(message, UserText):
        return replace(message, text="\n".join([message.text, *lines]), attachments=())
    return replace(message, content="\n".join([message.content, *lines]), attachments=())


def _line(attachment: Attachment, said: str) -> str:
    return f"[{attachment.mime}, {attachment.bytes:,} bytes: {said}]"
