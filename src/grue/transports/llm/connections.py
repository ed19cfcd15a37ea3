"""The connections to an LLM endpoint: requests through `httpx.AsyncClient`, and what its failures mean.

Come here for TLS, proxies, the reuse of connections and the limit of a connect. Limits of time and size for a
whole exchange are in `exchange.py`. This module must not interpret a reply.

A client of httpx speaks HTTP/1.1 only, because all that is said here of kept connections is true of it.
"""

import contextlib
import functools
import math
import operator
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import anyio
import anyio.lowlevel
import httpx

from grue.protocol.chat_wire.content_encoding import STEP_BYTES
from grue.protocol.retry import RetryPolicy

_KEPT_S = 5.0
"""How long an idle connection is used again. Endpoints close theirs later."""

_CHUNKS_AT_ONCE = 64
"""How many pieces of a chunked body are taken apart without a pause for other tasks. 64 KiB that arrive at
once may be ten thousand of them, and httpx does not pause."""

_MAY_HIDE_BYTES = 32 * 2**10
"""A reply of this length may have left something in the event loop; see `Reply.close`."""

_QUIET_S = 0.001
"""How long a connection has to be silent behind such a reply."""


class ExchangeError(Exception):
    """An exchange failed in the HTTP library. The library's exception is the cause.

    Args:
        kind: What failed: the connect, a time limit, decompression, or the connection.
        message: What the operating system, TLS or the library says.
    """

    def __init__(self, kind: Literal["unreachable", "timed_out", "undecodable", "broken"], message: str):
        super().__init__(message)
        self.kind = kind


