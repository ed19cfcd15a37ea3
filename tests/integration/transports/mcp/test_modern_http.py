"""Servers by URL of the revision 2026-07-28 only: how they refuse a handshake, and what they route by."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

import modern_server
from case_tables import each_case

from grue.engine.outside_turns.tool_client import ToolClient
from grue.messages import SessionOpened
from grue.runtime.processes.process_group import ProcessRegistry
from grue.tool_sessions.connection import Listing
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp.client import McpClient
from grue.transports.mcp.client_options import ClientOptions

ROUTED = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "text": {"type": "string"}},
}
WRONG = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "no token"}}}
TOOLS = [{"name": "route", "inputSchema": ROUTED}, {"name": "wrong", "inputSchema": WRONG}]
REFUSALS: dict[str, dict[str, Any]] = {
    "for its headers": {"error": {"code": -32020, "message": "Missing MCP-Protocol-Version header"}},
    "for its revision": {"error": {"code": -32022, "message": "Unsupported protocol version"}},
    "by an answer that has no handshake": {
        "result": {
            "protocolVersion": modern_server.VERSION,
            "capabilities": {},
            "serverInfo": {"name": "s", "version": "1"},
        }
    },
}


HANDSHAKE: dict[str, Any] = {
    "result": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    }
}


class Modern(ThreadingHTTPServer):
    """Answers as `refusal` says to a handshake, and notes the headers of each call."""

    refusal: dict[str, Any]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls: list[dict[str, str]] = []
        self.sessions = 0
        """How many sessions were begun, each of which no other request finds."""


class Handler(BaseHTTPRequestHandler):
    server: Modern

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, status = message["method"], 200
        body: dict[str, Any]
        if "mcp-session-id" in self.headers:
            self._say(404, b"{}")
            return
        if method == "initialize":
            body = self.server.refusal
            status = 400 if "error" in body else 200
            self.server.sessions += body is HANDSHAKE
        elif method == "tools/list":
            listed = {"resultType": "complete", "tools": TOOLS, "ttlMs": 0, "cacheScope": "private"}
            body = {"result": listed}
        elif method == "tools/call":
            self.server.calls.append({name.lower(): value for name, value in self.headers.items()})
            body = {"result": {"resultType": "complete", "content": [{"type": "text", "text": "routed"}]}}
        else:
            body = {"result": modern_server.answer(method, message.get("params", {}))}
        content = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **body}).encode()
        self._say(status if "id" in message else 202, content, session=body is HANDSHAKE)

    def _say(self, status: int, content: bytes, *, session: bool = False) -> None:
        self.send_response(status)
        if session:
            self.send_header("mcp-session-id", "of-another-server")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def modern() -> Iterator[Modern]:
    with Modern() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@each_case("refusal", REFUSALS)
@pytest.mark.slow
def test_a_handshake_that_is_refused_is_followed_by_discovery(modern: Modern, refusal: str) -> None:
    modern.refusal = REFUSALS[refusal]
    modern.calls.clear()
    server = HttpServer(name="far", url=f"http://127.0.0.1:{modern.server_port}/mcp")
    with ToolClient({"far": server}) as client:
        opened = client.connect()["far"]
        assert isinstance(opened, SessionOpened), opened
        assert opened.protocol_version == modern_server.VERSION
        assert [tool.tool for tool in opened.tools] == ["route"], "a tool with wrong marks is left out"
        assert client.call("far.route", {"region": "Nïce", "text": "hi"}).content == "routed"
        assert client.call("far.route", {"text": "hi"}).content == "routed"
    marked, unmarked = modern.calls
    assert (marked["mcp-method"], marked["mcp-name"]) == ("tools/call", "route")
    assert marked["mcp-param-region"] == "=?base64?TsOvY2U=?="
    assert not [name for name in unmarked if name.startswith("mcp-param-")]


class OldHandler(Handler):
    """A server that knows sessions only, and refuses all else as HTTP servers do: without JSON-RPC."""

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if message["method"] != "initialize" and "mcp-session-id" not in self.headers:
            self._say(400, b"Bad Request: Missing session ID")
            return
        tools = {"result": {"tools": [{"name": "old", "inputSchema": {"type": "object"}}]}}
        body = HANDSHAKE if message["method"] == "initialize" else tools
        content = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **body}).encode()
        self._say(200 if "id" in message else 202, content, session=body is HANDSHAKE)


def test_a_server_that_knows_no_discovery_any_more_gets_a_handshake() -> None:
    with Modern() as server:
        server.RequestHandlerClass = OldHandler
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        old = HttpServer(name="far", url=f"http://127.0.0.1:{server.server_port}/mcp")

        async def opened() -> Listing:
            options = ClientOptions(spoken=lambda: modern_server.VERSION)
            async with McpClient(old, ProcessRegistry(), options) as client:
                return await client.open(30)

        try:
            listing = asyncio.run(opened())
        finally:
            server.shutdown()
            thread.join()
    assert listing.protocol_version == "2025-11-25"
    assert [tool.tool for tool in listing.tools] == ["old"]


def test_servers_of_both_eras_that_lose_each_others_sessions_are_used_without_one(modern: Modern) -> None:
    modern.refusal = HANDSHAKE
    modern.calls.clear()
    server = HttpServer(name="far", url=f"http://127.0.0.1:{modern.server_port}/mcp")
    with ToolClient({"far": server}) as client:
        opened = client.connect()["far"]
        assert isinstance(opened, SessionOpened), opened
        assert client.call("far.route", {"text": "hi"}).content == "routed"
    assert modern.sessions == 1
    assert [call["mcp-protocol-version"] for call in modern.calls] == [modern_server.VERSION]
