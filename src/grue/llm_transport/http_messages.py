"""The parts of an HTTP exchange with an endpoint: a URL, a request, a reply, and a transport that sends.

These types stand between `exchange.py`, which knows limits and faults, and the HTTP library. A request to a
model needs h11 only (`one_connection.py`). httpx takes 35 ms of processor time to import, so it is imported
where a user's transport, a proxy or an unusual URL needs it (`through_httpx.py`).
"""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, Protocol

import anyio.lowlevel
from msgspec import Struct

from grue.protocol.retry import RetryPolicy

PIECE_BYTES = 256 * 2**10
"""A longer body is sent in pieces of this size, between which other tasks run."""

Timeouts = dict[str, float]
"""Seconds by name (`connect`, `read`, `write`, `pool`), as httpx takes them."""

_PLAIN = re.compile(
    r"(?P<scheme>https?)://(?P<host>(?:[a-z0-9-]+\.)*[a-z][a-z0-9-]*|127\.0\.0\.1)(?::(?P<port>[1-9]\d{0,4}))?"
    r"(?P<path>(?:/[A-Za-z0-9_~-][A-Za-z0-9_.~-]*)*/?)"
)
"""URLs in which nothing has to be encoded or left out."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65535


class HttpUrl(Struct, frozen=True):
    """An absolute URL as a request needs it, all in ASCII.

    Attributes:
        scheme: `http` or `https`, if it is one that can be used.
        host: Name or address; an IPv6 address has no brackets here.
        port: `None`: that of the scheme.
        path: Percent-encoded; it begins with a slash.
        query: Percent-encoded, without the question mark.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    query: str = ""

    def __str__(self) -> str:
        """Return the URL as text."""
        return f"{self.scheme}://{self.netloc}{self.target}"

    @property
    def netloc(self) -> str:
        """The value of the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def connect_port(self) -> int:
        """The port to connect to."""
        return self.port or _DEFAULT_PORTS[self.scheme]


def plain_url(text: str) -> HttpUrl | None:
    """Return a URL, or `None` if it takes more than splitting to read it."""
    found = _PLAIN.fullmatch(text)
    if found is None:
        return None
    scheme, host, port, path = found.group("scheme", "host", "port", "path")
    number = int(port) if port else None
    if number is not None and number > _MAX_PORT:
        return None
    return HttpUrl(scheme, host, None if number == _DEFAULT_PORTS[scheme] else number, path or "/")


class HttpRequest(Struct):
    """A request of one exchange.

    Attributes:
        method: Such as `POST`.
        url: Where it goes.
        headers: All of them, with the host and the length.
        body: May be empty.
        timeouts: The limits of the connect, and of each single read and write.
        on_sent: Called when the request has been written; `None`: nobody waits for that.
    """

    method: str
    url: HttpUrl
    headers: list[tuple[bytes, bytes]]
    body: bytes
    timeouts: Timeouts
    on_sent: Callable[[], None] | None = None


class HttpReply(Protocol):
    """A reply whose body is still to be read. Settle it in the end, and close it if that is not enough."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """Values by the name in lower case; those of a repeated header are joined by commas."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it was sent, compressed if the headers say so. Raises `ExchangeError`."""
        ...

    def settle(self) -> bool:
        """Give the connection back for another request; return `False` if there was more to read."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class HttpTransport(Protocol):
    """Sends one request at a time to one endpoint."""

    async def send(self, request: HttpRequest) -> HttpReply:
        """Send a request and return its reply, or raise `ExchangeError`.

        A cancellation drops the connection.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class ExchangeError(Exception):
    """An exchange failed in the HTTP library. The library's exception is the cause.

    Args:
        kind: What failed: the connect, a time limit, decompression, or the connection.
        message: What the operating system, TLS or the library says.
    """

    def __init__(self, kind: Literal["unreachable", "timed_out", "undecodable", "broken"], message: str):
        super().__init__(message)
        self.kind = kind


def innermost_text(error: BaseException) -> str:
    """Return the text of the innermost cause, which comes from the operating system or the TLS library."""
    words = str(error)
    cause = error.__cause__
    while cause is not None:
        words = str(cause) or words
        cause = cause.__cause__
    return words or type(error).__name__


def timeouts_of(patience: RetryPolicy) -> Timeouts:
    """Return the limits for the HTTP library: of the connect, and of each single read and write."""
    timeout_s = patience.timeout_s
    connect_s = min(patience.connect_timeout_s, timeout_s)
    return {"connect": connect_s, "read": timeout_s, "write": timeout_s, "pool": timeout_s}


def joined_headers(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name, as `HttpReply.headers` has them."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


async def pieces(request: HttpRequest) -> AsyncIterator[bytes]:
    """Yield the body of a request in pieces, and call `on_sent` when the last one has been written."""
    body = request.body
    for at in range(0, len(body), PIECE_BYTES):
        if at:
            await anyio.lowlevel.checkpoint()
        yield body[at : at + PIECE_BYTES] if len(body) > PIECE_BYTES else body
    if request.on_sent is not None:
        request.on_sent()