class Connections:
    """The clients of one event loop. Each concurrent request leases a client of its own.

    So each client has one connection. A single client with many connections would check all of them, with a
    system call for each idle one, whenever a request begins or ends. With 100 agents that is a third of all
    the work.

    Args:
        new: Makes a client.

    Attributes:
        entered: How many users the connections have. The last one closes them.
    """

    def __init__(self, new: "Callable[[], Connection]") -> None:
        self.entered = 0
        self._new = new
        self._free: list[Connection] = []
        self._all: list[Connection] = []

    @contextlib.contextmanager
    def lease(self) -> "Iterator[Connection]":
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
    """A client that sends one request at a time to one endpoint.

    Args:
        https: Whether the endpoint is one of HTTPS.
        use_proxies: Use the proxies that the environment names, if it names any.
        transport: Replaces the network.
    """

    def __init__(
        self, *, https: bool, use_proxies: bool, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._connects = transport is None
        self._client = httpx.AsyncClient(
            verify=tls() if https and transport is None else _no_tls(),
            trust_env=use_proxies,
            transport=transport,
            # A connection that a cancellation has left half closed must not keep the next request waiting.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=_KEPT_S),
            event_hooks={"response": [_hide_location]},
        )

    async def send(self, request: httpx.Request, on_sent: Callable[[], None] | None = None) -> "Reply":
        """Send a request and return its reply, whose body is still to be read.

        A cancellation closes the connection.

        Args:
            request: All of its headers are sent as they are.
            on_sent: Called when the request has been written. A user's transport does not tell when that is,
                so it is called before.

        Raises:
            ExchangeError: There was no reply.
        """
        limit_s: float | None = None
        if self._connects:
            limit_s = request.extensions["timeout"]["connect"]
        elif on_sent is not None:
            on_sent()
        opened: list[Any] = []
        with anyio.CancelScope(deadline=_deadline(limit_s)) as connecting:

            async def trace(event: str, info: dict[str, Any]) -> None:
                # httpx limits each step of a connect: names, TLS, a proxy. This limit is for all of them.
                if event == "http11.send_request_headers.started":
                    if info["request"].method != b"CONNECT":  # which is for the proxy
                        connecting.deadline = math.inf
                        opened.clear()
                elif event == "connection.connect_tcp.complete":
                    opened.append(info["return_value"])
                elif event == "http11.receive_response_headers.started" and on_sent is not None:
                    on_sent()

            request.extensions["trace"] = trace
            try:
                return Reply(await self._client.send(request, stream=True))
            except httpx.HTTPError as error:
                raise exchange_error(error) from error
            except UnicodeError as error:  # of a host's name, which httpx does not translate
                raise ExchangeError("unreachable", str(error)) from error
            finally:
                # httpcore forgets a socket whose TLS is cancelled.
                with anyio.CancelScope(shield=True):
                    for stream in opened:
                        await stream.aclose()
        raise ExchangeError("unreachable", f"no connection within {limit_s:g} s")

    async def close(self) -> None:
        """Close the client, and the user's transport if there is one."""
        await self._client.aclose()


class Reply:
    """A reply whose body is still to be read. Close it in the end.

    Attributes:
        status: HTTP status.
        headers: Values by the name in lower case; those of a repeated header are joined by commas.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._received = 0
        self.status = response.status_code
        self.headers = {**dict(response.headers.items()), **response.extensions.get(_LOCATION, {})}
        self._read_already = response.is_stream_consumed
        if self._read_already:
            # A scripted transport made this response, and httpx has read and decompressed it already.
            self.headers.pop("content-encoding", None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it was sent, compressed if the headers say so. Raises `ExchangeError`.

        httpx would decompress each chunk as a whole, whatever its size becomes, so `exchange.py` does it.
        """
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
        except httpx.HTTPError as error:
            raise exchange_error(error) from error

    async def close(self) -> None:
        """Give the connection back for another request, or close it if it cannot be used again.

        httpx closes it if the reply was not read to its end. But h11 keeps what it has received behind the
        reply, and httpx would take that for the reply to the next request.
        """
        await self._response.aclose()
        stream = self._response.extensions.get("network_stream")
        if stream is not None and not await self._silent(stream):
            await stream.aclose()

    async def _silent(self, stream: Any) -> bool:
        """Return whether nothing has come behind the reply.

        It can be in h11, in TLS, or in the event loop, which reads up to 256 KiB at once while httpx asks for
        64 KiB. What is still in the socket is seen by httpx before the next request.
        """
        try:
            if _H11(self._response).trailing_data[0]:
                return False
        except AttributeError:
            return False  # another httpx: no connection is kept, and `test_connections.py` tells why
        if self._received < _MAY_HIDE_BYTES and stream.get_extra_info("ssl_object") is None:
            return True
        with anyio.move_on_after(_QUIET_S):
            with contextlib.suppress(Exception):  # of httpcore: the connection has ended
                await stream.read(1)
            return False
        return True


_H11 = operator.attrgetter("stream._stream._httpcore_stream._stream._connection._h11_state")
"""The protocol's state behind a response. Neither httpx nor httpcore shows it otherwise."""


def exchange_error(error: httpx.HTTPError) -> ExchangeError:
    """Return what an exception of httpx means for an exchange."""
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
    """Return the limits for httpx: of the connect, and of each single read and write."""
    timeout_s = patience.timeout_s
    connect_s = min(patience.connect_timeout_s, timeout_s)
    return {"connect": connect_s, "read": timeout_s, "write": timeout_s, "pool": timeout_s}


_LOCATION = "grue.location"


async def _hide_location(response: httpx.Response) -> None:
    # Redirects are not followed, since that would send the key elsewhere. But httpx makes the request that
    # would follow a redirect, and fails if its address is none: then nobody would learn of the redirect.
    if "location" in response.headers:
        response.extensions[_LOCATION] = {"location": response.headers.pop("location")}


def _innermost_text(error: BaseException) -> str:
    """Return the text of the innermost cause, which comes from the operating system or the TLS library."""
    words = str(error)
    cause = error.__cause__
    while cause is not None:
        words = str(cause) or words
        cause = cause.__cause__
    return words or type(error).__name__


def _deadline(limit_s: float | None) -> float:
    return math.inf if limit_s is None else anyio.current_time() + limit_s


@functools.cache
def tls() -> ssl.SSLContext:
    """Return the context of all HTTPS connections. Loading the certificates takes 20 ms, so it is shared.

    It trusts what httpx trusts: the environment's certificates (`SSL_CERT_FILE`, `SSL_CERT_DIR`), or its own.
    """
    return httpx.create_ssl_context()


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """Return an empty context, for a plain HTTP URL. It trusts no certificate."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
