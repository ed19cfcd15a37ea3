"""One exchange with an endpoint over HTTP: a request out, a whole reply or a fault back.

Every limit is for the exchange as a whole or for a wait in it, never for a single read: a reply that drips
could otherwise last for ever. Whatever ends an exchange early, cancellation included, closes its connection,
and with it ends the generation at the endpoint.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable

import anyio
import httpx
from msgspec import Struct

from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.server_events import EventLines, ServerEvent
from grue.protocol.chat_wire.wire_format import Assembler, Delta
from grue.protocol.retry import RetryPolicy, retry_after

MAX_REPLY_BYTES = 64 * 2**20
"""Longest reply that is read; an endpoint that sends more is not answering the question."""

_CLOSE_TIMEOUT_S = 1.0
_USE_UP_TIMEOUT_S = 0.1


class Answered(Struct, frozen=True):
    """What an endpoint sent back.

    Attributes:
        status: HTTP status.
        body: Decompressed; of a streamed reply, what would have come at once.
        retry_after_s: What it asks for before the next request.
        location: Where a redirect points; redirects are not followed, since the key would go along.
    """

    status: int
    body: bytes
    retry_after_s: float | None = None
    location: str | None = None


class Streamed(Struct, frozen=True):
    """Takes a reply that comes as events.

    Attributes:
        assembler: Puts it together.
        show: Takes the text of it, as it comes.
    """

    assembler: Assembler
    show: Callable[[Delta], None]


async def exchange(
    client: httpx.AsyncClient, request: httpx.Request, patience: RetryPolicy, streamed: Streamed | None = None
) -> Answered | Fault:
    """Send a request and return what came of it.

    Args:
        client: Open.
        request: The request.
        patience: Its time limits.
        streamed: Takes the reply where it comes as events; `None`: none are expected.
    """
    try:
        with anyio.fail_after(patience.timeout_s):
            response = await _first_byte(client, request, patience)
            try:
                return await _received(response, patience, streamed)
            finally:
                with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                    await response.aclose()
    except _TooSlow as slow:
        return Fault(kind="timed_out", message=str(slow))
    except (TimeoutError, httpx.HTTPError) as error:
        return fault_of_exchange(error, patience.timeout_s)


class _TooSlow(Exception):  # noqa: N818 - never leaves this module
    """A wait within an exchange took too long; the text says which."""


async def _first_byte(
    client: httpx.AsyncClient, request: httpx.Request, patience: RetryPolicy
) -> httpx.Response:
    limit_s = patience.first_byte_timeout_s
    with anyio.move_on_after(limit_s):
        return await client.send(request, stream=True)
    raise _TooSlow(f"no reply began within {limit_s:g} s")


class _TooLong(Exception):  # noqa: N818 - never leaves this module
    """What is sent is longer than any reply; the text says how long that is."""


async def _received(
    response: httpx.Response, patience: RetryPolicy, streamed: Streamed | None
) -> Answered | Fault:
    named = response.headers.get("content-type", "").strip().lower().startswith("text/event-stream")
    incoming = _Incoming(streamed if response.status_code < 300 else None)
    chunks = response.aiter_bytes()
    try:
        while not incoming.finished:
            chunk = await _next(chunks, patience.idle_timeout_s if named and incoming.streamed else None)
            if chunk is None:
                break
            incoming.take(chunk)
    except (httpx.HTTPError, _TooSlow):
        if not incoming.whole:
            raise
    except _TooLong as error:
        return Fault(kind="invalid_reply", status=response.status_code, message=str(error))
    if incoming.finished:
        await _used_up(chunks)
    return _answered(response, incoming.body(named=named))


def _answered(response: httpx.Response, body: bytes | None) -> Answered | Fault:
    if body is None:
        return Fault(kind="unavailable", message="the stream ended before the reply did")
    headers = response.headers
    return Answered(
        status=response.status_code,
        body=body,
        retry_after_s=retry_after(headers.get("retry-after"), time.time()),
        location=headers.get("location"),
    )


class _Incoming:
    """A reply as it comes: as events if any come, whatever its content type says."""

    def __init__(self, streamed: Streamed | None) -> None:
        self.streamed = streamed
        self._lines = EventLines()
        self._size = 0
        self._any_event = False
        self._plain = bytearray()

    @property
    def finished(self) -> bool:
        """The last event has come."""
        return self.streamed is not None and self.streamed.assembler.finished

    @property
    def whole(self) -> bool:
        """Nothing that may still come is needed."""
        return self.streamed is not None and self.streamed.assembler.whole

    def take(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > MAX_REPLY_BYTES:
            raise _TooLong(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        if not self._any_event:
            self._plain += chunk
        if self.streamed is None:
            return
        try:
            events = list(self._lines.feed(chunk))
        except ValueError as error:
            raise _TooLong(str(error)) from error
        self._assemble(self.streamed, events)

    def body(self, *, named: bool) -> bytes | None:
        """Return what came, or `None` for a stream without an end; `named`: its content type says stream."""
        if self.streamed is not None:
            self._assemble(self.streamed, self._lines.end())
            if self._any_event or (named and not self._plain.lstrip().startswith(b"{")):
                return self.streamed.assembler.body() if self.whole else None
        return bytes(self._plain)

    def _assemble(self, streamed: Streamed, events: Iterable[ServerEvent]) -> None:
        deltas: list[Delta] = []
        for event in events:
            self._any_event = True
            deltas += streamed.assembler.feed(event)
        for delta in _joined(deltas):
            streamed.show(delta)


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Join what came together, so that a message in the trace is a piece of text and not a token."""
    joined: list[Delta] = []
    for delta in deltas:
        if joined and joined[-1].part == delta.part:
            joined[-1] = Delta(joined[-1].text + delta.text, delta.part)
        else:
            joined.append(delta)
    return joined


async def _next(chunks: AsyncIterator[bytes], limit_s: float | None) -> bytes | None:
    with anyio.move_on_after(limit_s):
        return await anext(chunks, None)
    raise _TooSlow(f"the stream paused for more than {limit_s:g} s")


async def _used_up(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the last event, if it is there: only then can the connection be used again."""
    with contextlib.suppress(httpx.HTTPError), anyio.move_on_after(_USE_UP_TIMEOUT_S):
        async for _ in chunks:
            pass


def fault_of_exchange(error: TimeoutError | httpx.HTTPError, timeout_s: float) -> Fault:
    """Return what an exchange that ended in `error` means; `timeout_s` is what it was given."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError():
            return Fault(kind="unreachable", message=f"cannot connect: {_cause(error)}")
        case TimeoutError() | httpx.TimeoutException():
            return Fault(kind="timed_out", message=f"no complete reply within {timeout_s:g} s")
        case httpx.DecodingError():
            return Fault(kind="invalid_reply", message=f"the reply cannot be decompressed: {error}")
        case _:
            return Fault(kind="unavailable", message=f"the connection broke: {_cause(error)}")


def _cause(error: BaseException) -> str:
    """Return the innermost words: those of the operating system or the TLS library, where there are any."""
    words = str(error)
    cause = error.__cause__
    while cause is not None:
        words = str(cause) or words
        cause = cause.__cause__
    return words or type(error).__name__
