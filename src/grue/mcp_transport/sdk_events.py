"""A stream of server-sent events on its way to the SDK, which reads what is left of it.

The SDK parses an event in one go in the event loop, and passes over comments without a pause. So comments are
left out here, at a pace that lets other tasks run, and a large event is read here: the SDK gets a small one
with the same id in its place, for which the message is put back (`put_back`) once it comes out.
"""

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import mcp_types as types
import msgspec

from grue.mcp_transport.incoming import read_any_message, refusal_of_cut
from grue.mcp_transport.lines import CutLineError, EventBuffer, LineTooLongError
from grue.runtime.pace import Pace
from grue.tool_sessions.notices import Notify

_SMALL_BYTES = 16_384
_FIELD = re.compile(rb"(?:^|[\r\n])(?:data|event|id|retry)\b")
Answer = types.JSONRPCResponse | types.JSONRPCError


class LargeAnswers:
    """Answers that were too large for the SDK to read, by the ids under which they will be asked for."""

    def __init__(self) -> None:
        self._kept: dict[int | str, Answer] = {}

    def keep(self, answer: Answer) -> None:
        """Keep an answer until something small comes with its id."""
        if answer.id is not None:
            self._kept[answer.id] = answer

    def put_back(self, message: types.JSONRPCMessage) -> types.JSONRPCMessage:
        """Return the answer that this message stands for, or the message itself."""
        if self._kept and isinstance(message, types.JSONRPCResponse):
            return self._kept.pop(message.id, message)
        return message


class CalmEvents(httpx2.AsyncByteStream):
    """The body of a response: events, without comments and without large ones.

    Args:
        source: The body as it comes.
        request_id: Of the request that it answers; `None` for a stream of whatever the server has to say.
        answers: Takes the large answers.
        notify: Hears of what is left out.
        limits: Longest event that is read, and longest one that does not end the stream, in bytes.
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
            async for event in self._here():
                yield event
        rest = self._events.rest()
        if rest:
            yield rest

    async def aclose(self) -> None:
        """Close the connection."""
        await self._source.aclose()

    async def _here(self) -> AsyncIterator[bytes]:
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
        lines = event.splitlines()
        data = (line.removeprefix(b"data:").removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        message = await read_any_message(b"\n".join(data))
        if isinstance(message, types.JSONRPCRequest | types.JSONRPCNotification):
            return event + b"\n\n"
        others = b"".join(line + b"\n" for line in lines if line.startswith((b"event:", b"id:", b"retry:")))
        return self._stand_in(message, others)

    def _stand_in(self, answer: Answer | None, others: bytes) -> bytes:
        """Keep the answer, and return a small event in its place; a comment if there is none."""
        if answer is None:
            self._notify("noise", "a large event that is no message")
            return b": left out\n\n"
        if self._request_id is not None:
            answer.id = self._request_id
        self._answers.keep(answer)
        return (
            others + b'data: {"jsonrpc":"2.0","id":' + msgspec.json.encode(answer.id) + b',"result":{}}\n\n'
        )
