"""What is made of the answers of authorization servers."""

import gzip
import json
from typing import Any

import pytest

pytest.importorskip("mcp", reason="OAuth needs the extra: pip install 'grue[mcp]'")

import httpx2
import raw_http
from anyio.abc import SocketStream

from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp import oauth
from grue.transports.mcp.http_faults import AuthorizationRefused
from grue.transports.mcp.oauth import Authorizer, adapted, as_known, secrets_of, sent
from grue.transports.mcp.token_store import TokenRecord, TokenStore

KNOWN = ["https://a.example/t"]
REQUEST = httpx2.Request("POST", "https://a.example/token", data={"code": "c0de", "grant_type": "x"})


def answer(content: bytes) -> httpx2.Response:
    return httpx2.Response(200, content=content, request=REQUEST)


@pytest.mark.parametrize(
    ("issuer", "known"),
    [
        ("https://a.example/t", True),
        ("https://a.example/t/", True),
        ("https://a.example/", False),
        ("https://a.example/t/u", False),
        ("http://a.example/t", False),
    ],
)
def test_only_a_slash_at_the_end_is_overlooked(issuer: str, known: bool) -> None:
    assert as_known(issuer, KNOWN) == (KNOWN[0] if known else issuer)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[1]",
        b"access_token=t",
        b'{"expires_in": "soon"}',
        b'{"expires_in": true}',
        b'{"issuer": "\xff"}',
    ],
)
def test_what_cannot_be_adapted_is_left_as_it_is(content: bytes) -> None:
    assert adapted(answer(content), KNOWN).content == content


def test_a_huge_number_elsewhere_changes_nothing_and_raises_nothing() -> None:
    content = json.dumps({"issuer": "https://a.example/t/", "other": 10**300}).encode()
    assert json.loads(adapted(answer(content), KNOWN).content)["other"] == 10**300


@pytest.mark.parametrize("told", [1e300, 10**400, "1e999", -5])
def test_a_life_is_bounded(told: Any) -> None:
    said = json.loads(adapted(answer(json.dumps({"expires_in": told}).encode()), KNOWN).content)
    assert 0 <= said["expires_in"] <= 10 * 365 * 86_400


@pytest.mark.parametrize("content", [b"access_token=t0ken&x=s", b'{"access_token": "t0ken", "x": "s"}'])
def test_secrets_are_found_in_json_and_in_forms(content: bytes) -> None:
    assert list(secrets_of(REQUEST, answer(content))) == [("code", "c0de"), ("access_token", "t0ken")]


@pytest.mark.parametrize("content", [b"{", b'{"token": "\xff"}', b"[" * 100_000])
def test_an_answer_that_cannot_be_read_carries_no_secret(content: bytes) -> None:
    assert list(secrets_of(REQUEST, answer(content))) == [("code", "c0de")]


@pytest.mark.anyio
async def test_an_answer_that_is_compressed_although_none_was_asked_for_is_read() -> None:
    body = gzip.compress(b'{"access_token": "t"}')

    async def serve(stream: SocketStream) -> None:
        head = raw_http.head("application/json").removesuffix(b"\r\n")
        await stream.send(head + b"Content-Encoding: gzip\r\n\r\n" + body)

    async with raw_http.raw_server(serve) as url:
        found = await sent(httpx2.Request("POST", url))
    assert found.content == b'{"access_token": "t"}'


@pytest.mark.anyio
async def test_an_answer_that_was_compressed_twice_is_not_read() -> None:
    """A few hundred bytes of it could expand to gigabytes."""

    async def serve(stream: SocketStream) -> None:
        head = raw_http.head("application/json").removesuffix(b"\r\n")
        await stream.send(head + b"Content-Encoding: gzip\r\n" * 2 + b"\r\n" + b"x")

    async with raw_http.raw_server(serve) as url:
        with pytest.raises(AuthorizationRefused, match="is compressed in an unusual way"):
            await sent(httpx2.Request("POST", url))


@pytest.mark.anyio
async def test_a_request_that_a_redirect_sends_elsewhere_is_sent_with_its_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answered(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/token":
            return httpx2.Response(307, headers={"location": "/there"})
        return httpx2.Response(200, content=request.content)

    def new_client(url: httpx2.URL, **options: Any) -> httpx2.AsyncClient:
        del url, options
        return httpx2.AsyncClient(transport=httpx2.MockTransport(answered))

    monkeypatch.setattr(oauth, "new_client", new_client)
    following = (await sent(REQUEST)).next_request
    assert following is not None
    answer_there = await sent(following)
    assert answer_there.content == REQUEST.content
    assert ("code", "c0de") in secrets_of(following, answer_there)


@pytest.mark.anyio
@pytest.mark.parametrize("url", ["https://a.example/mcp", "HTTPS://a.example/mcp"])
async def test_for_a_server_over_tls_nothing_is_sent_in_the_clear(url: str) -> None:
    server = HttpServer(name="far", url=url)
    authorizer = Authorizer(server, TokenStore(server), lambda _name, _value: None)
    with pytest.raises(AuthorizationRefused, match=r"b\.example is named with http://"):
        await authorizer._exchange(httpx2.Request("POST", "http://b.example/token"))


@pytest.mark.parametrize("token", ["", " token", "tok\r\nX: y", "t\u00f6ken"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    issued = oauth.shared.OAuthToken(access_token=token)
    with pytest.raises(AuthorizationRefused, match="a token that no header can carry"):
        oauth._record("https://a.example/mcp", issued, "")


def test_a_token_of_a_few_characters_is_not_redacted_in_every_text() -> None:
    server = HttpServer(name="far", url="https://a.example/mcp")
    hidden: list[str] = []
    authorizer = Authorizer(server, TokenStore(server), lambda _, value: hidden.append(value))
    authorizer._use(TokenRecord(url=server.url, access_token="a", refresh_token="refresh-0123"))
    assert hidden == ["refresh-0123"]
