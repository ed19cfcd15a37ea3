"""One HTTP exchange with an LLM endpoint: send a request, return the whole reply or a fault.

Come here for time limits, size limits, streaming and decompression. This module must not retry and must not
interpret a reply; `actors/llm.py` and `protocol/chat_wire/` do that.

Time limits apply to the whole exchange, to the wait for its first byte and to each pause in a stream. A limit
for single reads would not be enough: a reply that arrives byte by byte could then last for ever. If an
exchange ends early, by a cancellation for example, its connection is closed, which also makes the endpoint
stop generating.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
from msgspec import Struct
from msgspec.structs import replace

from grue.protocol.chat_wire.content_encoding import BodyTooLongError, ContentDecoder, EncodingError
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.chat_wire.reply import cost
from grue.protocol.chat_wire.server_events import DamagedStream, EventLines, OversizedStream, ServerEvent
from grue.protocol.chat_wire.wire_format import Assembler, Delta
from grue.protocol.retry import RetryPolicy, asked_wait
from grue.runtime.loops.beside_loop import now
from grue.transports.llm.connections import Connection, ExchangeError, Reply

MAX_REPLY_BYTES = 64 * 2**20
"""Longest reply that is read, streamed or not."""

MAX_BODY_BYTES = 8 * 2**20
"""Longest body of a reply. For a streamed reply it limits the assembled body, which is a small part of the
events."""

LONG_BYTES = 256 * 2**10
"""A longer reply is decoded in a worker thread, so that the event loop is not blocked."""

_SLICE_BYTES = 8 * 2**10
"""Most bytes of a stream that are decoded without a pause for other tasks. They may be thousands of lines."""

_HEAD_BYTES = 256
"""How much of a body is searched for the beginning of a JSON object."""

_MOST_OF_REFUSAL = 2**20
"""How much of the body of an error is read; what it has to say is at its beginning."""

_REFUSAL_TIMEOUT_S = 10.0
_UPLOADED_BYTES = 256 * 2**10
_CLOSE_TIMEOUT_S = 1.0
_USE_UP_TIMEOUT_S = 0.1


_COST_HEADER = "x-litellm-response-cost"


class Answered(Struct, frozen=True):
    """A reply of the endpoint, whatever its status.

    Attributes:
        status: HTTP status.
        body: The decompressed body. For a streamed reply, the body that an unstreamed one would have had.
        retry_after_s: The delay that the endpoint asks for before the next request.
        cost_usd: What the completion has cost, if a header says it, as those of LiteLLM's proxy do.
        first_chunk_s: For a streamed reply, the time from the request to its first event.
        location: Target of a redirect. Redirects are not followed, since that would send the key elsewhere.
    """

    status: int
    body: bytes
    retry_after_s: float | None = None
    cost_usd: float | None = None
    first_chunk_s: float | None = None
    location: str | None = None


class Upload(Struct, frozen=True):
    """A body that is sent from a file, piece by piece.

    Attributes:
        head: What comes before the file.
        source: The file.
        tail: What comes after it.
        content_type: Of the whole.
        commas: The lines of the file are the items of a JSON list.
    """

    head: bytes
    source: Path
    tail: bytes
    content_type: str = "application/json"
    commas: bool = False

    @property
    def size(self) -> int:
        """How many bytes are sent."""
        size = self.source.stat().st_size - (1 if self.commas else 0)
        return len(self.head) + size + len(self.tail)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        yield self.head
        with self.source.open("rb") as file:
            piece = file.read(_UPLOADED_BYTES)
            while piece:
                following = file.read(_UPLOADED_BYTES)
                if self.commas:
                    # JSON has no line break within a line, so each one ends an item; the last has no comma.
                    piece = piece.replace(b"\n", b",") if following else piece[:-1].replace(b"\n", b",")
                yield piece
                await anyio.lowlevel.checkpoint()
                piece = following
        yield self.tail


class Streamed(Struct, frozen=True):
    """The receivers of a streamed reply.

    Attributes:
        assembler: Assembles the events into a body.
        show: Called with each piece of text as it arrives.
    """

    assembler: Assembler
    show: Callable[[Delta], None]


async def exchange(
    connection: Connection,
    request: httpx.Request,
    patience: RetryPolicy,
    streamed: Streamed | None = None,
    on_sent: Callable[[], None] | None = None,
) -> Answered | Fault:
    """Send a request and return the answer or the fault.

    Args:
        connection: What sends it.
        request: The request.
        patience: The time limits.
        streamed: Receives the reply if it is streamed; `None`: no stream is expected.
        on_sent: Called when the request has been written; `None`: nobody waits for that.
    """
    outcome = await _exchanged(connection.send(request, on_sent), patience, streamed)
    if isinstance(outcome, Fault) and streamed is not None:
        return replace(outcome, received=streamed.assembler.held)
    return outcome


async def _exchanged(
    sending: Coroutine[None, None, Reply], patience: RetryPolicy, streamed: Streamed | None
) -> Answered | Fault:
    begun = now()
    try:
        with anyio.move_on_after(patience.timeout_s):
            reply = await _first_byte(sending, patience.first_byte_timeout_s)
            try:
                return await _received(reply, patience, streamed, begun)
            finally:
                with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                    await reply.close()
    except _TooSlow as slow:
        return Fault(kind="timed_out", message=str(slow))
    except (TimeoutError, ExchangeError) as error:
        return fault_of(error, patience.timeout_s)
    return fault_of(TimeoutError(), patience.timeout_s)


class _TooSlow(Exception):  # noqa: N818 - never leaves this module
    """A wait within an exchange took too long. The text says which one."""


async def _first_byte(sending: Coroutine[None, None, Reply], limit_s: float | None) -> Reply:
    if limit_s is None:
        return await sending
    with anyio.move_on_after(limit_s):
        return await sending
    raise _TooSlow(f"no reply began within {limit_s:g} s")


async def _received(
    reply: Reply, patience: RetryPolicy, streamed: Streamed | None, begun: float
) -> Answered | Fault:
    if reply.status >= 300:
        return await _refusal(reply)
    named = reply.headers.get("content-type", "").strip().lower().startswith("text/event-stream")
    incoming = _Incoming(streamed, named=named)
    chunks = _decompressed(reply)
    try:
        await _take_all(incoming, chunks, patience.idle_timeout_s if named and incoming.streamed else None)
        body = await incoming.body()
    except (EncodingError, OversizedStream, DamagedStream) as error:
        return _unreadable(error, reply.status)
    if incoming.finished:
        await _used_up(chunks)
    first_chunk_s = None if incoming.first_event_at is None else incoming.first_event_at - begun
    if body is None:
        return Fault(kind="unavailable", message="the stream ended before the reply did")
    return _answered(reply, body, first_chunk_s)


async def _refusal(reply: Reply) -> Answered:
    """Return a reply that is no completion. Its status counts, and as much of its body as can be had.

    A body that breaks off, comes to no end or cannot be decompressed takes nothing from what the status and
    the headers say, such as when to ask again.
    """
    body = bytearray()
    with contextlib.suppress(ExchangeError), anyio.move_on_after(_REFUSAL_TIMEOUT_S):
        try:
            async for chunk in _decompressed(reply):
                body += chunk
                if len(body) > _MOST_OF_REFUSAL:
                    break
        except EncodingError as error:
            body = body or bytearray(f"its text cannot be decompressed: {error}".encode())
    return _answered(reply, bytes(body), None)


async def _take_all(incoming: "_Incoming", chunks: AsyncIterator[bytes], idle_s: float | None) -> None:
    try:
        while not incoming.finished:
            chunk = await _next(chunks, idle_s)
            if chunk is None:
                return
            await incoming.take(chunk)
    except (ExchangeError, _TooSlow):
        if not incoming.whole:
            raise


def _unreadable(error: EncodingError | OversizedStream | DamagedStream, status: int) -> Fault:
    match error:
        case DamagedStream():
            return Fault(kind="damaged", status=status, message=f"the stream is damaged: {error}")
        case OversizedStream():
            return Fault(kind="invalid_reply", status=status, message=str(error))
        case _:
            return fault_of_body(error, status)


def fault_of_body(error: EncodingError, status: int) -> Fault:
    """Return the fault for a body that cannot be decompressed or is too long."""
    what = "is" if isinstance(error, BodyTooLongError) else "cannot be decompressed:"
    words = f"the reply {what} {error}"
    return Fault(kind="invalid_reply", status=status, message=words)


async def _decompressed(reply: Reply) -> AsyncIterator[bytes]:
    """Yield the decompressed body in small pieces. Raises if it is longer than `MAX_REPLY_BYTES`."""
    decoder = ContentDecoder(reply.headers.get("content-encoding", ""), MAX_REPLY_BYTES)
    async for raw in reply.chunks():
        for number, chunk in enumerate(decoder.feed(raw)):
            if number:
                await anyio.lowlevel.checkpoint()
            yield chunk


def _cost(header: str | None) -> float | None:
    try:
        return None if header is None else cost(float(header))
    except ValueError:
        return None


def _answered(reply: Reply, body: bytes, first_chunk_s: float | None) -> Answered:
    headers = reply.headers
    return Answered(
        status=reply.status,
        body=body,
        retry_after_s=asked_wait(headers, time.time()) if reply.status >= 400 else None,
        cost_usd=_cost(headers.get(_COST_HEADER)),
        first_chunk_s=first_chunk_s,
        location=headers.get("location"),
    )


class _Incoming:
    """A reply while it arrives. It counts as a stream if events arrive, whatever its content type is.

    Args:
        streamed: Receives the events; `None`: no stream is expected.
        named: Whether the content type announces events.

    Attributes:
        first_event_at: When the first event arrived, on the event loop's clock; `None`: none has.
    """

    def __init__(self, streamed: Streamed | None, *, named: bool) -> None:
        self.streamed = streamed
        self._named = named
        self._lines = EventLines()
        self._size = 0
        self._events = 0
        self._plain = bytearray()
        self.first_event_at: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the last event has arrived."""
        return self.streamed is not None and self.streamed.assembler.finished

    @property
    def whole(self) -> bool:
        """Whether the reply is complete. Further events may arrive, but are not needed."""
        return self.streamed is not None and self.streamed.assembler.whole

    async def take(self, chunk: bytes) -> None:
        """Add the next bytes. A long event is decoded in a worker thread."""
        self._size += len(chunk)
        limit = MAX_REPLY_BYTES if self._events else min(MAX_REPLY_BYTES, MAX_BODY_BYTES)
        if self._size > limit:
            raise BodyTooLongError(f"longer than {limit} bytes")
        if not self._events:
            self._plain += chunk
        if self.streamed is None:
            return
        deltas: list[Delta] = []
        try:
            for start in range(0, len(chunk), _SLICE_BYTES):
                if start:
                    await anyio.lowlevel.checkpoint()
                if self.finished:
                    break
                deltas += await self._read(self.streamed.assembler, chunk[start : start + _SLICE_BYTES])
        finally:
            if self._events and self.first_event_at is None:
                self.first_event_at = now()
            # Show the text that arrived before a fault, too. If the request is retried, a restart message
            # tells observers to discard it.
            for delta in _joined(deltas):
                self.streamed.show(delta)

    async def body(self) -> bytes | None:
        """Return the body, or `None` for a stream that ended too early."""
        if self.streamed is not None:
            await self._end(self.streamed)
            if self._is_stream:
                assembler = self.streamed.assembler
                if not self.whole:
                    return None
                if self._size <= LONG_BYTES:
                    return assembler.body()
                body = await anyio.to_thread.run_sync(assembler.body, abandon_on_cancel=True)
                if len(body) > MAX_BODY_BYTES:
                    raise BodyTooLongError(f"longer than {MAX_BODY_BYTES} bytes")
                return body
        return bytes(self._plain)

    @property
    def _is_stream(self) -> bool:
        return bool(self._events) or (self._named and not self._plain[:_HEAD_BYTES].lstrip().startswith(b"{"))

    async def _read(self, assembler: Assembler, data: bytes) -> list[Delta]:
        if self._lines.waiting > LONG_BYTES and b"\n" in data:
            return await anyio.to_thread.run_sync(self._assemble, assembler, data, abandon_on_cancel=True)
        return self._assemble(assembler, data)

    def _assemble(self, assembler: Assembler, data: bytes) -> list[Delta]:
        try:
            return self._feed(assembler, self._lines.feed(data))
        except ValueError as error:
            raise OversizedStream(str(error)) from error

    def _feed(self, assembler: Assembler, events: Iterable[ServerEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        if self.finished:
            return deltas  # nothing that follows the last event belongs to the reply
        for event in events:
            self._events += 1
            try:
                deltas += assembler.feed(event)
            except DamagedStream as error:
                raise DamagedStream(f"event {self._events} {error}") from error
            if assembler.held > MAX_BODY_BYTES:
                # Refused before it is put together, which would take a call into C as long as the text is.
                raise OversizedStream(f"the reply is longer than {MAX_BODY_BYTES} bytes")
            if assembler.finished:
                break
        if self._is_stream and self._lines.damage:
            raise DamagedStream(self._lines.damage)
        return deltas

    async def _end(self, streamed: Streamed) -> None:
        """Add the event that only the end of the stream completes. If it is damaged, it is ignored."""
        sound = not self._lines.damage
        with contextlib.suppress(DamagedStream):
            if self._lines.waiting > LONG_BYTES:
                feed = anyio.to_thread.run_sync
                deltas = await feed(self._last_event, streamed.assembler, abandon_on_cancel=True)
            else:
                deltas = self._last_event(streamed.assembler)
            for delta in _joined(deltas):
                streamed.show(delta)
        if not sound and self._is_stream:
            raise DamagedStream(self._lines.damage)

    def _last_event(self, assembler: Assembler) -> list[Delta]:
        return self._feed(assembler, self._lines.end())


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Join the deltas that arrived together, so that the trace has one message for them, not one a token."""
    joined: list[Delta] = []
    for delta in deltas:
        if joined and joined[-1].part == delta.part:
            joined[-1] = Delta(joined[-1].text + delta.text, delta.part)
        else:
            joined.append(delta)
    return joined


async def _next(chunks: AsyncIterator[bytes], limit_s: float | None) -> bytes | None:
    if limit_s is None:
        return await anext(chunks, None)
    with anyio.move_on_after(limit_s):
        return await anext(chunks, None)
    raise _TooSlow(f"the stream paused for more than {limit_s:g} s")


async def _used_up(chunks: AsyncIterator[bytes]) -> None:
    """Read the rest of the body if it is there already. Otherwise the connection could not be reused."""
    with contextlib.suppress(ExchangeError, EncodingError), anyio.move_on_after(_USE_UP_TIMEOUT_S):
        async for _ in chunks:
            pass


def fault_of(error: TimeoutError | ExchangeError, timeout_s: float) -> Fault:
    """Return the fault for an exchange that ended with `error`; `timeout_s` was its time limit."""
    match error:
        case ExchangeError(kind="unreachable"):
            return Fault(kind="unreachable", message=f"cannot connect: {error}")
        case ExchangeError(kind="undecodable"):
            return Fault(kind="invalid_reply", message=f"the reply cannot be decompressed: {error}")
        case ExchangeError(kind="broken"):
            return Fault(kind="unavailable", message=f"the connection broke: {error}")
        case _:
            return Fault(kind="timed_out", message=f"no complete reply within {timeout_s:g} s", used_up=True)
