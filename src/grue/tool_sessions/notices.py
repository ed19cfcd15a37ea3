"""Notices: what a server does outside requests and replies, such as logging or writing invalid lines."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

NoticeKind = Literal["noise", "bad_tool", "bad_schema", "too_large", "log", "progress"]

Notify: TypeAlias = Callable[[NoticeKind, str], None]


class ServerNotice(Struct, frozen=True):
    """One event of a server outside requests and replies.

    Attributes:
        kind: `noise`: a line that is not a JSON-RPC message. `bad_tool`: a tool, or a page of the listing,
            was left out. `bad_schema`: a tool's results are not checked against its output schema.
            `too_large`: a message was not read, or was kept as text only, or notices were left out. `log`,
            `progress`: the server's notifications.
        text: At most 500 characters, made printable. It comes from the server and is untrusted.
    """

    kind: NoticeKind
    text: str
