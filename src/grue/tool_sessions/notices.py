"""What a server does beside the protocol, told to whoever wants to know."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

NoticeKind = Literal["noise", "bad_tool", "bad_schema", "too_large", "log", "progress"]

Notify: TypeAlias = Callable[[NoticeKind, str], None]


class ServerNotice(Struct, frozen=True):
    """Something a server did beside the protocol.

    Attributes:
        kind: `noise`: a line that is no message; `bad_tool`: a tool or page of the listing that was left out;
            `bad_schema`: a tool's results are not held to its output schema; `too_large`: a message was not
            read, or kept as text, or notices were left out; `log`, `progress`: the server's notifications.
        text: Untrusted, made printable, at most 500 characters.
    """

    kind: NoticeKind
    text: str
