"""Cross-app access: a person's identity token is exchanged for a token of the server."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grue.engine.outside_turns.tool_client import ToolClient
from grue.messages import ServerFailure
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.server_specs import HttpServer

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

from auth_server import Guarded, guarded_server, press_yes
from identity_provider import IdentityProvider, identity_provider
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, OAuthClientInformationFull

from grue.transports.mcp.login import LoginRefused, log_in
from grue.transports.mcp.token_store import TokenStore

CLIENT_SECRET = "secret-of-the-client"


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Guarded, IdentityProvider]]:
    with guarded_server() as server, identity_provider() as provider:
        yield server, provider


@pytest.fixture
def guarded(
    both: tuple[Guarded, IdentityProvider], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Guarded:
    monkeypatch.setenv("GRUE_TOKENS", str(tmp_path / "tokens"))
    server, provider = both
    provider.fresh()
    issuer = server.issuer
    issuer.access.clear()
    issuer.asserted.clear()
    issuer.assertions = provider.issued
    issuer.clients["agent"] = OAuthClientInformationFull(
        client_id="agent",
        client_secret=CLIENT_SECRET,
        redirect_uris=None,
        grant_types=[JWT_BEARER_GRANT_TYPE],
        token_endpoint_auth_method="client_secret_basic",
    )
    return server


@pytest.fixture
def provider(both: tuple[Guarded, IdentityProvider], guarded: Guarded) -> IdentityProvider:
    return both[1]


def spec(guarded: Guarded, provider: IdentityProvider, **changes: Any) -> HttpServer:
    settings = {
        "grant": "identity_assertion",
        "client_id": "agent",
        "client_secret": CLIENT_SECRET,
        "issuer": guarded.url.removesuffix("mcp"),
        "identity_provider": provider.url,
        "identity_client_id": "agent-at-work",
    }
    return guarded.spec(**{**settings, **changes})


def echoed(server: HttpServer, **kwargs: Any) -> str:
    with ToolClient({"far": server}, **kwargs) as client:
        result = client.call("far.echo", {"text": "hi"})
    return str(result.error_message or result.content)


def failure_of(server: HttpServer) -> ServerFailure:
    with ToolClient({"far": server}) as client:
        outcome = client.connect()["far"]
    assert isinstance(outcome, ServerFailure)
    return outcome


@pytest.mark.slow
def test_the_identity_token_is_exchanged_once_and_names_both_servers(
    guarded: Guarded, provider: IdentityProvider
) -> None:
    server = spec(guarded, provider, identity_token=provider.log_in("alice"))
    assert echoed(server) == "hi"
    assert echoed(server) == "hi"
    (asked,) = provider.asked
    assert asked["audience"] == guarded.url.removesuffix("mcp")
    assert asked["resource"] == guarded.url
    assert asked["client_id"] == "agent-at-work"
    assert asked["requested_token_type"] == "urn:ietf:params:oauth:token-type:id-jag"
    assert asked["subject_token_type"] == "urn:ietf:params:oauth:token-type:id_token"
    assert guarded.issuer.asserted == ["alice"]


@pytest.mark.slow
def test_a_token_that_ends_in_mid_turn_is_exchanged_anew_with_the_file_of_that_moment(
    guarded: Guarded, provider: IdentityProvider, tmp_path: Path
) -> None:
    file = tmp_path / "identity"
    file.write_text(provider.log_in("alice") + "\n")
    server = spec(guarded, provider, identity_token_file=str(file), identity_client_secret="hush hush")
    with ToolClient({"far": server}) as client:
        client.connect()
        renewed = provider.log_in("alice")
        file.write_text(renewed)
        guarded.issuer.end_access()
        assert client.call("far.echo", {"text": "hi"}).content == "hi"
    assert [each["subject_token"] == renewed for each in provider.asked] == [False, True]
    pair = base64.b64decode(provider.authorized[0].removeprefix("Basic ")).decode()
    assert pair == "agent-at-work:hush%20hush"


@pytest.mark.slow
def test_two_persons_share_no_token(guarded: Guarded, provider: IdentityProvider) -> None:
    for person in ("alice", "bob", "alice"):
        assert echoed(spec(guarded, provider, identity_token=provider.log_in(person))) == "hi"
    assert guarded.issuer.asserted == ["alice", "bob"]


@pytest.mark.slow
def test_no_token_assertion_or_secret_is_in_a_trace_or_an_error(
    guarded: Guarded, provider: IdentityProvider
) -> None:
    token = provider.log_in("alice")
    server = spec(guarded, provider, identity_token=token, identity_client_secret="secret-at-work")
    lines: list[bytes] = []
    recorder = Recorder()
    recorder.add(lambda _envelope, line: lines.append(line))
    with ToolClient({"far": server}, recorder=recorder) as client:
        client.connect()
        record = TokenStore(server).load()
        assert record is not None
        (asked,) = provider.asked
        text = f"{token} {record.access_token} {asked['subject_token']} secret-at-work {CLIENT_SECRET}"
        client.call("far.echo", {"text": text})
    written = b"".join(lines).decode() + repr(server)
    for secret in (token, record.access_token, CLIENT_SECRET, "secret-at-work"):
        assert secret not in written
    assert record.refresh_token == ""


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"fails_with": 503}, "the authorization server 127.0.0.1 failed (HTTP 503)"),
        ({"issues": "urn:ietf:params:oauth:token-type:access_token"}, "issued no identity assertion"),
        ({"named": "https://elsewhere.example"}, "names another issuer"),
        ({"token_endpoint": "http://elsewhere.example/token"}, "nothing is sent there in the clear"),
    ],
)
def test_an_identity_provider_that_fails_gets_a_sentence(
    guarded: Guarded, provider: IdentityProvider, changes: dict[str, Any], cause: str
) -> None:
    token = provider.log_in("alice")
    for name, value in changes.items():
        setattr(provider, name, value)
    failure = failure_of(spec(guarded, provider, identity_token=token))
    assert cause in failure.cause
    assert token not in failure.cause
    assert guarded.issuer.asserted == []


def test_an_identity_token_that_is_refused_says_what_to_do(
    guarded: Guarded, provider: IdentityProvider
) -> None:
    failure = failure_of(spec(guarded, provider, identity_token="an-old-token"))
    assert failure.cause == (
        "the identity provider 127.0.0.1 refuses the identity token "
        "(HTTP 400: invalid_grant: the token has expired)"
    )
    assert str(failure.remedy).startswith("Get a new identity token from the identity provider")


def test_null_in_an_answer_of_the_identity_provider_is_like_a_missing_field(
    guarded: Guarded, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = provider.exchange

    def with_nulls(fields: dict[str, str], authorized: str) -> tuple[int, dict[str, Any]]:
        status, body = exchange(fields, authorized)
        return status, {**dict.fromkeys(("access_token", "error", "error_description")), **body}

    monkeypatch.setattr(provider, "exchange", with_nulls)
    refused = failure_of(spec(guarded, provider, identity_token="an-old-token"))
    assert "(HTTP 400: invalid_grant: the token has expired)" in refused.cause
    assert echoed(spec(guarded, provider, identity_token=provider.log_in("alice"))) == "hi"


def test_a_file_without_a_token_is_named(
    guarded: Guarded, provider: IdentityProvider, tmp_path: Path
) -> None:
    file = tmp_path / "identity"
    server = spec(guarded, provider, identity_token_file=str(file))
    assert failure_of(server).cause == "identity_token_file cannot be read: No such file or directory"
    file.write_text("\n")
    assert failure_of(server).cause == "identity_token_file is empty"


def test_nobody_logs_in_to_such_a_server(guarded: Guarded, provider: IdentityProvider) -> None:
    with pytest.raises(LoginRefused, match="needs no login"):
        log_in(spec(guarded, provider, identity_token="any"), press_yes)
