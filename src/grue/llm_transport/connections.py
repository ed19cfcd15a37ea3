"""The connections to an LLM endpoint that the requests of one event loop use.

Come here for TLS, proxies and the reuse of connections. A request uses no client of httpx, unless there is
a proxy. The client would merge headers, search each reply for cookies and look for redirects, none of which
is needed here, and that costs as much as the rest of an exchange (decision 039).
"""

import contextlib
import functools
import os
import ssl
import sys
import threading
from collections.abc import Callable, Iterator

from grue.llm_transport.http_messages import HttpTransport, HttpUrl


class Connections:
    """The transports of one event loop. Each concurrent request leases a transport of its own.

    So each transport has one connection. A single one with many connections would check all of them, with a
    system call for each idle one, whenever a request begins or ends. With 100 agents that is a third of all
    the work.

    Args:
        new_transport: Makes a transport.

    Attributes:
        entered: How many users the connections have. The last one closes them.
    """

    def __init__(self, new_transport: Callable[[], HttpTransport]) -> None:
        self.entered = 0
        self._new_transport = new_transport
        self._free: list[HttpTransport] = []
        self._all: list[HttpTransport] = []

    @contextlib.contextmanager
    def transport(self) -> Iterator[HttpTransport]:
        """Lease a transport that no other request uses."""
        if not self._free:
            self._free.append(self._new_transport())
            self._all.append(self._free[0])
        transport = self._free.pop()
        try:
            yield transport
        finally:
            self._free.append(transport)

    @property
    def any(self) -> bool:
        """Whether at least one transport has been made."""
        return bool(self._all)

    async def open(self, timeout_s: float) -> None:
        """Connect before the first request, unless there was one; a proxy's connection is not opened."""
        if self.any:
            return
        with self.transport() as transport:
            pass  # a request may lease it from now on, and waits until it is open
        from grue.llm_transport.one_connection import OneConnection

        if isinstance(transport, OneConnection):
            await transport.open(timeout_s)

    async def close(self) -> None:
        """Close all transports."""
        for transport in self._all:
            await transport.close()


def open_transport(url: HttpUrl, *, use_proxies: bool) -> HttpTransport:
    """Return a transport to a server.

    Args:
        url: A URL of the server.
        use_proxies: Use the proxies that the environment names, if it names any.
    """
    https = url.scheme == "https"
    if use_proxies and _names_proxies():
        from grue.llm_transport.through_httpx import through_proxies

        return through_proxies(tls() if https else _no_tls())
    # Imports h11, which is not needed before the first request: a server starts meanwhile.
    from grue.llm_transport.one_connection import OneConnection

    return OneConnection(url, tls() if https else None)


def _names_proxies() -> bool:
    """Return whether the environment names proxies, or on macOS the system's settings."""
    if sys.platform != "darwin" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return False  # without the import, which takes 10 ms
    from urllib.request import getproxies

    return bool(getproxies())


class _Certificates:
    """The context of all HTTPS connections. Loading the certificates takes 20 ms, so it is shared."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None
        self._loading: threading.Thread | None = None

    def begin(self) -> None:
        """Load the certificates in a thread. OpenSSL needs no interpreter lock for it."""
        if self._context is not None or self._loading is not None:
            return
        loading = threading.Thread(target=self._load, name="grue-tls", daemon=True)
        # Without a thread, or after a failure, `get` loads them, and raises what there is to raise.
        with contextlib.suppress(RuntimeError, MemoryError):
            loading.start()
            self._loading = loading
            # A child that is forked meanwhile would have OpenSSL's locks as the thread holds them, for ever.
            os.register_at_fork(before=self._wait)

    def get(self) -> ssl.SSLContext:
        """Return the context. Two threads that load it at once have one each, which does no harm."""
        self._wait()
        if self._context is None:
            self._context = _load_certificates()
        return self._context

    def _wait(self) -> None:
        if self._loading is not None:
            self._loading.join()

    def _load(self) -> None:
        with contextlib.suppress(OSError, ValueError, MemoryError):
            self._context = _load_certificates()


def _load_certificates() -> ssl.SSLContext:
    """Return a context that trusts what httpx trusts: the environment's certificates, or those of certifi."""
    if file := os.environ.get("SSL_CERT_FILE"):
        return ssl.create_default_context(cafile=file)
    if folder := os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context(capath=folder)
    import certifi

    return ssl.create_default_context(cafile=certifi.where())


_certificates = _Certificates()


def begin_tls() -> None:
    """Begin to load the certificates beside what comes before the first request of a process."""
    _certificates.begin()


def tls() -> ssl.SSLContext:
    """Return the context of all HTTPS connections."""
    return _certificates.get()


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """Return an empty context, for a plain HTTP URL. It trusts no certificate."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
