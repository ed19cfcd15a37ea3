"""`OneConnection`: an httpx transport with a single HTTP/1.1 connection, which can be opened ahead.

`httpx.AsyncHTTPTransport` has a pool of connections, which looks through all of them before and after each
request, and connects only when there is a request. Here a lease (`connections.py`) takes the place of the
pool, so this transport serves one request at a time.

While a server boots there is nothing to ask the model yet, but it is known that the model will be asked.
`open` connects then, with TLS, so that the first request need not wait for that.

It imports httpcore, so import it inside functions: no server has to wait for that import.
"""

import ssl
import time
from collections.abc import AsyncIterator
from typing import NoReturn

import anyio
import httpcore
from msgspec import Struct, field

from grue.lean_httpx import httpx

_KEPT_S = 5.0
"""How long an idle connection is used again, as with httpx's own pool. Endpoints close theirs later."""

_FAULTS = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError)


class OneConnection(httpx.AsyncBaseTransport):
    """Sends the requests to one origin over one connection, which is opened again when it is not usable.

    It raises what `httpx.AsyncHTTPTransport` raises. A connection is not usable if the endpoint has closed
    it, if it was idle for five seconds, or if its last reply was not read to the end.

    Args:
        url: A URL of the origin.
        tls: The context for HTTPS; `None`: plain HTTP.
    """

    def __init__(self, url: httpx.URL, tls: ssl.SSLContext | None) -> None:
        port = url.port or (80 if tls is None else 443)
        self._host = url.raw_host.decode("ascii")
        self._origin = httpcore.Origin(url.raw_scheme, url.raw_host, port)
        self._tls = tls
        self._connection: httpcore.AsyncHTTP11Connection | None = None
        self._stream: httpcore.AsyncNetworkStream | None = None
        self._unused_since: float | None = None
        self._opening: _Opening | None = None

    async def open(self, timeout_s: float | None) -> None:
        """Connect, unless there is a connection. If it fails, the next request tries again.

        A request that comes meanwhile waits for it, and fails as it does. Cancelling leaves nothing open.

        Args:
            timeout_s: For the connect, and again for TLS.
        """
        if self._connection is not None or self._opening is not None:
            return
        opening = self._opening = _Opening()
        try:
            await self._connect(timeout_s)
        except _FAULTS as error:
            opening.error = error
        finally:
            self._opening = None
            opening.done.set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its response, whose body is still to be read."""
        url = request.url
        core = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            connection = await self._usable(request.extensions.get("timeout", {}).get("connect"))
            self._unused_since = None
            response = await connection.handle_async_request(core)
        except _FAULTS as error:
            _raise_for_httpx(error)
        return httpx.Response(
            status_code=response.status,
            headers=response.headers,
            stream=_Body(response),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def _usable(self, timeout_s: float | None) -> httpcore.AsyncHTTP11Connection:
        opening = self._opening
        if opening is not None:
            await opening.done.wait()
            if opening.error is not None:
                raise opening.error
        if self._connection is not None and not self._may_be_used():
            with anyio.CancelScope(shield=True):
                await self.aclose()
        return self._connection or await self._connect(timeout_s)

    def _may_be_used(self) -> bool:
        assert self._connection is not None
        assert self._stream is not None
        if self._unused_since is None:
            return self._connection.is_available() and not self._connection.has_expired()
        if time.monotonic() - self._unused_since > _KEPT_S:
            return False
        # Before the first request there is nothing to read, except for what TLS itself sends.
        return self._tls is not None or not self._stream.get_extra_info("is_readable")

    async def _connect(self, timeout_s: float | None) -> httpcore.AsyncHTTP11Connection:
        stream = await httpcore.AnyIOBackend().connect_tcp(self._host, self._origin.port, timeout=timeout_s)
        if self._tls is not None:
            stream = await self._secured(stream, self._tls, timeout_s)
        self._stream, self._unused_since = stream, time.monotonic()
        self._connection = httpcore.AsyncHTTP11Connection(self._origin, stream, keepalive_expiry=_KEPT_S)
        return self._connection

    async def _secured(
        self, stream: httpcore.AsyncNetworkStream, tls: ssl.SSLContext, timeout_s: float | None
    ) -> httpcore.AsyncNetworkStream:
        tls.set_alpn_protocols(["http/1.1"])
        try:
            return await stream.start_tls(tls, server_hostname=self._host, timeout=timeout_s)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await stream.aclose()
            raise


class _Opening(Struct):
    """A connect that is under way before a request needs it."""

    done: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None


class _Body(httpx.AsyncByteStream):
    """The body of a response, with httpx's exceptions."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.aiter_stream():
                yield piece
        except _FAULTS as error:
            _raise_for_httpx(error)

    async def aclose(self) -> None:
        await self._response.aclose()


def _raise_for_httpx(error: Exception) -> NoReturn:
    """Raise the httpx exception of the same name; httpx names all of its own as httpcore does."""
    translated: Exception = getattr(httpx, type(error).__name__)(str(error))
    raise translated from error
