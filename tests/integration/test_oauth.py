"""OAuth at a server by URL: logins, and tokens that end, are revoked, and are shared by processes."""

import concurrent.futures
import fcntl
import json
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from faulty_http_server import faulty_http_server
from http_servers import real_http_server

from grue.cli.login import stored
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPConfigError, NeedsLogin
from grue.messages import ServerFailure, SessionOpened
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.oauth_settings import OAuth
from grue.tool_sessions.server_specs import HttpServer

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

import httpx2
from auth_server import Guarded, guarded_server, press_yes

from grue.transports.mcp import oauth
from grue.transports.mcp.http_faults import AuthorizationRefused
from grue.transports.mcp.login import LoginRefused, log_in, log_out
from grue.transports.mcp.oauth import Authorizer
from grue.transports.mcp.token_store import TokenRecord, TokenStore


@pytest.fixture(scope="module")
def running() -> Iterator[Guarded]:
    with guarded_server() as server:
        yield server


@pytest.fixture
def guarded(running: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    monkeypatch.setenv("GRUE_TOKENS", str(tmp_path / "tokens"))
    return _fresh(running)


def _unchanged(path: str, body: bytes) -> bytes:
    del path
    return body


def rewriting(**changes: Any) -> Callable[[str, bytes], bytes]:
    """Return a rewriting that changes members of JSON answers; a function makes the new value of the old."""

    def rewrite(path: str, body: bytes) -> bytes:
        del path
        try:
            said = json.loads(body)
        except ValueError:
            return body
        for name, change in changes.items():
            if name in said:
                said[name] = change(said[name]) if callable(change) else change
        return json.dumps(said).encode()

    return rewrite


def _fresh(running: Guarded) -> Guarded:
    issuer = running.issuer
    issuer.life_s = issuer.told_s = 3600
    issuer.refuses_refresh = False
    issuer.rewrite = _unchanged
    issuer.statuses.clear()
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_token_that_ends_in_mid_turn_is_refreshed(guarded: Guarded) -> None:
    server = logged_in(guarded)
    with ToolClient({"far": server}) as client:
        assert isinstance(client.connect()["far"], SessionOpened)
        guarded.issuer.end_access()
        assert client.call("far.echo", {"text": "hi"}).content == "hi"
    assert guarded.issuer.refreshed == 1
    assert echoed(server) == "hi"
    assert guarded.issuer.refreshed == 1, "the refreshed token is stored"


@pytest.mark.slow
def test_a_stored_token_that_has_ended_is_refreshed_before_it_is_sent(guarded: Guarded) -> None:
    server = logged_in(guarded)
    change(server, expires_at=time.time() - 1)
    assert echoed(server) == "hi"
    assert guarded.issuer.refreshed == 1


@pytest.mark.parametrize("skew_s", [-7200.0, 7200.0])
@pytest.mark.slow
def test_a_clock_that_is_wrong_costs_at_most_one_refresh(guarded: Guarded, skew_s: float) -> None:
    server = logged_in(guarded)
    record = change(server)
    change(server, expires_at=(record.expires_at or 0) + skew_s)
    guarded.issuer.end_access() if skew_s > 0 else None
    assert echoed(server) == "hi"
    assert guarded.issuer.refreshed == 1


@pytest.mark.slow
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


@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.slow
def test_a_refresh_that_a_proxy_refuses_is_tried_again_later(guarded: Guarded, status: int) -> None:
    server = logged_in(guarded)
    guarded.issuer.end_access()
    guarded.issuer.statuses["/token"] = status
    assert failure_of(server).needs_login
    guarded.issuer.statuses.clear()
    assert echoed(server) == "hi"
    assert guarded.issuer.refreshed == 1


@pytest.mark.parametrize("path", ["/register", "/token"])
def test_an_authorization_server_that_fails_is_not_taken_for_wrong_settings(
    guarded: Guarded, path: str
) -> None:
    guarded.issuer.statuses[path] = 503
    with pytest.raises(LoginRefused, match=r"server failed \(HTTP 503\)\.\nTry again later"):
        log_in(guarded.spec(), press_yes)


@pytest.mark.slow
def test_a_token_that_still_works_is_used_while_it_cannot_be_renewed(guarded: Guarded) -> None:
    server = logged_in(guarded)
    change(server, obtained_at=time.time() - 3590, expires_at=time.time() + 10)
    guarded.issuer.statuses["/token"] = 503
    assert echoed(server) == "hi"


@pytest.mark.slow
def test_a_token_of_another_process_that_has_ended_too_is_refreshed(guarded: Guarded) -> None:
    server = logged_in(guarded)
    with ToolClient({"far": server}) as client:
        client.connect()
        guarded.issuer.end_access()
        assert echoed(server) == "hi", "with a token that is refreshed and stored"
        guarded.issuer.end_access()
        assert client.call("far.echo", {"text": "hi"}).content == "hi"
    assert guarded.issuer.refreshed == 2


@pytest.mark.slow
def test_a_token_that_was_just_issued_and_is_refused_is_not_renewed_again(guarded: Guarded) -> None:
    server = logged_in(guarded)
    guarded.issuer.end_access()
    guarded.issuer.life_s = -1
    assert failure_of(server).needs_login
    assert guarded.issuer.refreshed == 1


@pytest.mark.slow
def test_a_revoked_login_in_mid_turn_ends_the_session(guarded: Guarded) -> None:
    server = logged_in(guarded)
    with ToolClient({"far": server}) as client:
        client.connect()
        guarded.issuer.access.clear()
        guarded.issuer.refresh.clear()
        said = client.call("far.echo", {"text": "hi"}).error_message or ""
    assert "the login has expired or was revoked" in said


@pytest.mark.slow
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
from grue.engine.outside_turns.tool_client import ToolClient
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_redirect_to_another_host_gets_no_token(guarded: Guarded, tmp_path: Path) -> None:
    record = tmp_path / "record"
    with real_http_server("--record", str(record)) as elsewhere:
        flags = f"--status initialize=307 --location {elsewhere}"
        with faulty_http_server(*flags.split()) as url:
            server = HttpServer(name="far", url=url, auth=OAuth())
            TokenStore(server).save(TokenRecord(url=url, access_token="access-0123456789abcdef"))
            assert "redirects to" in failure_of(server).cause
    assert not record.exists() or "access-" not in record.read_text()


@pytest.mark.slow
def test_a_server_that_wants_no_login_says_so(guarded: Guarded) -> None:
    with faulty_http_server() as url, pytest.raises(LoginRefused, match="does not ask for a login"):
        log_in(HttpServer(name="far", url=url, auth=OAuth()), press_yes)


@pytest.mark.slow
def test_a_person_who_declines_is_no_fault_of_the_configuration(guarded: Guarded) -> None:
    def press_no(address: str) -> None:
        back = parse_qs(urlsplit(address).query)["redirect_uri"][0]
        httpx.get(f"{back}?error=access_denied", trust_env=False)

    with pytest.raises(LoginRefused, match="The login to 'far' was declined in the browser"):
        log_in(guarded.spec(), press_no)


def test_a_proxy_that_cannot_be_used_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "foo://p:1080")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(LoginRefused, match="cannot be used: Unknown scheme"):
        log_in(HttpServer(name="far", url="https://mcp.invalid/mcp", auth=OAuth()), press_yes)


