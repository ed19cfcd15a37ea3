"""A server by URL that says too much: time limits hold, and large answers arrive."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import anyio
import pytest
from faulty_http_server import FLOODS, faulty_http_server
from notices import Notice, noting
from rows import first_of

from grue.messages import ToolCallResult
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.failures import ServerFailed, ToolTimedOutError
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.client_options import ClientOptions

pytestmark = pytest.mark.anyio
WAYS = ("", "--events", "--legacy")
GUARD_S = 60.0


async def called(url: str, flags: str, call_s: float, notices: list[Notice] | None = None) -> ToolCallResult:
    transport: Literal["http", "sse"] = "sse" if "--legacy" in flags else "http"
    server = HttpServer(name="far", url=url, transport=transport)
    options = ClientOptions(
        limits=ProcessLimits(max_line_bytes=10_000_000, max_message_bytes=5_000_000),
        on_notice=noting(notices if notices is not None else []),
    )
    async with McpClient(server, ProcessRegistry(), options) as client:
        await client.open(GUARD_S)
        return await client.call("echo", {"text": "hi"}, call_s)


@pytest.mark.parametrize("legacy", first_of(["", "--legacy"]))
@pytest.mark.parametrize("flood", [name for name in FLOODS if name != "endless"])
@pytest.mark.slow
async def test_a_flood_of_events_does_not_delay_the_limit_of_a_call(flood: str, legacy: str) -> None:
    flags = f"{legacy} --flood {flood}"
    raises = pytest.raises((ToolTimedOutError, ServerFailed))
    with faulty_http_server(*flags.split()) as url, anyio.fail_after(GUARD_S), raises as caught:
        await called(url, flags, 0.5)
    assert isinstance(caught.value, ToolTimedOutError) or flood in ("pings", "logs")


@pytest.mark.slow
async def test_an_event_without_an_end_ends_the_stream() -> None:
    raises = pytest.raises(ServerFailed, match="a line longer than 10000000 bytes")
    with faulty_http_server("--legacy", "--flood", "endless") as url, anyio.fail_after(GUARD_S), raises:
        await called(url, "--legacy", GUARD_S)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
async def test_a_large_answer_arrives_whole(way: str) -> None:
    with faulty_http_server(*f"{way} --huge-result 3000000".split()) as url, anyio.fail_after(GUARD_S):
        result = await called(url, way, GUARD_S)
    assert result == ToolCallResult("hi" + "x" * 3_000_000)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
async def test_an_answer_with_too_many_values_arrives_as_its_json_text(way: str) -> None:
    notices: list[Notice] = []
    with faulty_http_server(*f"{way} --rows 1000000".split()) as url, anyio.fail_after(GUARD_S):
        result = await called(url, way, GUARD_S, notices)
    assert isinstance(result.content, str)
    assert result.content == '{"rows": [' + ", ".join(["[]"] * 250_000) + "]}"
    assert [notice.kind for notice in notices] == ["too_large"]


class BreakingServer(ThreadingHTTPServer):
    """Breaks off the stream of each call of `echo`, and answers the GET that resumes it.

    `answers`: whether it sends the result then, with the request's id as a text; else it breaks off again.
    With `talks`, it also breaks off the stream of its own messages.
    """

    daemon_threads = True

    def __init__(self, *, answers: bool, talks: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Breaking)
        self.answers = answers
        self.talks = talks
        self.seen: list[str] = []
        self.called: object = None


class _Breaking(BaseHTTPRequestHandler):
    server: BreakingServer

    def do_POST(self) -> None:
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append(str(asked.get("method")))
        result: object = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": _BREAKING}
        match asked:
            case {"method": "tools/call", "params": {"name": "echo"}}:
                self.server.called = asked["id"]
                self._say("text/event-stream", b"id: 1\nretry: 0\ndata: \n\n")
                return
            case {"method": "tools/call"}:
                result = {"content": []}
            case {"method": "tools/list"}:
                result = {"tools": [{"name": name, "inputSchema": {}} for name in ("echo", "whole")]}
            case {"method": "initialize"}:
                pass
            case _:
                self._say("application/json", b"", 202)
                return
        self._say("application/json", _answer(asked["id"], result))

    def do_GET(self) -> None:
        if "last-event-id" not in self.headers and not self.server.talks:
            self._say("text/plain", b"", 405)
            return
        self.server.seen.append("resume")
        text = {"content": [{"type": "text", "text": "x" * 100_000}]}
        data = _answer(str(self.server.called), text) if self.server.answers else b""
        self._say("text/event-stream", b"id: 2\nretry: 0\ndata: " + data + b"\n\n")

    def _say(self, kind: str, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if self.server.talks:
            self.send_header("mcp-session-id", "1")
        self.end_headers()
        self.wfile.write(body)

    def do_DELETE(self) -> None:
        self._say("text/plain", b"")

    def log_message(self, *args: object) -> None: ...


_BREAKING = {"name": "breaking", "version": "1"}


def _answer(request_id: object, result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode()


@contextlib.contextmanager
def breaking_server(*, answers: bool, talks: bool = False) -> Iterator[tuple[str, list[str]]]:
    with BreakingServer(answers=answers, talks=talks) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/mcp", server.seen
        finally:
            server.shutdown()
            thread.join()


async def test_a_large_answer_on_a_resumed_stream_arrives_whatever_form_its_id_has() -> None:
    with breaking_server(answers=True) as (url, _), anyio.fail_after(GUARD_S):
        assert await called(url, "", GUARD_S) == ToolCallResult("x" * 100_000)


@pytest.mark.slow
async def test_the_stream_of_a_call_that_has_timed_out_is_not_resumed() -> None:
    with breaking_server(answers=False) as (url, seen), anyio.fail_after(GUARD_S):
        async with McpClient(HttpServer(name="far", url=url), ProcessRegistry()) as client:
            await client.open(GUARD_S)
            with pytest.raises(ToolTimedOutError):
                await client.call("echo", {}, 0.3)
            while "notifications/cancelled" not in seen:
                await anyio.lowlevel.checkpoint()
            for _ in range(20):
                await client.call("whole", {}, GUARD_S)
    after = seen[seen.index("notifications/cancelled") :]
    assert after.count("resume") <= 1, "one may have been on its way"


async def test_a_stream_that_its_server_ends_at_once_is_not_opened_again_without_a_pause() -> None:
    """The server asks to be reconnected after 0 ms."""
    with breaking_server(answers=False, talks=True) as (url, seen), anyio.fail_after(GUARD_S):
        begun_at = anyio.current_time()
        async with McpClient(HttpServer(name="far", url=url), ProcessRegistry()) as client:
            await client.open(GUARD_S)
            while seen.count("resume") < 6:
                await anyio.lowlevel.checkpoint()
        assert anyio.current_time() - begun_at >= 0.5
