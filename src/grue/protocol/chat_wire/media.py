"""Select which images, audio and files are sent to an endpoint, and describe the others.

The attachments of tool results and of the user's texts were checked before (`protocol/tools/media.py`). Here
the profile decides which of them its endpoint accepts. The wire formats encode them.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.chat_wire.profile import WireProfile

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