def test_a_folder_that_cannot_keep_tokens_is_named(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = guarded.spec()
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRUE_TOKENS", str(tmp_path / "file" / "tokens"))
    asked: list[str] = []
    with pytest.raises(LoginRefused, match=r"tokens cannot be kept in .*file/tokens: Not a directory"):
        log_in(server, asked.append)
    assert asked == []
    failure = failure_of(server)
    assert "file/tokens: Not a directory" in failure.cause
    assert "GRUE_TOKENS" in str(failure.remedy)
    with pytest.raises(LoginRefused, match="file/tokens: Not a directory"):
        log_out(server)


def test_a_login_that_nobody_finishes_ends(guarded: Guarded) -> None:
    with pytest.raises(LoginRefused, match=r"^Nobody finished the login to 'far' within 0\.1 s\.$"):
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


def test_the_secret_of_a_configured_client_is_in_no_file(guarded: Guarded) -> None:
    logged_in(guarded)
    *_, client = guarded.issuer.clients.values()
    client.client_secret = "a-secret-of-a-client"
    client.token_endpoint_auth_method = "client_secret_basic"
    (port,) = (address.port for address in client.redirect_uris or [])
    server = guarded.spec(client_id=client.client_id, client_secret=client.client_secret, redirect_port=port)
    log_in(server, press_yes)
    assert "a-secret-of-a-client" not in TokenStore(server).file.read_text()
    assert echoed(server) == "hi"
    assert log_out(server)[0]


@pytest.mark.parametrize("configured", ["", "bare", "with a slash"])
@pytest.mark.parametrize("slashed", ["issuer", "authorization_servers"])
@pytest.mark.slow
def test_a_slash_at_the_end_of_an_issuer_makes_no_difference(
    guarded: Guarded, slashed: str, configured: str
) -> None:
    bare = guarded.url.removesuffix("/mcp")
    changes: dict[str, Any] = {"issuer": bare, "authorization_servers": [bare]}
    changes[slashed] = f"{bare}/" if slashed == "issuer" else [f"{bare}/"]
    guarded.issuer.rewrite = rewriting(**changes)
    issuer = {"": None, "bare": bare, "with a slash": f"{bare}/"}[configured]
    server = guarded.spec(issuer=issuer)
    log_in(server, press_yes)
    assert echoed(server) == "hi"


def test_another_issuer_is_still_refused(guarded: Guarded) -> None:
    guarded.issuer.rewrite = rewriting(issuer="https://elsewhere.example/")
    with pytest.raises(LoginRefused, match="issuer mismatch"):
        log_in(guarded.spec(), press_yes)


@pytest.mark.parametrize("client_id", [None, "registered-there"])
def test_nobody_logs_in_at_another_server_than_the_configured_issuer(
    guarded: Guarded, client_id: str | None
) -> None:
    with pytest.raises(LoginRefused, match="not the issuer set"):
        log_in(guarded.spec(issuer="https://elsewhere.example", client_id=client_id), press_yes)
    assert guarded.issuer.registered == 0


@pytest.mark.parametrize("client_id", [None, "registered-there"])
@pytest.mark.slow
def test_a_server_without_metadata_is_not_taken_for_the_configured_issuer(
    guarded: Guarded, client_id: str | None
) -> None:
    places = ("oauth-authorization-server", "openid-configuration", "oauth-protected-resource/mcp")
    guarded.issuer.statuses |= {f"/.well-known/{place}": 404 for place in places}
    with pytest.raises(LoginRefused, match="not the issuer set"):
        log_in(guarded.spec(issuer="https://elsewhere.example", client_id=client_id), press_yes)
    assert guarded.issuer.registered == 0
    log_in(guarded.spec(issuer=guarded.url.removesuffix("/mcp")), press_yes)


@pytest.mark.slow
def test_of_several_authorization_servers_the_configured_one_is_used(guarded: Guarded) -> None:
    bare = guarded.url.removesuffix("/mcp")
    guarded.issuer.rewrite = rewriting(authorization_servers=["https://elsewhere.example", f"{bare}/"])
    server = guarded.spec(issuer=bare)
    log_in(server, press_yes)
    assert echoed(server) == "hi"


@pytest.mark.parametrize(
    "told_s", [10**18, 10**400, "9" * 400, -(10**400)], ids=["years", "huge", "text", "negative"]
)
def test_a_token_of_an_enormous_life_is_used_and_told(
    guarded: Guarded, told_s: int | str, capsys: pytest.CaptureFixture[str]
) -> None:
    guarded.issuer.rewrite = rewriting(expires_in=told_s)
    server = logged_in(guarded)
    record = TokenStore(server).load()
    assert record is not None
    assert "a token" in stored(record)
    assert echoed(server) == "hi"


@pytest.mark.parametrize("token", ["t\u00f6ken-0123456789", "tok\r\nX: y-0123456789"])
def test_a_stored_token_that_no_header_can_carry_wants_a_login(guarded: Guarded, token: str) -> None:
    server = logged_in(guarded)
    change(server, access_token=token)
    assert failure_of(server).needs_login
    log_in(server, press_yes)
    assert echoed(server) == "hi"
    guarded.issuer.rewrite = rewriting(access_token=token)
    change(server, access_token="gone-0123456789")
    cause = failure_of(server).cause
    assert cause.endswith("the authorization server issued a token that no header can carry")


def test_a_damaged_file_of_tokens_is_told_too(guarded: Guarded) -> None:
    server = logged_in(guarded)
    change(server, expires_at=1e300)
    found = TokenStore(server).load()
    assert found is not None
    assert "9999" in stored(found)


@pytest.mark.parametrize("name", ["metadata", "resource", "client"])
@pytest.mark.slow
def test_a_login_replaces_documents_that_cannot_be_read(guarded: Guarded, name: str) -> None:
    server = logged_in(guarded)
    change(server, **{name: {"client_id": 5}})
    failure = failure_of(server)
    assert (failure.cause, failure.remedy) == ("the server wants a login (HTTP 401)", "Run: grue login far")
    log_in(server, press_yes)
    assert echoed(server) == "hi"
    change(server, **{name: {"client_id": 5}})
    assert log_out(server) == (True, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"private_key": "no key"}, "Could not parse"),
        ({"private_key": "no key", "signing_algorithm": "none at all"}, "Algorithm not supported"),
        ({"client_secret": "s", "issuer": "no URL"}, "got 'no URL'"),
        ({"private_key": "no key", "issuer": None}, "Could not parse"),  # of which the SDK warns, too
    ],
)
def test_settings_that_the_sdk_refuses_are_named(guarded: Guarded, changes: Any, words: str) -> None:
    issuer = guarded.url.removesuffix("mcp")
    server = guarded.spec(grant="client_credentials", client_id="me", **({"issuer": issuer} | changes))
    failure = failure_of(server)
    assert failure.cause.startswith("the authorisation failed: ")
    assert words in failure.cause
    assert str(failure.remedy).startswith("Check `auth`")


