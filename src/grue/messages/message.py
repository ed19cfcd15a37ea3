"""The base of all messages, and the names and numbers that they carry."""

from typing import NewType, TypeAlias

from msgspec import Struct

ServerName = NewType("ServerName", str)
CallId = NewType("CallId", str)
BatchId = NewType("BatchId", int)
ConversationId = NewType("ConversationId", str)

JsonObject: TypeAlias = dict[str, object]
"""A JSON object; its values are JSON values."""


class Message(Struct, frozen=True, kw_only=True, tag=True):
    """Base of every message that is sent through a mailbox or noted in the trace."""
