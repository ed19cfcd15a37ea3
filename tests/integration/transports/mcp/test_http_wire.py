"""The MCP client over HTTP: a real server of each transport, and the faulty one, one fault at a time."""

import contextlib
import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from faulty_http_server import faulty_http_server
from http_servers import real_http_server
from loopback_tls import tls_contexts
from notices import Notice, noting
from promises import GUARD_S
from rows import first_of

from grue.messages import JsonObject, ServerFailure, ToolCallResult
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.testing.leftovers import assert_nothing_left
from grue.tool_sessions.connection import ConnectionStatus, Listing
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError
from grue.tool_sessions.server_specs import HttpServer, ServerOptions
from grue.transports.mcp import http_wire
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.client_options import ClientOptions

pytestmark = pytest.mark.anyio

HI: JsonObject = {"text": "hi"}
ECHO = ToolCallResult(content="hi")
TOKEN = "hunter2hunter2"
SMALL = ProcessLimits(max_message_bytes=100_000)


@pytest.fixture(autouse=True)
async def sdk() -> None:
    # The SDK's import takes its time, and keeps descriptors: neither is the tests' matter.
    from grue.transports.mcp import sdk_http

    assert sdk_http


@pytest.fixture
def no_limit_for_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let closing take as long as it wants: what holds it up is found by the guard."""
    monkeypatch.setattr(http_wire, "_LEAVE_S", 10 * GUARD_S)


class Session:
    """A client of one server, and what it was told beside."""

    def __init__(self, url: str, transport: Literal["auto", "http", "sse"] = "http", **more: Any) -> None:
        self.notices: list[Notice] = []
        self.server = HttpServer(name="far", url=url, transport=transport, **more)
        self.listing: Listing
        self.closing_took_s = 0.0

    def noted(self, kind: str) -> list[str]:
        return [notice.text for notice in self.notices if notice.kind == kind]

    @contextlib.asynccontextmanager
    async def opened(
        self, open_s: float = GUARD_S, limits: ProcessLimits | None = None
    ) -> AsyncIterator[McpClient]:
        """Open a session within `open_s`, and assert that it leaves nothing."""
        options = ClientOptions(limits=limits or ProcessLimits(), on_notice=noting(self.notices))
        client = McpClient(self.server, ProcessRegistry(), options)
        with assert_nothing_left():
            async with client:
                self.listing = await client.open(open_s)
                yield client
                since = time.monotonic()
            self.closing_took_s = time.monotonic() - since


async def failure_of(run: Awaitable[object]) -> ServerFailure:
    with pytest.raises(ServerFailed) as caught:
        await run
    assert TOKEN not in str(caught.value)
    assert "ExceptionGroup" not in str(caught.value)
    assert caught.value.failure.remedy
    return caught.value.failure


async def one_call(session: Session, call_s: float = GUARD_S, **limits: Any) -> ToolCallResult:
    with anyio.fail_after(GUARD_S):
        async with session.opened(**limits) as client:
            return await client.call("echo", HI, call_s)


async def refusal_of(session: Session, **limits: Any) -> str:
    with anyio.fail_after(GUARD_S):
        async with session.opened(**limits) as client:
            texts = []
            for _ in range(2):  # the second: it cost only the first call
                with pytest.raises(ToolRefusedError) as caught:
                    await client.call("echo", HI, 60)
                texts.append(str(caught.value))
    assert texts[0] == texts[1]
    return texts[0]


@pytest.mark.slow
@pytest.mark.usefixtures("no_limit_for_closing")
@pytest.mark.parametrize("flags", [(), ("--json",), ("--stateless",), ("--transport", "sse")], ids=" ".join)
async def test_a_real_server_is_listed_and_used(flags: tuple[str, ...]) -> None:
    with real_http_server(*flags) as url:
        session = Session(url, "auto")
        async with session.opened() as client:
            assert [tool.tool for tool in session.listing.tools] == ["echo", "fail", "slow", "big", "chatty"]
            assert session.listing.protocol_version == "2025-11-25"
            assert session.listing.server_version == "real 1.0"
            assert client.status == ConnectionStatus(address=url)
            assert await client.call("echo", HI, 60) == ECHO
            assert (await client.call("fail", {}, 60)).is_error
            assert len(str((await client.call("big", {"length": 900_000}, 60)).content)) == 900_000
            await client.call("chatty", {}, 60)
        assert session.noted("progress") == ([] if "--json" in flags else ["1/2"])
        assert session.noted("noise") == []


@pytest.mark.slow
async def test_a_url_without_a_type_is_tried_with_streamable_http_and_then_with_sse() -> None:
    with faulty_http_server("--legacy") as url:
        assert await one_call(Session(url, "auto")) == ECHO
    with faulty_http_server() as url:
        assert await one_call(Session(url, "auto")) == ECHO


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (
            "--status initialize=404",
            "(HTTP 404 Not Found); over the older SSE transport: no MCP server answers",
        ),
        (
            "--legacy --status get=401",
            "over the older SSE transport: the server does not accept the credentials",
        ),
        ("--status initialize=401", "the server does not accept the credentials (HTTP 401 Unauthorized)"),
    ],
)
@pytest.mark.slow
async def test_an_address_that_takes_neither_transport_says_why(flags: str, cause: str) -> None:
    with faulty_http_server(*flags.split()) as url:
        failure = await failure_of(one_call(Session(url, "auto")))
    assert cause in failure.cause


async def test_the_remedy_names_the_type_if_the_configured_transport_is_refused() -> None:
    with faulty_http_server("--status", "get=400") as url:
        failure = await failure_of(one_call(Session(url, "sse")))
    assert "(HTTP 400 Bad Request" in failure.cause
    assert "`sse` the older transport" in failure.remedy


@pytest.mark.parametrize("flags", first_of([((),), (("--transport", "sse"),)]), ids=" ".join)
async def test_p24_a_timed_out_call_is_cancelled_and_the_session_goes_on(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    record = tmp_path / "record"
    with real_http_server("--record", str(record), *flags) as url, anyio.fail_after(GUARD_S):
        session = Session(url, "sse" if flags else "http")
        async with session.opened() as client:
            with pytest.raises(ToolTimedOutError, match=r"timed out after 0.2s"):
                await client.call("slow", {"seconds": 600}, 0.2)
            assert await client.call("echo", HI, 60) == ECHO
    said = [json.loads(line) for line in record.read_text().splitlines()]
    late = next(each["id"] for each in said if each["method"] == "tools/call")
    cancelled = [each["params"]["requestId"] for each in said if each["method"] == "notifications/cancelled"]
    assert cancelled == [late]
    assert flags or said[-1]["http"] == "DELETE"


@pytest.mark.usefixtures("no_limit_for_closing")
@pytest.mark.slow
async def test_cancelling_the_host_leaves_nothing_and_ends_the_session(tmp_path: Path) -> None:
    record = tmp_path / "record"

    async def use(url: str) -> None:
        async with Session(url).opened() as client:
            await client.call("slow", {"seconds": 600}, 600)

    with real_http_server("--record", str(record)) as url, assert_nothing_left(), anyio.fail_after(GUARD_S):
        async with anyio.create_task_group() as group:
            group.start_soon(use, url)
            while not (record.exists() and "tools/call" in record.read_text()):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
    assert json.loads(record.read_text().splitlines()[-1])["http"] == "DELETE"


@pytest.mark.slow
async def test_headers_go_with_every_request_and_a_token_that_is_refused_is_not_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with real_http_server("--token", TOKEN) as url, caplog.at_level(logging.DEBUG):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert await one_call(Session(f"{url}?api_key=hunter2", headers=headers)) == ECHO
        failure = await failure_of(one_call(Session(f"{url}?api_key=hunter2")))
    assert failure.cause.startswith("the server does not accept the credentials (HTTP 401 Unauthorized")
    assert failure.command == url
    assert "headers" in failure.remedy
    body = ("--body", f"no {TOKEN} here")
    with faulty_http_server("--status", "initialize=403", *body) as url:
        failure = await failure_of(one_call(Session(url, headers=headers)))
    assert failure.cause.endswith("(HTTP 403 Forbidden: no [redacted:Authorization token] here)")
    logged = [record for record in caplog.records if record.name.startswith(("httpx2", "mcp.client"))]
    assert not logged, "what they log has URLs in it"
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
async def test_options_choose_tools_and_limit_calls() -> None:
    with real_http_server() as url:
        session = Session(url, options=ServerOptions(call_timeout_s=0.2, include=("echo", "sl?w", "gone_*")))
        async with session.opened() as client:
            assert [tool.tool for tool in session.listing.tools] == ["echo", "slow"]
            with pytest.raises(ToolTimedOutError, match=r"timed out after 0.2s"):
                await client.call("slow", {"seconds": 600}, 600)
    assert session.noted("bad_tool") == ["tools.include has 'gone_*', and the server lists no such tool"]
    with faulty_http_server("--silent-at", "initialize") as url:
        failure = await failure_of(one_call(Session(url), open_s=0.2))
    assert failure.cause == "no answer to initialize within 0.2 s"


_NO_ID = '{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"closed"}} --body-type application/json'


@pytest.mark.parametrize(
    ("flags", "phase", "cause"),
    [
        ("--status initialize=404", "initialize", "no MCP server answers at this address (HTTP 404 "),
        ("--status initialize=405", "initialize", "no MCP server answers at this address (HTTP 405 "),
        ("--status initialize=500 --body oops", "initialize", "the server failed (HTTP 500 Internal Server "),
        (f"--status initialize=200 --body {_NO_ID}", "initialize", "initialize failed: closed (-32001)"),
        ("--status list=503", "list", "the server failed (HTTP 503 Service Unavailable)"),
        ("--status list=302 --location http://other/x?k=1", "list", "redirects to http://other/x (HTTP 302)"),
        ("--status list=308 --location http://127.0.0.1:1/mcp", "list", "redirects to http://127.0.0.1:1/mcp"),
        ("--status initialize=307 --location /mcp", "initialize", "again and again, last to http://"),
        ("--page-at initialize", "initialize", "it answered with text/html instead of an MCP message"),
        ("--garbage-at initialize", "initialize", "its answer is not an MCP message"),
        ("--null-at initialize", "initialize", "result is null"),
        ("--null-at list --events", "list", "its answer is not an MCP message"),
        ("--reset-at initialize", "initialize", "was lost before the answer came: Connection reset by peer"),
        ("--close-at list", "list", "was lost before the answer came: Server disconnected"),
        ("--cut-at list", "list", "was lost before the answer came: peer closed connection"),
        ("--cut-at list --events", "list", "the connection was closed before the answer was complete"),
        ("--half-open", "initialize", "no answer to initialize within 0.5 s"),
        ("--silent-at initialize", "initialize", "no answer to initialize within 0.5 s"),
        ("--silent-at initialized", "list", "no answer to tools/list within 5 s"),
        ("--drip 0.02", "initialize", "no answer to initialize within 0.5 s"),
        ("--legacy --status get=401", "initialize", "the server does not accept the credentials (HTTP 401 "),
        ("--legacy --status get=302 --location http://other/sse", "initialize", "redirects to http://other/sse"),
        ("--legacy --page-at get", "initialize", "it answered with text/html instead of an MCP message"),
        ("--legacy --cut-at get", "initialize", "its stream of events ended before it named an endpoint"),
        ("--legacy --elsewhere http://other/x", "initialize", "it names an endpoint at another host"),
        ("--legacy --half-open", "initialize", "no answer to initialize within 0.5 s"),
        ("--legacy --silent-at list", "list", "no answer to tools/list within 5 s"),
        ("--legacy --exit-after initialize", "initialize", "was closed before the answer was complete"),
    ],
)  # fmt: skip
@pytest.mark.slow
async def test_r6_1_each_failure_to_open_names_its_cause(flags: str, phase: str, cause: str) -> None:
    limit = re.search(r"within ([0-9.]+) s", cause)
    open_s = GUARD_S if limit is None else float(limit[1])
    with faulty_http_server(*flags.split()) as url:
        session = Session(url, "sse" if "--legacy" in flags else "http")
        failure = await failure_of(one_call(session, open_s=open_s))
    assert (failure.phase, failure.command, failure.exit_status) == (phase, url, None)
    assert cause in failure.cause


@pytest.mark.parametrize("transport", ["http", "sse"])
@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://127.0.0.1:9/mcp", "connection refused by 127.0.0.1:9"),
        ("http://nowhere.invalid/mcp", "no address is known for the host nowhere.invalid"),
    ],
)
async def test_r6_1_a_server_that_is_not_there(url: str, cause: str, transport: Any) -> None:
    failure = await failure_of(one_call(Session(url, transport)))
    assert (failure.phase, failure.cause) == ("initialize", cause)
    assert "`url`" in failure.remedy


async def test_an_ipv6_address_is_told_from_its_port() -> None:
    # Whether the machine has IPv6 decides about the other words.
    failure = await failure_of(one_call(Session("http://[::1]:9/mcp")))
    assert "[::1]:9" in failure.cause


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.slow
async def test_a_server_on_this_machine_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with faulty_http_server() as url:
        assert await one_call(Session(url)) == ECHO


@pytest.mark.usefixtures("no_proxy")
@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("http_proxy", "http://127.0.0.1:9", "no connection to mcp.invalid:80 through the proxy"),
        ("http_proxy", "http://nowhere.invalid:9", "no connection to mcp.invalid:80 through the proxy"),
        ("http_proxy", "foo://user:sesame@p:1080", "cannot be used: Unknown scheme"),
        ("http_proxy", "http://user:sesame/open@p:1080", "cannot be used: the URL of a proxy is invalid"),
        ("http_proxy", "socks5://p:1080", "cannot be used: Using SOCKS proxy"),
        ("SSL_CERT_FILE", "/absent/ca.pem", "cannot be used: [Errno 2] No such file"),
    ],
)
async def test_a_proxy_or_certificates_of_the_environment_are_not_taken_for_the_server(
    name: str, value: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grue.transports.mcp import sdk_http

    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv(name, value)
    sdk_http._tls.cache_clear()
    scheme = "http" if name == "http_proxy" else "https"
    failure = await failure_of(one_call(Session(f"{scheme}://mcp.invalid/mcp")))
    assert cause in failure.cause
    assert "Check HTTP_PROXY" in failure.remedy
    assert "sesame" not in failure.cause


async def test_a_url_with_its_scheme_in_capitals_is_checked_with_the_certificates_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from grue.transports.mcp import sdk_http

    monkeypatch.setenv("SSL_CERT_FILE", "/absent/ca.pem")
    sdk_http._tls.cache_clear()
    failure = await failure_of(one_call(Session("HTTPS://mcp.invalid/mcp")))
    assert "cannot be used: [Errno 2] No such file" in failure.cause


@pytest.mark.slow
async def test_r6_1_a_plain_server_has_no_secure_connection() -> None:
    with faulty_http_server() as url:
        failure = await failure_of(one_call(Session(url.replace("http:", "https:"))))
    assert failure.cause.startswith("no secure connection to 127.0.0.1:")
    assert failure.remedy == "For a plain server, use http:// in `url`."


async def test_the_remedy_for_an_unknown_certificate_names_the_variable_for_one_s_own(tmp_path: Path) -> None:
    server, _ = tls_contexts(tmp_path)
    with server.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True) as listener:
        shaken_hands = threading.Thread(target=accept_once, args=[listener])
        shaken_hands.start()
        failure = await failure_of(one_call(Session(f"https://127.0.0.1:{listener.getsockname()[1]}/mcp")))
    shaken_hands.join()
    assert "self-signed certificate" in failure.cause
    assert "set SSL_CERT_FILE to the file" in failure.remedy


def accept_once(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the client does not trust this certificate
        listener.accept()[0].close()


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        ("--status call=404", "session lost: the server does not know this session any more"),
        ("--status call=401", "the server does not accept the credentials (HTTP 401 Unauthorized)"),
        (
            "--status call=302 --location http://other/x",
            "the server redirects to http://other/x (HTTP 302), which is not followed: what is sent is meant",
        ),
        ("--status call=301 --location /x", "which is not followed: it would turn the request into a GET"),
        ("--legacy --status call=404", "session lost"),
    ],
)
@pytest.mark.slow
async def test_what_ends_the_session_in_a_call_says_so_at_once(flags: str, cause: str) -> None:
    with faulty_http_server(*flags.split()) as url:
        failure = await failure_of(one_call(Session(url, "sse" if "--legacy" in flags else "http")))
    assert failure.phase == "call"
    assert cause in failure.cause


@pytest.mark.slow
async def test_a_server_that_is_gone_before_a_call_ends_the_session() -> None:
    with faulty_http_server("--exit-after", "list") as url:
        session = Session(url)
        with anyio.fail_after(GUARD_S):
            async with session.opened() as client:
                await until_refused(url)
                failure = await failure_of(client.call("echo", HI, GUARD_S))
    assert (failure.phase, failure.cause.partition(" by ")[0]) == ("call", "connection refused")


async def until_refused(url: str) -> None:
    """Wait until nobody listens at the port of `url`: the process of the server has ended."""
    host, port = url.split("/")[2].split(":")
    with contextlib.suppress(OSError):
        while True:
            await (await anyio.connect_tcp(host, int(port))).aclose()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (400, -32000, "No valid session ID provided"),
        (404, -32001, "Session not found"),
        (404, -32600, "nothing here"),
    ],
)
@pytest.mark.slow
async def test_a_session_that_the_server_has_forgotten_is_lost_whatever_status_says_so(
    status: int, code: int, message: str
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}})
    flags = ("--status", f"call={status}", "--body", body, "--body-type", "application/json")
    with faulty_http_server(*flags) as url:
        failure = await failure_of(one_call(Session(url)))
    assert failure.cause.startswith("session lost")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--reset-at call", "was lost before the answer came: Connection reset by peer"),
        ("--cut-at call", "was lost before the answer came: peer closed connection"),
        ("--cut-at call --events", "the connection was closed before the answer was complete"),
        ("--cut-at call --events", "A tool call that was cut off may have taken effect."),
        ("--status call=503 --body busy", "the server failed (HTTP 503 Service Unavailable: busy)"),
        ("--status call=429", "the server has had too many requests (HTTP 429 Too Many Requests)"),
        ("--status call=418", "the server refused the request (HTTP 418 I'm a Teapot)"),
        ("--page-at call", "it answered with text/html instead of an MCP message (HTTP 200)"),
        ("--garbage-at call", "its answer is not an MCP message"),
        ("--null-at call", "The server's answer is not usable: result is null"),
        ("--null-at call --events", "its answer is not an MCP message"),
        ("--huge-result 200000", "its answer is longer than 100000 bytes"),
        ("--huge-result 200000 --events", "too large: 200"),
        ("--legacy --huge-result 200000", "and at most 100000 are read"),
        ("--encoding gzip --huge-result 9", "its answer is compressed, though it was asked not to compress"),
        ("--encoding gzip --huge-result 9 --events", "its answer is compressed"),
        ("--legacy --status call=500", "the server failed (HTTP 500 Internal Server Error)"),
        ("--legacy --null-at call", "The server's answer is not usable: result is null"),
    ],
)
@pytest.mark.slow
async def test_r6_4_a_bad_answer_costs_only_its_call(flags: str, words: str) -> None:
    with faulty_http_server(*flags.split()) as url:
        session = Session(url, "sse" if "--legacy" in flags else "http")
        assert words in await refusal_of(session, limits=SMALL)


@pytest.mark.parametrize(
    "flags",
    [
        "--events",
        "--stateless",
        "--status get=500",
        "--reset-at get",
        "--page-at get",
        "--status initialized=401",
        "--reset-at delete",
        "--status delete=405",
        "--drip 0.0001",
        "--legacy",
    ],
)
@pytest.mark.usefixtures("no_limit_for_closing")
@pytest.mark.slow
async def test_faults_that_need_not_matter_do_not(flags: str) -> None:
    with faulty_http_server(*flags.split()) as url:
        session = Session(url, "sse" if "--legacy" in flags else "http")
        assert await one_call(session) == ECHO


@pytest.mark.slow
async def test_a_notification_that_is_never_taken_holds_up_nothing_for_long() -> None:
    with faulty_http_server("--silent-at", "initialized") as url:
        assert await one_call(Session(url, connect_timeout_s=2.0)) == ECHO


@pytest.mark.slow
async def test_a_redirect_within_the_server_is_followed() -> None:
    with real_http_server() as url:
        assert await one_call(Session(f"{url}/")) == ECHO


@pytest.mark.parametrize(
    "flags", ["--silent-at call", "--silent-at call --silent-at cancel", "--legacy --silent-at call"]
)
@pytest.mark.slow
async def test_a_timeout_holds_call_after_call(flags: str) -> None:
    with faulty_http_server(*flags.split()) as url, anyio.fail_after(GUARD_S):
        async with Session(url, "sse" if "--legacy" in flags else "http").opened() as client:
            for _ in range(3):
                with pytest.raises(ToolTimedOutError):
                    await client.call("echo", HI, 0.2)


async def test_p9_closing_takes_a_second_at_most() -> None:
    with faulty_http_server("--silent-at", "delete") as url:
        session = Session(url)
        assert await one_call(session) == ECHO
    assert session.closing_took_s > 0.9 * http_wire._LEAVE_S
    assert http_wire._LEAVE_S <= 1.0


@pytest.mark.slow
async def test_many_sessions_in_one_process_leave_nothing() -> None:
    with faulty_http_server() as url, assert_nothing_left(), anyio.fail_after(30):
        for _ in range(10):
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(_use, url)


async def _use(url: str) -> None:
    async with McpClient(HttpServer(name="far", url=url), ProcessRegistry()) as client:
        await client.open(60)
        assert await client.call("echo", HI, 60) == ECHO


@pytest.mark.parametrize("flags", ["--cut-at call", "--cut-at call --events", "--reset-at call"])
@pytest.mark.slow
async def test_after_an_answer_that_was_cut_off_the_session_goes_on(flags: str) -> None:
    with faulty_http_server(*flags.split()) as url:
        async with McpClient(HttpServer(name="far", url=url), ProcessRegistry()) as client:
            await client.open(GUARD_S)
            for _ in range(2):
                with pytest.raises(ToolRefusedError):
                    await client.call("echo", {"text": "hi"}, GUARD_S)
                assert client.status.alive
            assert (await client.request("tools/list", {}, GUARD_S))["tools"]
