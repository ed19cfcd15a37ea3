"""What is noted of a server's progress."""

from typing import cast

import anyio
import pytest

from grue.messages import ServerName
from grue.tool_sessions.server_requests import Abilities
from grue.transports.mcp import sdk
from grue.transports.mcp.message_stream import MessageStream


@pytest.mark.parametrize(
    ("progress", "total", "text"),
    [(1234567, 9999999, "1234567/9999999 bytes"), (0.1 + 0.2, 1.0, "0.3/1 bytes"), (2.0, None, "2 bytes")],
)
def test_numbers_are_shown_with_all_their_digits(progress: float, total: float | None, text: str) -> None:
    noted: list[str] = []

    async def report() -> None:
        stream = cast("MessageStream", object())
        link = sdk.Link(stream, lambda _kind, said: noted.append(said), Abilities(), server=ServerName("s"))
        await link._progress(progress, total, "bytes")

    anyio.run(report)
    assert noted == [text]
