"""Which requests get a token."""

from pathlib import Path

import anyio
import pytest

pytest.importorskip("mcp", reason="OAuth needs the extra: pip install 'grue[mcp]'")

import httpx2

from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.sdk_http import Authorization
from grue.transports.mcp.token_store import TokenRecord, TokenStore

SERVER = HttpServer(name="far", url="https://far.example/mcp", auth=OAuth())


@pytest.mark.parametrize(
    ("url", "gets_it"),
    [
        ("https://far.example/mcp", True),
        ("https://far.example/other", True),
        ("https://other.example/mcp", False),
        ("https://far.example.evil.example/mcp", False),
        ("https://far.example:8443/mcp", False),
        ("http://far.example/mcp", False),
    ],
)
def test_only_the_servers_own_origin_gets_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, gets_it: bool
) -> None:
    monkeypatch.setenv("GRUE_TOKENS", str(tmp_path))
    TokenStore(SERVER).save(TokenRecord(url=SERVER.url, access_token="t0ken"))
    sent: list[httpx2.Request] = []

    async def send(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, request=request)

    authorization = Authorization(SERVER, lambda _name, _value: None)
    anyio.run(authorization.send, httpx2.Request("POST", url), send)
    assert [request.headers.get("authorization") for request in sent] == ["Bearer t0ken" if gets_it else None]
