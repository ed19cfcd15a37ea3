"""Log a person in to a server that has a URL, in a browser, and out again.

After a login the browser goes back to an address on this machine (RFC 8252), where this module waits for it.
"""

import html
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult

from grue.errors import MCPError
from grue.runtime.files import os_cause
from grue.runtime.loops.beside_loop import call_in_daemon_thread
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.http_faults import AuthorizationRefused
from grue.transports.mcp.library_logs import drop, library_logs_to
from grue.transports.mcp.oauth import Authorizer, Person, new_client
from grue.transports.mcp.sdk_http import asks_for_token
from grue.transports.mcp.token_store import TokenRecord, token_store

_PATH = "/callback"
_ANSWERS = frozenset(("code", "error"))  # when the browser returns from a login, its request has one of these
_PAGE = "<!doctype html><meta charset=utf-8><title>grue</title><p>{words}</p>"


class Loopback(ThreadingHTTPServer):
    """A server on 127.0.0.1 to which the browser returns after the login; port 0: a free port."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.first = threading.Lock()  # never released: only the browser's first return is accepted
        self.came = threading.Event()
        self.returned: dict[str, str] = {}
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing if the browser breaks a connection off, as it may at any time."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as they came

    @property
    def uri(self) -> str:
        """The address that the browser returns to."""
        return f"http://127.0.0.1:{self.server_address[1]}{_PATH}"

    def wait(self, timeout_s: float) -> dict[str, str] | None:
        """Wait for the browser's request and return its query parameters; `None`: it did not come in time."""
        return self.returned if self.came.wait(timeout_s) else None


