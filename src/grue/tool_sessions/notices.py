"""Notices: events of a server outside requests and replies, such as log messages and invalid lines."""

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from grue.policies import NoticeKind

Notify: TypeAlias = Callable[[NoticeKind, str], None]


class ServerNotice(Struct, frozen=True):
    """One notice. `text` comes from the server and is untrusted: printable, at most 500 characters."""

    kind: NoticeKind
    text: str
