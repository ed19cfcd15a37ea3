"""HTTP with an LLM endpoint: its connections, and one exchange, which returns the whole reply or a fault.

This module must not retry, and must not decode the completion in a body: the LLM actor does both. It uses
httpx's transport and not `httpx.AsyncClient`: a client adds cookies, and can follow a redirect, which would
send the key elsewhere. It speaks HTTP/1.1 only, because `HttpReply.close` decides by the rules of HTTP/1.1
whether a connection is kept. An exchange that ends early closes its connection, so that the model
stops generating.

A body is decompressed in small steps and up to a size limit: a few kilobytes can expand to gigabytes, and
HTTP libraries decompress a whole chunk at once.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import itertools
import math
import operator
import ssl
import time
import urllib.request
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
from msgspec import Meta, Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.chat_wire.failures import Fault, fault_of_status
from grue.protocol.chat_wire.server_events import DamagedStream, EventLines, OversizedStream, ServerEvent
from grue.protocol.chat_wire.wire_format import Assembler, Delta, Reply, cost
from grue.protocol.retry import RetryPolicy, asked_wait
from grue.protocol.turn.prices import Price, with_cost

T = TypeVar("T")

STEP_BYTES = 64 * 2**10  # the most that one step of decompression returns
MAX_STAGES = 2  # most compressions of one body: that of the server, and that of a proxy
ACCEPTED = "gzip, deflate"  # what `Accept-Encoding` says
_GZIP = 16 + zlib.MAX_WBITS
_MEMBER = b"\x1f\x8b"  # the first bytes of each part of a gzip body, which may have several parts
# The zlib window settings to try for each coding. Some servers send `deflate` without its zlib header.
_WINDOWS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}
# Codings that some proxies use although `ACCEPTED` does not name them.
_NOT_ASKED_FOR = frozenset({"br", "zstd", "compress", "x-compress"})


class EncodingError(ValueError):
    """The body cannot be decompressed, or exceeds its limit; the text says why."""


class BodyTooLongError(EncodingError):
    """A body, or the output of one stage of decompression, is larger than its limit."""


class ContentDecoder:
    """Decompresses one body, in one stage for each gzip or deflate that the header `codings` names.

    No stage may output more than `max_bytes`. Unknown codings are ignored, because some endpoints put a
    character set among them. Brotli, zstd and compress are ignored if the body is text in UTF-8: some proxies
    decompress a body, but do not remove the header. Raises `EncodingError`.
    """

    def __init__(self, codings: str, max_bytes: int) -> None:
        names = [name.strip().lower() for name in codings[:1000].split(",")]
        known = [name for name in names if name in _WINDOWS]
        if len(known) > MAX_STAGES:
            raise EncodingError(f"it was compressed {len(known)} times; at most {MAX_STAGES} are undone")
        # Codings are listed in the order in which they were applied, so the last one is undone first.
        self._stages = [_Stage(_WINDOWS[name], max_bytes) for name in reversed(known)]
        self._not_asked_for = next((name for name in names if name in _NOT_ASKED_FOR), "")
        self._text = codecs.getincrementaldecoder("utf-8")()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Decompress `chunk` in steps, and yield the output of each step; raises `EncodingError`."""
        for piece in self._through(chunk, 0):
            try:
                self._text.decode(piece if self._not_asked_for else b"")
            except UnicodeDecodeError:
                coding = self._not_asked_for
                raise EncodingError(f"its Content-Encoding is {coding}; asked for: {ACCEPTED}") from None
            yield piece

    def _through(self, data: bytes, stage: int) -> Iterator[bytes]:
        if stage == len(self._stages):
            yield data
            return
        for piece in self._stages[stage].feed(data):
            yield from self._through(piece, stage + 1)


