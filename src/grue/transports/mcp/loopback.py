"""The address on this machine to which a browser returns after a login (RFC 8252)."""

import html
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

_PATH = "/callback"
_MAX_VALUE = 4096
_PAGE = "<!doctype html><meta charset=utf-8><title>grue</title><p>{words}</p>"


class Returned:
    """The query that the browser brought back: its members, each once and bounded."""

    def __init__(self, query: str) -> None:
        self._values = {name: values[0][:_MAX_VALUE] for name, values in parse_qs(query).items()}

    def __getitem__(self, name: str) -> str | None:
        return self._values.get(name)


class Loopback:
    """A server on 127.0.0.1 for the one request of the browser; a context manager.

    Args:
        port: Its port; 0: any free one.

    Raises:
        OSError: On entering, if the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        self._wanted = port
        self._server: _Server

    def __enter__(self) -> Self:
        self._server = _Server(("127.0.0.1", self._wanted), _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def uri(self) -> str:
        """The address that the browser returns to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{_PATH}"

    def wait(self, timeout_s: float) -> Returned | None:
        """Wait for the browser; return what it brought, or `None` if it did not come in time."""
        return self._server.returned if self._server.came.wait(timeout_s) else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.came = threading.Event()
        self.returned: Returned | None = None


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0

    def do_GET(self) -> None:
        """Take the first request to the path, and show a page."""
        parts = urlsplit(self.path)
        if parts.path != _PATH or self.server.came.is_set():
            self.send_error(404)
            return
        returned = Returned(parts.query)
        refused = returned["error"]
        words = "You are logged in. You can close this window."
        if refused:
            words = f"The login was refused: {html.escape(refused)}"
        page = _PAGE.format(words=words).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)
        self.server.returned = returned
        self.server.came.set()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing: the address has the code in it."""
