"""The connections to an LLM endpoint that the requests of one event loop use.

Come here for TLS, proxies and the reuse of connections. Requests are given to an httpx transport and not to
an `httpx.AsyncClient`. The client would merge headers, search each reply for cookies and look for redirects,
none of which is needed here, and that costs as much as the rest of an exchange (decision 039).
"""

import contextlib
import functools
import ssl
from collections.abc import Callable, Iterator
from urllib.request import getproxies

from grue.lean_httpx import httpx


class Connections:
    """The httpx transports of one event loop. Each concurrent request leases a transport of its own.

    So each transport has one connection. A single one with many connections would check all of them, with a
    system call for each idle one, whenever a request begins or ends. With 100 agents that is a third of all
    the work.

    Args:
        new_transport: Makes a transport.

    Attributes:
        entered: How many users the connections have. The last one closes them.
    """

    def __init__(self, new_transport: Callable[[], httpx.AsyncBaseTransport]) -> None:
        self.entered = 0
        self._new_transport = new_transport
        self._free: list[httpx.AsyncBaseTransport] = []
        self._all: list[httpx.AsyncBaseTransport] = []

    @contextlib.contextmanager
    def transport(self) -> Iterator[httpx.AsyncBaseTransport]:
        """Lease a transport that no other request uses."""
        if not self._free:
            self._free.append(self._new_transport())
            self._all.append(self._free[0])
        transport = self._free.pop()
        try:
            yield transport
        finally:
            self._free.append(transport)

    async def close(self) -> None:
        """Close all transports."""
        for transport in self._all:
            await transport.aclose()


def open_transport(*, https: bool, use_proxies: bool) -> httpx.AsyncBaseTransport:
    """Return a transport to a server.

    Args:
        https: Whether the server's URL begins with `https`.
        use_proxies: Use the proxies that the environment names, if it names any.
    """
    verify = tls() if https else _no_tls()
    if use_proxies and getproxies():
        return _ThroughClient(httpx.AsyncClient(verify=verify))
    return httpx.AsyncHTTPTransport(verify=verify)


class _ThroughClient(httpx.AsyncBaseTransport):
    """Sends requests through an httpx client, which chooses the environment's proxy for each URL."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        await self._client.aclose()


@functools.cache
def tls() -> ssl.SSLContext:
    """Return the context of all HTTPS connections. Loading the certificates takes 20 ms, so it is shared."""
    return httpx.create_ssl_context()


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """Return an empty context, for a plain HTTP URL. It trusts no certificate."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
