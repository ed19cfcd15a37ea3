"""Filter a stream of server-sent events before the SDK reads it, so that it cannot block the event loop.

The SDK parses an event in one step in the event loop, and skips comments without a pause. So this module
drops the comments, with pauses for other tasks, and parses large events itself. In place of a large event the
SDK gets a small one with the same id. When that message comes out of the SDK, `put_back` replaces it with the
large one.
"""

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import mcp_types as types
import msgspec

from grue.runtime.lines import CutLineError, EventBuffer, LineTooLongError
from grue.runtime.loops.aside import aside
from grue.runtime.loops.pace import Pace
from grue.tool_sessions.notices import Notify
from grue.transports.mcp.incoming import read_any_message, refusal_of_cut

_SMALL_BYTES = 16_384
_FIELD = re.compile(rb"(?:^|[\r\n])(?:data|event|id|retry)\b")
Answer = types.JSONRPCResponse | types.JSONRPCError


class LargeAnswers:
    """Answers too large for the SDK, by the id of the small message that stands in for each."""

    def __init__(self) -> None:
        self._kept: dict[int | str, Answer] = {}

    def keep(self, answer: Answer) -> None:
        """Keep an answer until its stand-in comes out of the SDK."""
        if answer.id is not None:
            self._kept[answer.id] = answer

    def put_back(self, message: types.JSONRPCMessage) -> types.JSONRPCMessage:
        """Return the answer that this message stands in for, or else the message itself."""
        if self._kept and isinstance(message, types.JSONRPCResponse):
            return self._kept.pop(message.id, message)
        return message


class FilteredEvents(httpx2.AsyncByteStream):
    """The body of a response: its events without comments, and with stand-ins for large events.

    Args:
        source: The original body.
        request_id: Id of the request that it answers; `None` for the stream of the server's own messages.
        answers: Keeps the large answers.
        notify: Receives a notice for each event that is left out.
        limits: Longest event that is read, and longest one that does not break the stream, in bytes.
    """

    def __init__(
        self,
        source: Any,
        request_id: int | str | None,
        answers: LargeAnswers,
        notify: Notify,
        limits: tuple[int, int],
    ) -> None:
        self._source = source
        self._request_id = request_id
        self._answers = answers
        self._notify = notify
        self._limit, longest = limits
        self._events = EventBuffer(longest, self._limit)
        self._pace = Pace()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._source:
            self._pace.paused()
            self._events.feed(chunk)
            async for event in self._complete_events():
                yield event
        rest = self._events.rest()
        if rest:
            yield rest

    async def aclose(self) -> None:
        """Close the connection."""
        await self._source.aclose()

    async def _complete_events(self) -> AsyncIterator[bytes]:
        while True:
            await self._pace.pause()
            try:
                event = self._events.take()
            except CutLineError as cut:
                yield self._refused(cut)
                continue
            except LineTooLongError as error:
                raise httpx2.SSEError(f"it has {error}") from error
            if event is None:
                return
            if len(event) > _SMALL_BYTES:
                yield await self._read(event)
            elif _FIELD.search(event):
                yield event + b"\n\n"

    def _refused(self, cut: CutLineError) -> bytes:
        self._notify("too_large", f"{cut}, and at most {self._limit} are read")
        head = cut.head.partition(b"data:")[2]
        return self._stand_in(refusal_of_cut(CutLineError(head, cut.tail, cut.size), self._limit), b"")

    async def _read(self, event: bytes) -> bytes:
        data, others = await aside(_data_and_others, event)
        message = await read_any_message(data)
        if isinstance(message, types.JSONRPCRequest | types.JSONRPCNotification):
            return event + b"\n\n"
        return self._stand_in(message, others)

    def _stand_in(self, answer: Answer | None, others: bytes) -> bytes:
        """Keep the answer and return its stand-in event; return a comment if there is no answer."""
        if answer is None:
            self._notify("noise", "a large event that is not a message")
            return b": left out\n\n"
        if self._request_id is not None:
            answer.id = self._request_id
        self._answers.keep(answer)
        return (
            others + b'data: {"jsonrpc":"2.0","id":' + msgspec.json.encode(answer.id) + b',"result":{}}\n\n'
        )


def _data_and_others(event: bytes) -> tuple[bytes, bytes]:
    """Return the data of an event, and its other fields as they were written."""
    data, others = [], []
    for line in event.splitlines():
        if line.startswith(b"data:"):
            data.append(line[6 if line.startswith(b"data: ") else 5 :])
        elif line.startswith((b"event:", b"id:", b"retry:")):
            others.append(line + b"\n")
    return b"\n".join(data), b"".join(others)