@pytest.mark.parametrize(
    ("status", "scope", "asked"),
    [(401, "my.own", "my.own"), (401, None, "read"), (403, "my.own", "my.own more")],
)
def test_a_program_asks_for_the_scope_that_is_set_and_for_what_a_refusal_names(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, status: int, scope: str | None, asked: str
) -> None:
    forms = []

    async def sent(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            forms.append(parse_qs(request.content.decode()))
        return await really_sent(request)

    really_sent = oauth.sent
    monkeypatch.setattr(oauth, "sent", sent)
    server = guarded.spec(grant="client_credentials", client_id="me", client_secret="s", scope=scope)
    authorizer = Authorizer(server, TokenStore(server), lambda name, value: None)
    challenge = f'Bearer error="insufficient_scope", scope="{"read" if status == 401 else "more"}"'
    refusal = httpx2.Response(
        status, headers={"www-authenticate": challenge}, request=httpx2.Request("POST", guarded.url)
    )
    with pytest.raises(AuthorizationRefused):  # the server has no such grant
        anyio.run(authorizer.renew, "", refusal)
    assert [form["scope"] for form in forms] == [[asked]]


@pytest.mark.parametrize(
    "changes",
    [
        {"redirect_port": 65_536},
        {"redirect_port": "8080"},
        {"grant": "client-credentials"},
        {"scope": ["read"]},
        {"client_metadata_url": "http://app.example/client.json"},
        {"client_metadata_url": "https://app.example/"},
    ],
)
def test_settings_of_the_wrong_kind_are_refused_at_once(changes: Any) -> None:
    with pytest.raises(MCPConfigError, match=next(iter(changes))):
        OAuth(**changes)


def test_tokens_that_come_as_a_form_are_in_no_error(guarded: Guarded) -> None:
    secrets: list[str] = []

    def as_form(path: str, body: bytes) -> bytes:
        if path != "/token":
            return body
        said = json.loads(body)
        secrets.extend([said["access_token"], said["refresh_token"]])
        return urlencode(said).encode()

    guarded.issuer.rewrite = as_form
    with pytest.raises(LoginRefused, match="an answer cannot be read") as refused:
        log_in(guarded.spec(), press_yes)
    shown = "".join(traceback.format_exception(refused.value))
    assert secrets
    assert not [secret for secret in secrets if secret[:16] in shown]


class SlowStore(TokenStore):
    """Writes only when it is let."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server)
        self.began, self.let = threading.Event(), threading.Event()

    def save(self, record: TokenRecord) -> None:
        self.began.set()
        assert self.let.wait(30)
        super().save(record)


def test_a_cancellation_keeps_the_lock_until_the_token_is_written(guarded: Guarded) -> None:
    server = logged_in(guarded)
    change(server, expires_at=1.0)
    store = SlowStore(server)

    def is_free() -> bool:
        with store.file.with_suffix(".lock").open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    async def cancelled_in_mid_write() -> bool:
        authorizer = Authorizer(server, store, lambda _name, _value: None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(authorizer.token)
            await anyio.to_thread.run_sync(store.began.wait, 30)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
                freed = is_free()
                store.let.set()
        return freed

    assert not anyio.run(cancelled_in_mid_write)
    found = TokenStore(server).load()
    assert found is not None
    assert found.access_token in guarded.issuer.access, "what was issued is on file"


def test_a_session_that_ends_in_mid_refresh_keeps_the_login(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issuer accepts a refresh token only once, so a reply that is dropped would lose the login."""
    server = logged_in(guarded)
    guarded.issuer.end_access()
    exchange, asked = guarded.issuer.exchange_refresh_token, threading.Event()

    async def slow(*words: Any) -> Any:
        token = await exchange(*words)
        asked.set()
        await anyio.sleep(0.25)
        return token

    monkeypatch.setattr(guarded.issuer, "exchange_refresh_token", slow)

    async def cancelled_in_mid_refresh() -> None:
        authorizer = Authorizer(server, TokenStore(server), lambda _name, _value: None)
        used = await authorizer.token()
        refusal = httpx2.Response(401, request=httpx2.Request("POST", server.url))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(authorizer.renew, used, refusal)
            await anyio.to_thread.run_sync(asked.wait, 30)
            tasks.cancel_scope.cancel()

    anyio.run(cancelled_in_mid_refresh)
    assert echoed(server) == "hi"
