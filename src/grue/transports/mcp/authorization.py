"""Add an MCP server's token to each HTTP request to that server.

`oauth.py`, which obtains tokens and imports the SDK, is imported only if there may be one, or after a
refusal.
"""

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import httpx2

from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.token_store import token_store

if TYPE_CHECKING:
    from grue.transports.mcp.oauth import Authorizer

_SCOPE_TOO_SMALL = re.compile(r"error\s*=\s*\"?insufficient_scope")

_MOST_RENEWALS = 2  # a token that another process has stored may have expired too
Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class Authorization:
    """Adds a server's tokens to requests; `on_secret` gets name and value of a secret, before its use."""

    def __init__(self, server: HttpServer, on_secret: Callable[[str, str], None]) -> None:
        self._server = server
        self._on_secret = on_secret
        self._origin = _origin(httpx2.URL(server.url))
        self._store = token_store(server)
        self._made: Authorizer | None = None

    async def send(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Send a request, with a token only to the server's origin; renew a token that is refused."""
        if _origin(request.url) != self._origin:
            return await send(request)
        token = await self._authorizer().token() if self._made or self._store.may_have() else ""
        if token:
            request.headers["authorization"] = f"Bearer {token}"
        response = await send(request)
        renewals = 0
        while asks_for_token(response):
            await response.aclose()
            authorizer = self._authorizer()
            if renewals == _MOST_RENEWALS or (renewals and authorizer.has_issued(token)):
                authorizer.give_up(response)
            token = await authorizer.renew(token, response)
            request.headers["authorization"] = f"Bearer {token}"
            response = await send(request)
            renewals += 1
        return response

    def _authorizer(self) -> "Authorizer":
        if self._made is None:
            from grue.transports.mcp.oauth import Authorizer

            self._made = Authorizer(self._server, self._store, self._on_secret)
        return self._made


def asks_for_token(response: httpx2.Response) -> bool:
    """Return whether another token may help: the status is 401, or 403 because of too small a scope."""
    if response.status_code == httpx2.codes.FORBIDDEN:
        return _SCOPE_TOO_SMALL.search(response.headers.get("www-authenticate", "")) is not None
    return response.status_code == httpx2.codes.UNAUTHORIZED


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return (url.scheme, url.host, url.port)
