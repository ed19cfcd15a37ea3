"""Collect the notices (notifications of a server) that a client reports, in order."""

from typing import NamedTuple

from grue.policies import NoticeKind
from grue.tool_sessions.server_requests import Notify


class Notice(NamedTuple):
    kind: NoticeKind
    text: str


def noting(notices: list[Notice]) -> Notify:
    return lambda kind, text: notices.append(Notice(kind, text))
