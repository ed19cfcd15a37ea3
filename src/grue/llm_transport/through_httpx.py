"""Requests through httpx: for a transport of the user, for a proxy, and for unusual URLs.

This module imports httpx, so import it inside functions.
"""

import ssl
from collections.abc import AsyncIterator

from grue.lean_httpx import httpx
from grue.llm_transport.exchange import fault_of
from grue.llm_transport.http_messages import (
    ExchangeError,
    HttpReply,
    HttpRequest,
    HttpUrl,
    innermost_text,
    joined_headers,
    pieces,
    timeouts_of,
)
from grue.protocol.chat_wire.failures import Fault
from grue.protocol.content_encoding import STEP_BYTES
from grue.protocol.retry import RetryPolicy


class ThroughHttpx:
    """Sends requests through an httpx transport, a user's for example.

    Args:
        transport: The httpx transport.
        in_pieces: Send a long body in pieces. A user's transport gets it whole, as `request.content`.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, *, in_pieces: bool = False) -> None:
        self._transport = transport
        self._in_pieces = in_pieces

    async def send(self, request: HttpRequest) -> HttpReply:
        """Send a request and return its reply."""
        if request.on_sent is not None:
            request.on_sent()  # before it is sent, since not every transport says when it is
        sent = httpx.Request(
            request.method,
            str(request.url),
            headers=request.headers,
            stream=_Pieces(request) if self._in_pieces else httpx.ByteStream(request.body),
            extensions={"timeout": request.timeouts},
        )
        if not self._in_pieces:
            sent.read()
        try:
            return _Reply(await self._transport.handle_async_request(sent))
        except httpx.HTTPError as error:
            raise exchange_error(error) from error

    async def close(self) -> None:
        """Close the httpx transport."""
        await self._transport.aclose()


def through_proxies(tls: ssl.SSLContext) -> ThroughHttpx:
    """Return a transport that uses the proxies that the environment names."""
    return ThroughHttpx(_ThroughClient(httpx.AsyncClient(verify=tls)), in_pieces=True)


def exchange_error(error: httpx.HTTPError) -> ExchangeError:
    """Return what an exception of httpx means for an exchange."""
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.ProxyError():
            return ExchangeError("unreachable", innermost_text(error))
        case httpx.TimeoutException():
            return ExchangeError("timed_out", str(error))
        case httpx.DecodingError():
            return ExchangeError("undecodable", str(error))
        case _:
            return ExchangeError("broken", innermost_text(error))


def fault_of_exchange(error: TimeoutError | httpx.HTTPError, timeout_s: float) -> Fault:
    """Return the fault for an exchange that ended with `error`; `timeout_s` was its time limit."""
    return fault_of(exchange_error(error) if isinstance(error, httpx.HTTPError) else error, timeout_s)


def http_timeout(patience: RetryPolicy) -> httpx.Timeout:
    """Return the limits for httpx: of the connect, and of each single read and write."""
    return httpx.Timeout(**timeouts_of(patience))


class UnusableUrlError(ValueError):
    """A text is not a URL. Its own text may quote part of a password, so it is not to be shown."""


def normalized_url(text: str) -> tuple[HttpUrl, bool, list[str]]:
    """Return a URL with what needs it encoded, whether it names a user, and the names in its query.

    Raises:
        UnusableUrlError: It is not a URL.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        raise UnusableUrlError from None
    path, _, query = url.raw_path.decode("ascii").partition("?")
    host = url.raw_host.decode("ascii")
    return HttpUrl(url.scheme, host, url.port, path, query), bool(url.userinfo), [*url.params]


class _Reply:
    """A reply of httpx."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = joined_headers(response.headers.raw)
        self._read_already = response.is_stream_consumed
        if self._read_already:
            # A scripted transport made this response, and httpx has read and decompressed it already.
            self.headers.pop("content-encoding", None)

    async def chunks(self) -> AsyncIterator[bytes]:
        response = self._response
        body = response.aiter_bytes(STEP_BYTES) if self._read_already else response.aiter_raw()
        try:
            async for chunk in body:
                yield chunk
        except httpx.HTTPError as error:
            raise exchange_error(error) from error

    def settle(self) -> bool:
        return self._response.is_closed

    async def close(self) -> None:
        await self._response.aclose()


class _ThroughClient(httpx.AsyncBaseTransport):
    """Sends requests through an httpx client, which chooses the environment's proxy for each URL."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        await self._client.aclose()


class _Pieces(httpx.AsyncByteStream):
    """A body in pieces."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def __aiter__(self) -> AsyncIterator[bytes]:
        return pieces(self._request)