class _Handler(BaseHTTPRequestHandler):
    server: Loopback
    timeout = 10.0

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        ends_login = parts.path == _PATH and not _ANSWERS.isdisjoint(query)
        if not ends_login or not self.server.first.acquire(blocking=False):
            self.send_error(404)
            return
        self.server.returned = returned = {name: values[0] for name, values in query.items()}
        try:
            self._show_page(returned.get("error"))
        finally:
            self.server.came.set()  # only now that the page is sent: the caller of `wait` closes the server

    def _show_page(self, refused: str | None) -> None:
        # The code has not been exchanged for a token yet, so whether the login succeeds is not known here.
        words = "The login goes on in grue, which says how it ends. You can close this window."
        if refused:
            words = f"The login was refused: {html.escape(refused)}"
        page = _PAGE.format(words=words).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing, because the address contains the authorization code."""


_CLIENT = {"name": "grue", "version": "1"}
_CLASSIC, _MODERN = "2025-11-25", "2026-07-28"
_HANDSHAKE = {"protocolVersion": _CLASSIC, "capabilities": {}, "clientInfo": _CLIENT}
_META = {
    "io.modelcontextprotocol/protocolVersion": _MODERN,
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_SESSION_ID = "mcp-session-id"
_ASK_S = 20.0
LOGIN_S = 300.0  # how long a login waits until the person has finished in the browser


class LoginRefused(MCPError):  # noqa: N818 - named for what it reports, like the messages
    """A login or a logout did not succeed; the text says why."""


def log_in(
    server: HttpServer, show: Callable[[str], object], *, scope: str | None = None, timeout_s: float = LOGIN_S
) -> TokenRecord:
    """Log in to a server; store and return the tokens. Wait for the browser for `timeout_s` at most.

    A thread calls `show` with the address to open. `scope`: scopes to request besides those that the server
    asks for; `None`: those in the server's configuration. Raises `LoginRefused`.
    """
    auth = server.auth
    if auth is None or auth.grant != "authorization_code":
        raise LoginRefused(f"'{server.name}' needs no login: `auth` in its configuration is enough.")
    try:
        loopback = Loopback(auth.redirect_port)
    except OSError as error:
        raise LoginRefused(
            f"Port {auth.redirect_port} of 127.0.0.1 cannot be used: {os_cause(error)}."
        ) from error

    def returned() -> AuthorizationCodeResult:
        came = loopback.wait(timeout_s)
        if came is None:
            raise LoginRefused(f"Nobody finished the login to '{server.name}' within {timeout_s:g} s.")
        if came.get("error") == "access_denied":
            raise LoginRefused(f"The login to '{server.name}' was declined in the browser.")
        if came.get("error"):
            raise OAuthFlowError(came.get("error_description") or came["error"])
        return AuthorizationCodeResult(
            code=came.get("code", ""), state=came.get("state"), iss=came.get("iss")
        )

    try:
        # Drop the libraries' log records, because they hold addresses with secrets.
        with loopback, library_logs_to(drop):
            return anyio.run(_log_in, server, Person(loopback.uri, show, returned), scope)
    except AuthorizationRefused as refused:
        raise _refused("log in to", server, refused) from refused


async def _log_in(server: HttpServer, person: Person, scope: str | None) -> TokenRecord:
    store = token_store(server)
    # Find out before anybody logs in whether the keyring or the folder can be used.
    await call_in_daemon_thread(store.load)
    async with store.locked():
        pass
    refusal = await _refusal(server)
    return await Authorizer(server, store, lambda _name, _value: None).login(refusal, person, scope)


async def _refusal(server: HttpServer) -> httpx2.Response:
    """Send requests without a token, and return the response that asks for a token; raises `LoginRefused`."""
    accept = {"accept": "application/json, text/event-stream", "accept-encoding": "identity"}
    client = new_client(httpx2.URL(server.url), headers={**accept, **server.headers}, timeout=_ASK_S)

    async def answer(method: str = "", params: object = None, **headers: str) -> httpx2.Response:
        """Send a message, or without a `method` a GET; return the response, whose body is not read."""
        number = 1 if method == "initialize" else 2
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params} if method else None
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        verb = "POST" if method else "GET"
        async with client.stream(verb, server.url, json=message, headers=named) as response:
            return response

    async def modern_answer(method: str) -> httpx2.Response:
        return await answer(method, {"_meta": _META}, mcp_protocol_version=_MODERN, mcp_method=method)

    try:
        async with client:
            response = await answer("initialize", _HANDSHAKE)
            # Some servers accept a handshake without a token, and refuse only the requests after it.
            if response.is_success:
                session = {name: value for name, value in response.headers.items() if name == _SESSION_ID}
                response = await answer("tools/list", {}, mcp_protocol_version=_CLASSIC, **session)
            elif not asks_for_token(response):
                # Try MCP revision 2026-07-28, then the SSE transport.
                response = await modern_answer("server/discover")
                if response.is_success:
                    response = await modern_answer("tools/list")
                if not (response.is_success or asks_for_token(response)):
                    response = await answer()
    except httpx2.RequestError as error:
        late = isinstance(error, httpx2.TimeoutException)  # its text is empty
        what = f"no answer within {_ASK_S:g} s" if late else error
        raise LoginRefused(f"'{server.name}' at {server.address} cannot be reached: {what}") from error
    if asks_for_token(response):
        return response
    text = f"'{server.name}' at {server.address} does not ask for a login (HTTP {response.status_code})."
    raise LoginRefused(text)


def log_out(server: HttpServer) -> tuple[bool, bool]:
    """Forget a server's tokens; raises `LoginRefused`.

    Returns whether any were stored, and whether the authorization server has revoked the login.
    """
    store = token_store(server)
    try:
        record = store.load()
        if record is None:
            return store.remove(), False
        authorizer = Authorizer(server, store, lambda _name, _value: None)
        with library_logs_to(drop):
            revoked = anyio.run(authorizer.revoke, record)
        return store.remove(), revoked
    except AuthorizationRefused as refused:
        raise _refused("log out of", server, refused) from refused


def _refused(what: str, server: HttpServer, refused: AuthorizationRefused) -> LoginRefused:
    return LoginRefused(f"Cannot {what} '{server.name}': {refused.fault.cause}.\n{refused.fault.remedy}")