class _Stage:
    def __init__(self, windows: tuple[int, ...], max_bytes: int) -> None:
        self._windows = windows
        self._max_bytes = max_bytes
        self._unzip = zlib.decompressobj(windows[0])
        self._given = 0
        self._head = b""
        self._plain = False
        self._rest: bytes | None = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        # Feed zlib in slices, because at every step it copies all input that it has not consumed.
        for start in range(0, len(data), STEP_BYTES):
            yield from self._slice(data[start : start + STEP_BYTES])

    def _slice(self, data: bytes) -> Iterator[bytes]:
        more = True
        while more:
            if self._unzip.eof and not (data := self._next_member(data)):
                return
            piece = self._step(data)
            data = b"" if self._plain else self._unzip.unused_data or self._unzip.unconsumed_tail
            # After a step with full output, zlib may hold more output although all input is consumed.
            more = bool(data) or len(piece) == STEP_BYTES
            self._given += len(piece)
            if self._given > self._max_bytes:
                raise BodyTooLongError(f"longer than {self._max_bytes} bytes")
            if piece:
                yield piece

    def _next_member(self, data: bytes) -> bytes:
        """Return the input from the start of the next gzip member on; empty: none has begun."""
        if self._rest is None or self._windows != (_GZIP,):
            return b""
        rest, self._rest = self._rest + data, None
        if len(rest) < len(_MEMBER):
            self._rest = rest
        elif rest.startswith(_MEMBER):
            self._rest = b""
            self._unzip = zlib.decompressobj(_GZIP)
            return rest
        return b""

    def _step(self, data: bytes) -> bytes:
        if self._plain:
            return data
        # Keep the body's first two bytes, which may arrive in separate chunks: if zlib refuses them, they are
        # decompressed again with the next of `windows`, because endpoints use `deflate` for two formats.
        before = len(self._head)
        self._head = (self._head + data)[:2]
        try:
            return self._unzip.decompress(data, STEP_BYTES)
        except zlib.error as error:
            last = len(self._windows) == 1
            # Some proxies decompress a body, but do not remove the header `Content-Encoding`. If zlib refuses
            # a body, its first byte shows this: JSON and web pages begin with `{`, `[` or `<`.
            self._plain = last and not self._given and self._head[:1] in (b"{", b"[", b"<")
            if not self._plain and (last or self._given):
                raise EncodingError(str(error)) from error
        data = self._head[:before] + data
        if self._plain:
            return data
        self._unzip, self._windows = zlib.decompressobj(self._windows[1]), self._windows[1:]
        return self._step(data)


_KEPT_S = 5.0  # how long an idle connection is kept for another request; most endpoints keep theirs longer
_CHUNKS_AT_ONCE = 64  # chunks between two pauses for other tasks: 64 KiB may hold ten thousand chunks
_MAY_HIDE_BYTES = 32 * 2**10  # after a longer reply, further bytes may be in the event loop's own buffer
_QUIET_S = 0.001  # how long a connection with TLS, or after a long reply, must be silent to be used again


class ExchangeError(Exception):
    """An HTTP exchange failed. `kind` says how."""

    def __init__(self, kind: Literal["unreachable", "timed_out", "undecodable", "broken"], message: str):
        super().__init__(message)
        self.kind = kind


class Connections:
    """The connections of one event loop. A request leases one, which no other request uses meanwhile.

    A pool of httpx checks all its connections, by system calls, whenever a request begins or ends. With 100
    agents these checks took a third of the CPU time.
    """

    def __init__(self, new: Callable[[], Connection]) -> None:
        self.entered = 0
        self._new = new
        self._free: list[Connection] = []
        self._all: list[Connection] = []

    @contextlib.contextmanager
    def lease(self) -> Iterator[Connection]:
        """Lease a connection that no other request uses."""
        if not self._free:
            self._free.append(self._new())
            self._all.append(self._free[0])
        connection = self._free.pop()
        try:
            yield connection
        finally:
            self._free.append(connection)

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._all:
            await connection.close()


