"""Cross-app access (SEP-990): a person's identity token is exchanged for a token that the server accepts.

This module asks the identity provider to exchange the identity token for an identity assertion (ID-JAG,
RFC 8693). The SDK asks the authorization server to exchange the assertion for an access token (RFC 7523). The
settings name both of these servers, so an MCP server cannot choose where secrets are sent.
"""

import base64
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import httpx2
import msgspec
from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls
from msgspec import Struct

from grue.runtime.loops.beside_loop import aside
from grue.runtime.safe_text import beginning, plain_text
from grue.tool_sessions.oauth_settings import LOOPBACK, OAuth
from grue.transports.mcp.http_faults import (
    identity_unusable,
    insecure_server,
    server_unavailable,
)
from grue.transports.mcp.token_store import identity_token

_TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - the name of a grant
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a type
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_ERROR_CHARS = 200

Exchange = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class _Metadata(Struct):
    issuer: str
    token_endpoint: str
    token_endpoint_auth_methods_supported: list[str] | None = None


class _Issued(Struct):
    access_token: str
    issued_token_type: str


class _TokenError(Struct):
    error: str = ""
    error_description: str = ""


class IdentityProvider:
    """Requests identity assertions from the identity provider, in exchange for a person's identity token.

    `exchange` sends a request, with limits of time and size. `on_secret` gets each secret's name and value.
    """

    def __init__(self, auth: OAuth, exchange: Exchange, on_secret: Callable[[str, str], None]) -> None:
        self._auth = auth
        self._exchange = exchange
        self._on_secret = on_secret
        self._issuer = auth.identity_provider or ""

    async def assertion(self, audience: str, resource: str) -> str:
        """Return an identity assertion for the authorization server `audience` and the server `resource`."""
        token = await aside(identity_token, self._auth)
        self._on_secret("identity_token", token)
        metadata = await self._metadata()
        fields = {
            "grant_type": _TOKEN_EXCHANGE,
            "requested_token_type": _ID_JAG,
            "audience": audience,
            "resource": resource,
            "subject_token": token,
            "subject_token_type": _ID_TOKEN,
        }
        if self._auth.scope:
            fields["scope"] = self._auth.scope
        credentials, headers = self._credentials(metadata)
        request = httpx2.Request(
            "POST", metadata.token_endpoint, data={**fields, **credentials}, headers=headers
        )
        assertion = self._issued(await self._sent(request))
        self._on_secret("identity_assertion", assertion)
        return assertion

    async def _metadata(self) -> _Metadata:
        for url in build_oauth_authorization_server_metadata_discovery_urls(self._issuer, self._issuer):
            answer = await self._sent(httpx2.Request("GET", url, headers={"accept": "application/json"}))
            if answer.status_code >= httpx2.codes.INTERNAL_SERVER_ERROR:
                raise server_unavailable(answer.status_code, answer.request.url.host)
            if not answer.is_success:
                continue
            try:
                found = msgspec.json.decode(answer.content, type=_Metadata)
            except ValueError:
                continue
            if found.issuer.rstrip("/") != self._issuer.rstrip("/"):
                raise identity_unusable("the metadata of the identity provider names another issuer")
            return found
        raise identity_unusable("the identity provider publishes no metadata")

    def _credentials(self, metadata: _Metadata) -> tuple[dict[str, str], dict[str, str]]:
        client, secret = self._auth.identity_client_id or "", self._auth.identity_client_secret
        accepted = metadata.token_endpoint_auth_methods_supported
        if secret is None:
            return {"client_id": client}, {}
        if accepted is not None and "client_secret_basic" not in accepted:
            return {"client_id": client, "client_secret": secret}, {}
        pair = f"{quote(client, safe='')}:{quote(secret, safe='')}"
        return {}, {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _issued(self, answer: httpx2.Response) -> str:
        host, status = answer.request.url.host, answer.status_code
        if status == httpx2.codes.TOO_MANY_REQUESTS or status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            raise server_unavailable(status, host)
        if not answer.is_success:
            how = f"HTTP {status}{_words(answer)}"
            raise identity_unusable(f"the identity provider {host} refuses the identity token ({how})")
        try:
            issued = msgspec.json.decode(answer.content, type=_Issued)
        except ValueError:
            issued = _Issued("", "")
        if issued.issued_token_type != _ID_JAG or not issued.access_token:
            raise identity_unusable(f"the identity provider {host} issued no identity assertion")
        return issued.access_token

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.scheme != "https" and request.url.host not in LOOPBACK:
            raise insecure_server(request.url.host)
        return await self._exchange(request)


def _words(answer: httpx2.Response) -> str:
    try:
        error = msgspec.json.decode(answer.content, type=_TokenError)
    except ValueError:
        return ""
    said = ": ".join(text for text in (error.error, error.error_description) if text)
    shown = beginning(" ".join(plain_text(said).split()), _ERROR_CHARS)
    return f": {shown}" if shown else ""
