"""What a client's server said outside replies, in the order in which it came."""

from typing import NamedTuple

from grue.policies import NoticeKind
from grue.tool_sessions.server_requests import Notify


class Notice(NamedTuple):
    kind: NoticeKind
    text: str


def noting(notices: list[Notice]) -> Notify:
    return lambda kind, text: notices.append(Notice(kind, text))
