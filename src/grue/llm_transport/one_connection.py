"""`OneConnection`: sends requests over a single HTTP/1.1 connection, which can be opened ahead.

h11 knows the protocol, anyio the sockets, and this module passes bytes between the two. The pools of HTTP
clients look through all their connections before and after each request, take locks, and wrap a request, a
reply and each exception in objects of two libraries, which costs more than the rest of an exchange (decision
048). Here a lease (`connections.py`) takes the place of the pool, so one request at a time uses a connection,
and the time limits of `exchange.py` take the place of a limit for each read.

While a server boots there is nothing to ask the model yet, but it is known that the model will be asked.
`open` connects then, with TLS, so that the first request need not wait for that.

It imports h11, so import it inside functions: no server has to wait for that import.
"""

import select
import ssl
import time
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import h11
from anyio.abc import ByteStream, SocketAttribute
from msgspec import Struct, field

from grue.llm_transport.http_messages import (
    ExchangeError,
    HttpReply,
    HttpRequest,
    HttpUrl,
    innermost_text,
    joined_headers,
    pieces,
)

_KEPT_S = 5.0
"""How long an idle connection is used again. Endpoints close theirs later."""

_READ_BYTES = 64 * 2**10
_MAX_HEAD_BYTES = 100 * 2**10
"""Longest head of a reply."""

_EVENTS_AT_ONCE = 64
"""How many pieces of a chunked body are taken apart without a pause for other tasks."""

_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class OneConnection:
    """Sends the requests to one origin over one connection, which is opened again when it is not usable.

    A connection is not usable if the endpoint has closed it, if it was idle for five seconds, or if its last
    reply was not read to the end.

    Args:
        url: A URL of the origin.
        tls: The context for HTTPS; `None`: plain HTTP.
    """

    def __init__(self, url: HttpUrl, tls: ssl.SSLContext | None) -> None:
        self._host, self._port = url.host, url.connect_port
        self._tls = tls
        self._connection: _Connection | None = None
        self._opening: _Opening | None = None

    async def open(self, timeout_s: float) -> None:
        """Connect, unless there is a connection. If it fails, the next request tries again.

        A request that comes meanwhile waits for it, and fails as it does. Cancelling leaves nothing open.

        Args:
            timeout_s: For the connect and TLS together.
        """
        if self._connection is not None or self._opening is not None:
            return
        opening = self._opening = _Opening()
        try:
            self._connection = await self._connect(timeout_s)
        except ExchangeError as error:
            opening.error = error
        finally:
            self._opening = None
            opening.done.set()

    async def send(self, request: HttpRequest) -> HttpReply:
        """Send a request and return its reply, whose body is still to be read."""
        connection = await self._usable(request.timeouts["connect"])
        try:
            head = await connection.ask(request)
        except BaseException:
            # Also after a cancellation: what comes next on this connection belongs to this request.
            await self._drop()
            raise
        return _Reply(self, connection, head)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        await self._drop()

    async def _usable(self, timeout_s: float) -> "_Connection":
        opening = self._opening
        if opening is not None:
            await opening.done.wait()
            if opening.error is not None:
                raise opening.error
        if self._connection is not None and not self._connection.usable():
            await self._drop()
        if self._connection is None:
            self._connection = await self._connect(timeout_s)
        return self._connection

    async def _connect(self, timeout_s: float) -> "_Connection":
        try:
            with anyio.fail_after(timeout_s):
                if self._tls is None:
                    return _Connection(await anyio.connect_tcp(self._host, self._port))
                self._tls.set_alpn_protocols(["http/1.1"])
                secured = await anyio.connect_tcp(
                    self._host, self._port, ssl_context=self._tls, tls_standard_compatible=False
                )
                return _Connection(secured, secured=True)
        except TimeoutError as error:
            raise ExchangeError("unreachable", f"no connection within {timeout_s:g} s") from error
        except anyio.EndOfStream as error:
            raise ExchangeError("unreachable", "the endpoint closed it before TLS was set up") from error
        except (*_BROKEN, UnicodeError) as error:
            raise ExchangeError("unreachable", innermost_text(error)) from error

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with anyio.CancelScope(shield=True):
                await connection.stream.aclose()


