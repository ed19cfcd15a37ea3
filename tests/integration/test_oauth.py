"""OAuth at a server by URL: logins, and tokens that end, are revoked, and are shared by processes."""

import concurrent.futures
import json
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_servers import real_http_server

from grue.errors import NeedsLogin
from grue.messages import ServerFailure, SessionOpened
from grue.runtime.trace import Recorder
from grue.testing.faulty_http_server import faulty_http_server
from grue.tool_client import ToolClient
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

from auth_server import Guarded, guarded_server, press_yes

from grue.mcp_transport.login import LoginRefused, log_in, log_out
from grue.mcp_transport.token_store import TokenRecord, TokenStore


@pytest.fixture(scope="module")
def running() -> Iterator[Guarded]:
    with guarded_server() as server:
        yield server


@pytest.fixture
def guarded(running: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    monkeypatch.setenv("GRUE_TOKENS", str(tmp_path / "tokens"))
    return _fresh(running)


def _fresh(running: Guarded) -> Guarded:
    issuer = running.issuer
    issuer.life_s = issuer.told_s = 3600
    issuer.refuses_refresh = False
    issuer.registered = issuer.refreshed = 0
    issuer.access.clear()
    issuer.refresh.clear()
    return running


def logged_in(guarded: Guarded) -> HttpServer:
    server = guarded.spec()
    log_in(server, press_yes)
    return server


def echoed(server: HttpServer, **kwargs: Any) -> str:
    with ToolClient({"far": server}, **kwargs) as client:
        result = client.call("far.echo", {"text": "hi"})
    return str(result.error_message or result.content)


def failure_of(server: HttpServer) -> ServerFailure:
    with ToolClient({"far": server}) as client:
        outcome = client.connect()["far"]
    assert isinstance(outcome, ServerFailure)
    return outcome


def change(server: HttpServer, **changes: Any) -> TokenRecord:
    store = TokenStore(server)
    record = store.load()
    assert record is not None
    for name, value in changes.items():
        setattr(record, name, value)
    store.save(record)
    return record


def test_without_a_login_the_error_names_the_command(guarded: Guarded) -> None:
    failure = failure_of(guarded.spec())
    assert failure.needs_login
    assert failure.cause == "the server wants a login (HTTP 401)"
    assert failure.remedy == "Run: grue login far"
    with ToolClient({"far": guarded.spec()}) as client, pytest.raises(NeedsLogin, match="grue login far"):
        client.tools()
    assert guarded.issuer.registered == 0, "a turn registers no client"


def test_a_login_registers_the_client_once_and_stores_what_only_the_owner_can_read(guarded: Guarded) -> None:
    server = logged_in(guarded)
    assert echoed(server) == "hi"
    file = TokenStore(server).file
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert guarded.issuer.registered == 1
    assert log_out(server) == (True, True)
    assert not file.exists()
    assert guarded.issuer.access == {}
    assert log_out(server) == (False, False)


def test_a_token_that_ends_in_mid_turn_is_refreshed(guarded: Guarded) -> None:
    server = logged_in(guarded)
    with ToolClient({"far": server}) as client:
        assert isinstance(client.connect()["far"], SessionOpened)
        guarded.issuer.end_access()
        assert client.call("far.echo", {"text": "hi"}).content == "hi"
    assert guarded.issuer.refreshed == 1
    assert echoed(server) == "hi"
    assert guarded.issuer.refreshed == 1, "the refreshed token is stored"


def test_a_stored_token_that_has_ended_is_refreshed_before_it_is_sent(guarded: Guarded) -> None:
    server = logged_in(guarded)
    change(server, expires_at=time.time() - 1)
    assert echoed(server) == "hi"
    assert guarded.issuer.refreshed == 1


@pytest.mark.parametrize("skew_s", [-7200.0, 7200.0])
def test_a_clock_that_is_wrong_costs_at_most_one_refresh(guarded: Guarded, skew_s: float) -> None:
    server = logged_in(guarded)
    record = change(server)
    change(server, expires_at=(record.expires_at or 0) + skew_s)
    guarded.issuer.end_access() if skew_s > 0 else None
    assert echoed(server) == "hi"
    assert guarded.issuer.refreshed == 1


def test_a_refresh_that_is_refused_wants_a_login_and_keeps_the_registration(guarded: Guarded) -> None:
    server = logged_in(guarded)
    guarded.issuer.end_access()
    guarded.issuer.refuses_refresh = True
    failure = failure_of(server)
    assert failure.needs_login
    assert failure.cause == "the login has expired or was revoked (HTTP 401)"
    record = TokenStore(server).load()
    assert record is not None
    assert (record.access_token, record.refresh_token) == ("", "")
    assert record.client is not None


def test_a_revoked_login_in_mid_turn_ends_the_session(guarded: Guarded) -> None:
    server = logged_in(guarded)
    with ToolClient({"far": server}) as client:
        client.connect()
        guarded.issuer.access.clear()
        guarded.issuer.refresh.clear()
        said = client.call("far.echo", {"text": "hi"}).error_message or ""
    assert "the login has expired or was revoked" in said


def test_a_server_that_wants_more_in_mid_turn_names_the_command_and_a_login_helps(guarded: Guarded) -> None:
    server = logged_in(guarded)
    with ToolClient({"far": server}) as client:
        client.connect()
        guarded.issuer.narrow()
        said = client.call("far.echo", {"text": "hi"}).error_message or ""
    assert "the server wants the scopes" in said
    assert guarded.issuer.refreshed == 0, "a refreshed token would have no more scopes"
    failure = failure_of(server)
    assert failure.needs_login
    assert str(failure.remedy).startswith("Run: grue login far")
    log_in(server, press_yes, scope="read")
    assert echoed(server) == "hi"


_CALL = """
import sys
from grue import HttpServer
from grue.tool_client import ToolClient
from grue.tool_sessions.oauth_settings import OAuth
with ToolClient({"far": HttpServer(name="far", url=sys.argv[1], auth=OAuth())}) as client:
    print(client.call("far.echo", {"text": "hi"}).content)
"""


@pytest.mark.slow
def test_two_processes_refresh_once(guarded: Guarded) -> None:
    server = logged_in(guarded)
    change(server, expires_at=time.time() - 1)
    command = [sys.executable, "-c", _CALL, guarded.url]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        both = [
            pool.submit(subprocess.run, command, capture_output=True, text=True, timeout=90) for _ in "ab"
        ]
        assert [each.result().stdout for each in both] == ["hi\n", "hi\n"]
    assert guarded.issuer.refreshed == 1


def test_no_token_is_in_a_trace_or_an_error(guarded: Guarded) -> None:
    server = logged_in(guarded)
    record = change(server)
    lines: list[bytes] = []
    recorder = Recorder()
    recorder.add(lambda _envelope, line: lines.append(line))
    with ToolClient({"far": server}, recorder=recorder) as client:
        client.call("far.echo", {"text": f"{record.access_token} {record.refresh_token}"})
    assert b"far access_token" in b"".join(lines), "the server repeated the token, and it is hidden"
    for secret in record.secrets().values():
        assert secret.encode() not in b"".join(lines)
        assert secret not in repr(server)


def test_a_redirect_to_another_host_gets_no_token(guarded: Guarded, tmp_path: Path) -> None:
    record = tmp_path / "record"
    with real_http_server("--record", str(record)) as elsewhere:
        flags = f"--status initialize=307 --location {elsewhere}"
        with faulty_http_server(*flags.split()) as url:
            server = HttpServer(name="far", url=url, auth=OAuth())
            TokenStore(server).save(TokenRecord(url=url, access_token="access-0123456789abcdef"))
            assert "redirects to" in failure_of(server).cause
    assert not record.exists() or "access-" not in record.read_text()


def test_a_server_that_wants_no_login_says_so(guarded: Guarded) -> None:
    with faulty_http_server() as url, pytest.raises(LoginRefused, match="does not ask for a login"):
        log_in(HttpServer(name="far", url=url, auth=OAuth()), press_yes)


def test_a_login_that_nobody_finishes_ends(guarded: Guarded) -> None:
    with pytest.raises(LoginRefused, match=r"nobody finished the login within 0\.1 s"):
        log_in(guarded.spec(), lambda _address: None, timeout_s=0.1)


@pytest.mark.slow
def test_the_command_says_what_is_stored_and_until_when(guarded: Guarded, tmp_path: Path) -> None:
    from commands import grue

    server = logged_in(guarded)
    record = change(server)
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"far": {"url": guarded.url}}}))
    tokens = str(TokenStore(server).file.parent)
    told = grue("doctor", "--no-network", "--mcp-config", str(config), cwd=tmp_path, GRUE_TOKENS=tokens)
    assert f"far ({config.name}), login: a token until 20" in told.stdout, told.stdout
    assert "renewed by itself" in told.stdout
    gone = grue("logout", "far", "--mcp-config", str(config), cwd=tmp_path, GRUE_TOKENS=tokens)
    assert gone.stdout == "Logged out of far. Its tokens are revoked.\n"
    for secret in record.secrets().values():
        assert secret not in told.stdout + told.stderr + gone.stdout + gone.stderr