class Connection:
    """Sends one request at a time to one endpoint, through a proxy or the user's transport if given."""

    def __init__(
        self, *, https: bool, proxy: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._connects = transport is None
        self._transport = transport or _network(https=https, proxy=proxy)

    async def send(self, request: httpx.Request, on_sent: Callable[[], None] | None = None) -> HttpReply:
        """Send a request, its headers unchanged, and return its reply, whose body is still to be read.

        A cancellation closes the connection. `on_sent` is called when the request has been written, or with
        the user's transport, before it is sent. Raises `ExchangeError`.
        """
        limit_s = math.inf
        if self._connects:
            limit_s = request.extensions["timeout"]["connect"]
        elif on_sent is not None:
            on_sent()
        connecting = _Connecting(request, limit_s, on_sent)
        with connecting.scope:
            try:
                return HttpReply(await self._transport.handle_async_request(request))
            except (httpx.HTTPError, ssl.SSLError) as error:
                raise exchange_error(error) from error
            except UnicodeError as error:  # an invalid host name; httpx does not translate this error
                raise ExchangeError("unreachable", str(error)) from error
            finally:
                # Close the socket here, because httpcore leaves it open if the TLS handshake is cancelled.
                if connecting.opened is not None:
                    with anyio.CancelScope(shield=True):
                        await connecting.opened.aclose()
        raise ExchangeError("unreachable", f"no connection within {limit_s:g} s")

    async def close(self) -> None:
        """Close the connection, or the user's transport if there is one."""
        await self._transport.aclose()


class _Connecting:
    """Limits the time of a whole connect: name lookup, TCP, proxy and TLS. httpx limits each step alone."""

    def __init__(self, request: httpx.Request, limit_s: float, on_sent: Callable[[], None] | None) -> None:
        self.scope = anyio.CancelScope(deadline=anyio.current_time() + limit_s)  # send the request inside it
        self.opened: Any = None  # the TCP stream, while the connect goes on
        self._extensions, self._on_sent = request.extensions, on_sent
        self._extensions["trace"] = self._trace

    async def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.opened = info["return_value"]
        elif getattr(info.get("request"), "method", b"") == b"CONNECT":
            pass  # the request for a tunnel through a proxy is a part of the connect
        elif event == "http11.send_request_headers.started":
            self.scope.deadline, self.opened = math.inf, None
            if self._on_sent is None:
                self._extensions.pop("trace", None)  # later events are only for `_on_sent`
        elif event == "http11.receive_response_headers.started" and self._on_sent is not None:
            self._on_sent()


def _network(*, https: bool, proxy: str | None) -> httpx.AsyncBaseTransport:
    try:
        return httpx.AsyncHTTPTransport(
            verify=_tls(https),
            proxy=proxy,
            # No limit on the number of connections: with a limit, the next request might have to wait for a
            # connection that a cancellation has left half closed.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=_KEPT_S),
        )
    except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:
        # Raised for a kind of proxy that httpx cannot use, and for certificates that cannot be read.
        # The text of an `InvalidURL` may quote a part of the proxy's password.
        why = "the URL of a proxy is invalid" if isinstance(error, httpx.InvalidURL) else str(error)
        text = f"what the environment sets for proxies or certificates cannot be used: {why}"

        def fail(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError(text, request=request)

        return httpx.MockTransport(fail)


class HttpReply:
    """A reply whose body is still to be read. The caller must close it. Header names are in lower case."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._received = 0
        self.status = response.status_code
        self.headers = dict(response.headers.items())
        self._read_already = response.is_stream_consumed
        if self._read_already:
            # httpx has decompressed the body of a scripted transport's response already.
            self.headers.pop("content-encoding", None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body, compressed as `content-encoding` in `headers` says; raises `ExchangeError`."""
        response = self._response
        body = response.aiter_bytes(STEP_BYTES) if self._read_already else response.aiter_raw()
        number = 0
        try:
            async for chunk in body:
                self._received += len(chunk)
                yield chunk
                number += 1
                if number % _CHUNKS_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
        except (httpx.HTTPError, ssl.SSLError) as error:
            raise exchange_error(error) from error

    async def close(self) -> None:
        """End the reply. Close the connection if some of the body is unread, or other bytes may follow it."""
        await self._response.aclose()
        stream = self._response.extensions.get("network_stream")
        if stream is not None and not await self._silent(stream):
            await stream.aclose()

    async def _silent(self, stream: Any) -> bool:
        """Return whether it is certain that no byte after the reply has been read from the socket.

        Further bytes would be in a buffer of h11, of TLS, or of the event loop. httpx itself does not use a
        connection again that has bytes in the socket.
        """
        try:
            if _H11(self._response).trailing_data[0]:
                return False
        except AttributeError:
            # `_H11` reads private attributes of httpx and httpcore. With versions that lack them, connections
            # are closed and not reused, and `test_exchange_connections.py` fails.
            return False
        if self._received < _MAY_HIDE_BYTES and stream.get_extra_info("ssl_object") is None:
            return True
        with anyio.move_on_after(_QUIET_S):
            with contextlib.suppress(Exception):  # httpcore raises if the connection has ended
                await stream.read(1)
            return False
        return True


# Gets a response's state in h11, the HTTP/1.1 parser. httpx and httpcore have no public way to read it.
_H11 = operator.attrgetter("stream._httpcore_stream._stream._connection._h11_state")


def exchange_error(error: httpx.HTTPError | ssl.SSLError) -> ExchangeError:
    """Translate an exception of httpx, or one of TLS that httpx does not translate, into `ExchangeError`."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError():
            return ExchangeError("unreachable", _innermost_text(error))
        case httpx.TimeoutException():
            return ExchangeError("timed_out", str(error))
        case httpx.DecodingError():
            return ExchangeError("undecodable", str(error))
        case _:
            return ExchangeError("broken", _innermost_text(error))


def timeouts_of(patience: RetryPolicy) -> dict[str, float]:
    """Return the time limits in seconds, by httpx's names."""
    timeout_s = patience.timeout_s
    connect_s = min(patience.connect_timeout_s, timeout_s)
    return {"connect": connect_s, "read": timeout_s, "write": timeout_s, "pool": timeout_s}


def proxy_for(url: httpx.URL) -> str | None:
    """Return the URL of the proxy that the environment names for requests to `url`, or `None`."""
    proxies = urllib.request.getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or urllib.request.proxy_bypass(url.netloc.decode("ascii")):
        return None
    return named if "://" in named else f"http://{named}"


def _innermost_text(error: BaseException) -> str:
    """Return the text of the innermost cause that has one. Often it is the system's or the TLS library's."""
    words, cause = str(error), error.__cause__
    while cause is not None:
        words, cause = str(cause) or words, cause.__cause__
    return words or type(error).__name__


@functools.cache
def _tls(https: bool) -> ssl.SSLContext:
    # Loading the certificates takes 20 ms. httpx wants a context even for `http://`, but does not use it.
    return httpx.create_ssl_context() if https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


MAX_REPLY_BYTES = 64 * 2**20  # the most for all events of a streamed reply together
MAX_BODY_BYTES = 8 * 2**20  # the most of a body without events, or of one that is assembled from events
LONG_BYTES = 256 * 2**10  # a longer reply is decoded in a worker thread
_SLICE_BYTES = 8 * 2**10  # how much is decoded without a pause for other tasks
_HEAD_BYTES = 256  # how much of a body is searched for the beginning of a JSON object
_MOST_OF_REFUSAL = 2**20  # no more of an error's body is read: its message is at the beginning
_REFUSAL_TIMEOUT_S = 10.0
_UPLOADED_BYTES = 256 * 2**10
CLOSE_TIMEOUT_S = 1.0
_USE_UP_TIMEOUT_S = 0.1
_MOST_AFTER_WHOLE_S = 5.0  # how long to wait for more, such as token counts, once a reply is complete
_COST_HEADER = "x-litellm-response-cost"


class Answered(Struct, frozen=True):
    """A reply of the endpoint, whatever its status.

    `body` is decompressed. Of a streamed reply, it is the body that the unstreamed reply would have. Of an
    error, it may be only the beginning.
    """

    status: int
    body: bytes
    retry_after_s: float | None = None
    cost_usd: float | None = None  # of the completion, as a header of the reply says
    first_chunk_s: float | None = None  # seconds until the first event of a streamed reply
    received: int = 0  # about how many characters of a streamed reply have arrived
    location: str | None = None  # of a redirect, which is not followed: the key would be sent there

    @property
    def fault(self) -> Fault:
        """The fault that the reply stands for. Use it only if the status is not 2xx."""
        return fault_of_status(self.status, self.body, self.location, self.retry_after_s, time.time())


class Upload(Struct, frozen=True):
    """A request's body: `head`, a file, and `tail`. `commas`: the file's lines become items of a list."""

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
                    # Replace each line break by a comma, but leave out the last one.
                    piece = piece.replace(b"\n", b",") if following else piece[:-1].replace(b"\n", b",")
                yield piece
                await anyio.lowlevel.checkpoint()
                piece = following
        yield self.tail


class Streamed(Struct, frozen=True):
    """Takes a streamed reply: `assembler` gets its events, and `show` gets each piece of its text."""

    assembler: Assembler
    show: Callable[[Delta], None]
    asked: bool = False  # the request asks for a stream; some endpoints stream unasked


async def exchange(
    connections: Connections,
    request: httpx.Request,
    patience: RetryPolicy,
    streamed: Streamed | None = None,
    on_sent: Callable[[], None] | None = None,
) -> Answered | Fault:
    """Send `request`; return the answer or the fault. Call `on_sent` when it is written, and at the end."""
    request.extensions["timeout"] = timeouts_of(patience)
    try:
        with connections.lease() as connection:
            outcome = await _exchanged(connection.send(request, on_sent), patience, streamed)
    finally:
        if on_sent is not None:
            on_sent()
    if isinstance(outcome, Fault) and streamed is not None:
        return replace(outcome, received=streamed.assembler.held)
    return outcome


async def _exchanged(
    sending: Coroutine[None, None, HttpReply], patience: RetryPolicy, streamed: Streamed | None
) -> Answered | Fault:
    begun = anyio.current_time()
    try:
        with anyio.move_on_after(patience.timeout_s):
            limit_s = patience.first_byte_timeout_s
            reply = await _within(limit_s, sending, "no reply began within", "first_byte_timeout_s")
            try:
                return await _received(reply, patience, streamed, begun)
            finally:
                with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                    await reply.close()
    except _TooSlow as slow:
        words, setting = slow.args
        remedy = f"Raise RetryPolicy({setting}=...), which is set in code, or choose a faster model."
        return Fault(kind="timed_out", message=words, remedy=remedy)
    except (TimeoutError, ExchangeError) as error:
        return fault_of(error, patience.timeout_s)
    return fault_of(TimeoutError(), patience.timeout_s)


class _TooSlow(Exception):  # noqa: N818 - never leaves this module
    """A part of an exchange took too long. `args`: a text that names the part, and the name of its limit."""


async def _within(limit_s: float | None, waiting: Awaitable[T], otherwise: str, setting: str) -> T:
    with anyio.move_on_after(limit_s):
        return await waiting
    raise _TooSlow(f"{otherwise} {limit_s:g} s", setting)


async def _received(
    reply: HttpReply, patience: RetryPolicy, streamed: Streamed | None, begun: float
) -> Answered | Fault:
    if reply.status >= 300:
        return await refusal(reply)
    named = reply.headers.get("content-type", "").strip().lower().startswith("text/event-stream")
    incoming = _Incoming(streamed, named=named)
    chunks = decompressed(reply)
    idle_s = patience.idle_timeout_s if named and incoming.streamed else None
    try:
        await _take_all(incoming, chunks, idle_s, begun + patience.timeout_s)
        body = await incoming.body()
    except (EncodingError, OversizedStream, DamagedStream) as error:
        return _unreadable(error, reply.status)
    if incoming.finished:
        # Read the rest of the body, so that the connection can be used again.
        with contextlib.suppress(ExchangeError, EncodingError), anyio.move_on_after(_USE_UP_TIMEOUT_S):
            async for _ in chunks:
                pass
    first_chunk_s = None if incoming.first_event_at is None else incoming.first_event_at - begun
    if body is None:
        return Fault(kind="unavailable", message="the stream ended before the reply did")
    # Count no text if the stream brought nothing but an error: providers do not bill for that.
    held = streamed.assembler.held if streamed is not None and streamed.assembler.begun else 0
    return _answered(reply, body, first_chunk_s, held)


async def refusal(reply: HttpReply) -> Answered:
    """Return a reply that is not a completion. After about 1 MiB or 10 s, or an error, its body is cut.

    If none of the body could be decompressed, `body` is a text that says why.
    """
    body = bytearray()
    with contextlib.suppress(ExchangeError), anyio.move_on_after(_REFUSAL_TIMEOUT_S):
        try:
            async for chunk in decompressed(reply):
                body += chunk
                if len(body) > _MOST_OF_REFUSAL:
                    break
        except EncodingError as error:
            body = body or bytearray(f"its text cannot be decompressed: {error}".encode())
    return _answered(reply, bytes(body))


async def _take_all(
    incoming: _Incoming, chunks: AsyncIterator[bytes], idle_s: float | None, limit: float
) -> None:
    until, held = math.inf, -1
    try:
        while not incoming.finished:
            chunk, following = None, anext(chunks, None)
            with anyio.CancelScope(deadline=until):
                chunk = await _within(idle_s, following, "the stream paused for more than", "idle_timeout_s")
            if chunk is None:
                return
            await incoming.take(chunk)
            if incoming.first_event_at is not None and incoming.whole and incoming.held != held:
                # Some endpoints never end a stream. Stop early enough to use the reply within `limit`, but
                # wait on while the reply grows: some endpoints give a finish reason with each event.
                now, held = anyio.current_time(), incoming.held
                until = now + min(_MOST_AFTER_WHOLE_S, (limit - now) / 2)
    except (ExchangeError, _TooSlow):
        if not incoming.whole:
            raise


def _unreadable(error: EncodingError | OversizedStream | DamagedStream, status: int) -> Fault:
    if isinstance(error, DamagedStream):
        return Fault(kind="damaged", status=status, message=f"the stream is damaged: {error}")
    words, remedy = str(error), "Set max_tokens, or choose another model."
    if isinstance(error, BodyTooLongError):
        words = f"the reply is {error}"
    elif isinstance(error, EncodingError):
        words = f"the reply cannot be decompressed: {error}"
        remedy = "Check the proxies and gateways before the endpoint."
    return Fault(kind="invalid_reply", status=status, message=words, remedy=remedy)


async def decompressed(reply: HttpReply, most_bytes: int = MAX_REPLY_BYTES) -> AsyncIterator[bytes]:
    """Yield the body, decompressed. Raises `ExchangeError` or `EncodingError`.

    `most_bytes` limits what decompression yields. It does not limit a body that was not compressed.
    """
    decoder = ContentDecoder(reply.headers.get("content-encoding", ""), most_bytes)
    async for raw in reply.chunks():
        for number, chunk in enumerate(decoder.feed(raw)):
            if number:
                await anyio.lowlevel.checkpoint()
            yield chunk


def _answered(
    reply: HttpReply, body: bytes, first_chunk_s: float | None = None, received: int = 0
) -> Answered:
    headers = reply.headers
    cost_usd = None
    with contextlib.suppress(ValueError):
        cost_usd = cost(float(headers.get(_COST_HEADER, "")))
    return Answered(
        status=reply.status,
        body=body,
        retry_after_s=asked_wait(headers, time.time()) if reply.status >= 400 else None,
        cost_usd=cost_usd,
        first_chunk_s=first_chunk_s,
        received=received,
        location=headers.get("location"),
    )


class _Incoming:
    """A reply while it arrives. With `streamed`, events are read as a stream, whatever the content type."""

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
        return self.streamed is not None and self.streamed.assembler.finished

    @property
    def whole(self) -> bool:
        """`True` if a streamed reply is complete. Further events may arrive, but are not needed."""
        return self.streamed is not None and self.streamed.assembler.whole

    @property
    def held(self) -> int:
        return 0 if self.streamed is None else self.streamed.assembler.held

    async def take(self, chunk: bytes) -> None:
        self._size += len(chunk)
        limit = MAX_REPLY_BYTES if self._events else min(MAX_REPLY_BYTES, MAX_BODY_BYTES)
        if self._size > limit:
            raise BodyTooLongError(f"longer than {limit} bytes")
        if not self._events:
            self._plain += chunk
        if self.streamed is None or self._is_object:
            return
        deltas: list[Delta] = []
        try:
            for start in range(0, len(chunk), _SLICE_BYTES):
                if start:
                    await anyio.lowlevel.checkpoint()
                if self.finished:
                    break
                data, assembler = chunk[start : start + _SLICE_BYTES], self.streamed.assembler
                if self._lines.waiting > LONG_BYTES and b"\n" in data:
                    read = functools.partial(self._assemble, assembler, data)
                    deltas += await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
                else:
                    deltas += self._assemble(assembler, data)
        finally:
            if self._events and self.first_event_at is None:
                self.first_event_at = anyio.current_time()
            # Show text that arrived before a fault, too. If the request is retried, a `TextDelta` with
            # `restart` tells observers to discard it.
            for delta in _joined(deltas):
                self.streamed.show(delta)

    async def body(self) -> bytes | None:
        """Return the reply's body, or `None` if a stream has ended before the reply was complete."""
        if self.streamed is not None and not self._is_object:
            self._end(self.streamed)
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
        return bool(self._events) or (self._named and not self._begins_as_object)

    @property
    def _is_object(self) -> bool:
        return not self._named and not self._events and self._begins_as_object

    @property
    def _begins_as_object(self) -> bool:
        return self._plain[:_HEAD_BYTES].lstrip().startswith(b"{")

    def _assemble(self, assembler: Assembler, data: bytes) -> list[Delta]:
        try:
            return self._feed(assembler, self._lines.feed(data))
        except ValueError as error:
            raise OversizedStream(str(error)) from error

    def _feed(self, assembler: Assembler, events: Iterable[ServerEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in () if self.finished else events:  # events after the end of the reply are ignored
            self._events += 1
            try:
                deltas += assembler.feed(event)
            except DamagedStream as error:
                raise DamagedStream(f"event {self._events} {error}") from error
            if assembler.held > MAX_BODY_BYTES:
                # Refuse the reply before its pieces are joined: that is one long call into C, which would
                # hold the GIL and stop every thread.
                raise OversizedStream(f"the reply is longer than {MAX_BODY_BYTES} bytes")
            if assembler.finished:
                break
        if self._is_stream and self._lines.damage:
            raise DamagedStream(self._lines.damage)
        return deltas

    def _end(self, streamed: Streamed) -> None:
        """Pass on a last event that no blank line ends, unless it is damaged.

        Raises `DamagedStream` if an earlier line of the stream was damaged.
        """
        sound = not self._lines.damage
        with contextlib.suppress(DamagedStream):
            for delta in _joined(self._feed(streamed.assembler, self._lines.end())):
                streamed.show(delta)
        if not sound and self._is_stream:
            raise DamagedStream(self._lines.damage)


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Join neighbouring deltas of the same part, so that the trace does not have one message per token."""
    parts = itertools.groupby(deltas, operator.attrgetter("part"))
    return [Delta("".join(map(operator.attrgetter("text"), same)), part) for part, same in parts]


def fault_of(error: TimeoutError | ExchangeError, timeout_s: float) -> Fault:
    """Return the fault for an exchange that ended with `error`. `timeout_s`: the exchange's limit."""
    match error:
        case ExchangeError(kind="unreachable"):
            return Fault(kind="unreachable", message=f"cannot connect: {error}")
        case ExchangeError(kind="undecodable"):
            return Fault(kind="invalid_reply", message=f"the reply cannot be decompressed: {error}")
        case ExchangeError(kind="broken"):
            return Fault(kind="unavailable", message=f"the connection broke: {error}")
        case _:
            return Fault(kind="timed_out", message=f"no complete reply within {timeout_s:g} s", used_up=True)


_Count: TypeAlias = Annotated[int, Meta(ge=0)]  # checked when a fleet's broker decodes a worker's message


class WantedRequest(Struct, frozen=True, kw_only=True):
    """A request to send; its body has `prompt_bytes` bytes. `max_tokens` limits the reply, if it is set."""

    model: str
    prompt_bytes: _Count
    max_tokens: _Count | None = None


class RequestOutcome(Struct, frozen=True, kw_only=True):
    """The result of a request. A value that is `None` is unknown. A request that was not `sent` is free."""

    sent: bool = True
    status: int | None = None
    retry_after_s: float | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    cached_tokens: _Count = 0
    cost_usd: Annotated[float, Meta(ge=0)] | None = None

    def cost_by(self, price: Price | None) -> float | None:
        """Return the cost in US dollars: as reported, or of the known tokens by `price`, or `None`."""
        usage = m.Usage(
            input_tokens=self.input_tokens or 0,
            output_tokens=self.output_tokens or 0,
            cached_tokens=self.cached_tokens,
            cost_usd=self.cost_usd,
        )
        return with_cost(usage, None, price).cost_usd


class Permit(Protocol):
    """The permission to send one request."""

    def settle(self, outcome: RequestOutcome) -> None:
        """Report the result of the request. Called once; does not block."""


class RequestGate(Protocol):
    """Limits the requests of this process. `admit` may be called in any event loop and thread."""

    async def admit(self, wanted: WantedRequest) -> Permit | str:
        """Wait until the request may be sent; return a permit, or a sentence that says why it is refused."""


_gates: list[RequestGate] = []


def set_request_gate(gate: RequestGate | None) -> None:
    """Set the gate of this process; `None`: requests are sent without a gate."""
    _gates[:] = [] if gate is None else [gate]


def request_gate() -> RequestGate | None:
    """Return the gate of this process; `None` if it has none."""
    return _gates[0] if _gates else None


async def permit_for(wanted: WantedRequest) -> Permit | str | None:
    """Call `admit` of this process's gate, and return its result; `None`: there is no gate."""
    return await _gates[0].admit(wanted) if _gates else None


def not_sent(why: str) -> Fault:
    """Return the fault of a request that the `RequestGate` has refused."""
    return Fault(kind="refused", message=f"The request was not sent: {why}.")


def request_outcome(answer: Answered | Fault, reply: Reply | Fault) -> RequestOutcome:
    """Return the outcome of a request; `reply` was decoded from `answer`."""
    if isinstance(reply, Fault):
        return RequestOutcome(status=answer.status, retry_after_s=reply.retry_after_s)
    return RequestOutcome(
        status=answer.status,
        input_tokens=reply.usage.input_tokens,
        output_tokens=reply.usage.output_tokens,
        cached_tokens=reply.usage.cached_tokens,
        cost_usd=reply.usage.cost_usd,
    )