class _Connection:
    """A connected socket, and what h11 knows of the exchange on it.

    Args:
        stream: The bytes from and to the endpoint.
        secured: Whether they go through TLS.
    """

    def __init__(self, stream: ByteStream, *, secured: bool = False) -> None:
        self.stream = stream
        self._secured = secured
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._idle_since: float | None = time.monotonic()
        self._asked = False
        self._poll = select.poll()
        self._poll.register(stream.extra(SocketAttribute.raw_socket), select.POLLIN)  # noqa: S610 - not Django's

    def usable(self) -> bool:
        """Return whether a request may be sent. An endpoint that closes a connection makes it readable."""
        if self._idle_since is None or time.monotonic() - self._idle_since > _KEPT_S:
            return False
        # Before the first request there is nothing to read, except for what TLS itself sends.
        return (self._secured and not self._asked) or not self._poll.poll(0)

    def ready_again(self) -> bool:
        """Prepare for the next request; return `False` if there cannot be one."""
        if self._idle_since is None:
            ended = self._state.our_state is h11.DONE and self._state.their_state is h11.DONE
            # What arrived behind the reply would be taken for the reply to the next request.
            if not ended or self._state.trailing_data[0]:
                return False
            self._state.start_next_cycle()
            self._idle_since = time.monotonic()
        return True

    async def ask(self, request: HttpRequest) -> h11.Response:
        """Send a request and return the head of its reply."""
        self._idle_since, self._asked = None, True
        await self._write(request)
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise ExchangeError("broken", "the endpoint changed to another protocol")

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body of the reply as it arrives."""
        number = 0
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)
            number += 1
            if number % _EVENTS_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()

    async def _write(self, request: HttpRequest) -> None:
        try:
            head = h11.Request(method=request.method, target=request.url.target, headers=request.headers)
            waiting = self._state.send(head) or b""
            async for piece in pieces(request):
                await self.stream.send(waiting + (self._state.send(h11.Data(data=piece)) or b""))
                waiting = b""
            waiting += self._state.send(h11.EndOfMessage()) or b""
            if waiting:
                await self.stream.send(waiting)
        except h11.LocalProtocolError as error:
            raise ExchangeError("broken", str(error)) from error
        except _BROKEN:
            pass  # it may have replied before it read everything, with a refusal for example

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what comes next of the reply, and wait for it if it has not arrived yet."""
        try:
            while (event := self._state.next_event()) is h11.NEED_DATA:
                data = await self._read()
                if not data and self._state.their_state is h11.SEND_RESPONSE:
                    raise ExchangeError("broken", "the endpoint closed it without a reply")
                self._state.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise ExchangeError("broken", str(error)) from error
        return event

    async def _read(self) -> bytes:
        try:
            return await self.stream.receive(_READ_BYTES)
        except anyio.EndOfStream:
            return b""
        except _BROKEN as error:
            raise ExchangeError("broken", innermost_text(error)) from error


class _Opening(Struct):
    """A connect that is under way before a request needs it."""

    done: anyio.Event = field(default_factory=anyio.Event)
    error: ExchangeError | None = None


class _Reply:
    """A reply that arrives on a connection."""

    def __init__(self, owner: OneConnection, connection: _Connection, head: h11.Response) -> None:
        self._owner, self._connection = owner, connection
        self.status = head.status_code
        self.headers = joined_headers([*head.headers])

    def chunks(self) -> AsyncIterator[bytes]:
        return self._connection.body()

    def settle(self) -> bool:
        return self._connection.ready_again()

    async def close(self) -> None:
        await self._owner.close()
