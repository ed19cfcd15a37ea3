"""An MCP server that requires a login, with the SDK's authorization server, both in a thread."""

import contextlib
import secrets
import socket
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    IdentityAssertionParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl

from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer


def _as_it_is(path: str, body: bytes) -> bytes:
    del path
    return body


class Issuer(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """An authorization server that grants every login. Tests set and read its attributes.

    Attributes:
        life_s: Lifetime of an access token. Clients are told the lifetime `told_s`.
        refuses_refresh: Whether every refresh token is refused.
        registered: Number of client registrations.
        refreshed: Number of refreshed tokens.
        assertions: The valid assertions of the trusted identity provider, with their claims.
        asserted: The persons for whom a token was issued in exchange for an assertion, in order.
        statuses: HTTP statuses by path: a request to this path gets only this status, as from a proxy.
        rewrite: Called with the path and the body of each answer but the MCP server's; returns another body.
    """

    def __init__(self) -> None:
        self.life_s = self.told_s = 3600
        self.refuses_refresh = False
        self.registered = self.refreshed = 0
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.assertions: dict[str, dict[str, str]] = {}
        self.asserted: list[str] = []
        self.statuses: dict[str, int] = {}
        self.rewrite: Callable[[str, bytes], bytes] = _as_it_is

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.registered += 1
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = f"code-{secrets.token_hex(12)}"
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return f"{params.redirect_uri}?{urlencode({'code': code, 'state': params.state or ''})}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._issue(client.client_id, authorization_code.scopes)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return None if self.refuses_refresh else self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.refresh.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant")
        self.refreshed += 1
        return self._issue(client.client_id, scopes)

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        claims = self.assertions.pop(params.assertion, None)
        if claims is None or claims["resource"] != params.resource:
            raise TokenError("invalid_grant")
        self.asserted.append(claims["sub"])
        return self._issue(client.client_id, params.scopes or ["read"])

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.clear()
        self.refresh.clear()

    def end_access(self) -> None:
        """Let every access token end now."""
        self.access.clear()

    def narrow(self) -> None:
        """Remove the scopes of every access token, so that the server refuses it for lack of scopes."""
        self.access.update(
            {name: token.model_copy(update={"scopes": []}) for name, token in self.access.items()}
        )

    def _issue(self, client_id: str, scopes: list[str]) -> OAuthToken:
        access, refresh = f"access-{secrets.token_hex(16)}", f"refresh-{secrets.token_hex(16)}"
        ends = int(time.time() + self.life_s)
        self.access[access] = AccessToken(token=access, client_id=client_id, scopes=scopes, expires_at=ends)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        scope = " ".join(scopes)
        return OAuthToken(
            access_token=access, refresh_token=refresh, expires_in=self.told_s, scope=scope or None
        )


class _Rewriting:
    """An ASGI application that passes requests on and rewrites the authorization server's answers."""

    def __init__(self, app: Any, issuer: Issuer) -> None:
        self._app = app
        self._issuer = issuer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] == "/mcp":
            await self._app(scope, receive, send)
            return
        if scope["path"] in self._issuer.statuses:
            status = self._issuer.statuses[scope["path"]]
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body"})
            return
        head: dict[str, Any] = {}
        body = bytearray()

        async def hold(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            content = self._issuer.rewrite(scope["path"], bytes(body))
            kept = [pair for pair in head["headers"] if pair[0].lower() != b"content-length"]
            await send({**head, "headers": [*kept, (b"content-length", str(len(content)).encode())]})
            await send({"type": "http.response.body", "body": content})

        await self._app(scope, receive, hold)


class Guarded:
    """A running server: its URL and its issuer."""

    def __init__(self, url: str, issuer: Issuer) -> None:
        self.url = url
        self.issuer = issuer

    def spec(self, **auth: Any) -> HttpServer:
        """Return the configuration with which a client connects to the server."""
        return HttpServer(name="far", url=self.url, auth=OAuth(**auth))


@contextlib.contextmanager
def guarded_server() -> Iterator[Guarded]:
    """Run the server. It has one tool, `echo`, and requires the scope `read`."""
    issuer = Issuer()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(origin),
            resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
            validate_token_resource=False,
            required_scopes=["read"],
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=["read", "write"], default_scopes=["read"]
            ),
            revocation_options=RevocationOptions(enabled=True),
            identity_assertion_enabled=True,
        )
        app = MCPServer("far", auth_server_provider=issuer, auth=settings)

        @app.tool(description="Return the text.", structured_output=False)
        def echo(text: str) -> str:
            return text

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the SDK's web framework, which is not under test
            served = _Rewriting(app.streamable_http_app(), issuer)
            web = uvicorn.Server(uvicorn.Config(served, log_level="critical"))
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Guarded(f"{origin}/mcp", issuer)
        finally:
            web.should_exit = True
            thread.join()


def press_yes(address: str) -> None:
    """Log in as a person does in the browser: open the address, and follow the redirect back."""
    urllib.request.urlopen(address, timeout=60).read()
