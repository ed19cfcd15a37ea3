"""An MCP server over HTTP with faults that are selected by flags, for testing clients.

Without flags it is a correct small server with two tools: `echo` (returns `text`) and `fail` (a tool error).
It speaks Streamable HTTP, or with `--legacy` the older SSE transport, at any path. It prints its port as the
first line. Each flag adds one fault, and flags can be combined:

```python
from faulty_http_server import faulty_http_server

with faulty_http_server("--status", "call=503") as url:
    ...
```

PHASE is `get`, `initialize`, `initialized`, `list`, `call`, `cancel` or `delete`. Standard library only.
"""

import argparse
import contextlib
import json
import os
import queue
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PHASES = {
    "initialize": "initialize",
    "notifications/initialized": "initialized",
    "tools/list": "list",
    "tools/call": "call",
    "notifications/cancelled": "cancel",
}
PAGE = b"<!doctype html><title>Log in</title><p>Log in to go on."
FLOODS = {
    "comments": b": still here\n",
    "blank": b"\n",
    "pings": b'data: {"jsonrpc":"2.0","id":"p","method":"ping"}\n\n',
    "logs": b'data: {"jsonrpc":"2.0","method":"notifications/message",'
    b'"params":{"level":"info","data":"x"}}\n\n',
    "garbage": b"event: odd\ndata: x\n\n",
    "endless": b"data: " + b"x" * 4096,
}
"""The choices of `--flood`: what to write repeatedly."""

_JSON = "application/json"
_EVENTS = "text/event-stream"
_RESET = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that makes closing a connection reset it."""


def argv(*flags: str) -> tuple[str, ...]:
    """Return the command line that runs this server with `flags`, in this interpreter."""
    return (sys.executable, "-I", __file__, *flags)


@contextlib.contextmanager
def faulty_http_server(*flags: str) -> Iterator[str]:
    """Run the server with `flags` until the block is left; yield its URL."""
    with subprocess.Popen(argv(*flags), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None, "it is a pipe"
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/mcp"
        finally:
            server.kill()


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="faulty_http_server", description="An MCP server over HTTP, with the faults that the flags add."
    )
    add = parser.add_argument
    add("--legacy", action="store_true", help="speak the SSE transport instead of Streamable HTTP")
    add("--events", action="store_true", help="answer with a stream of events instead of JSON")
    add("--stateless", action="store_true", help="give no session id")
    add("--status", metavar="PHASE=CODE", action="append", default=[], help="answer with this status")
    add("--location", metavar="URL", help="send this Location header, for a status of 3xx")
    add("--body", metavar="TEXT", default="", help="body of the answers with a --status")
    add("--body-type", metavar="TYPE", default="text/plain", help="content type of that body")
    add("--silent-at", metavar="PHASE", action="append", default=[], help="read the request, never answer")
    add("--half-open", action="store_true", help="accept connections, never read from them")
    add("--reset-at", metavar="PHASE", action="append", default=[], help="reset the connection instead")
    add("--close-at", metavar="PHASE", action="append", default=[], help="close the connection instead")
    add("--cut-at", metavar="PHASE", action="append", default=[], help="close it halfway through the answer")
    add("--exit-at", metavar="PHASE", help="exit instead of answering")
    add("--exit-after", metavar="PHASE", help="exit after the answer")
    add("--drip", metavar="SECONDS", type=float, help="send bodies byte by byte, with this pause between")
    add("--page-at", metavar="PHASE", action="append", default=[], help="answer with a web page")
    add("--null-at", metavar="PHASE", action="append", default=[], help="answer with `result: null`")
    add("--garbage-at", metavar="PHASE", action="append", default=[], help="answer with invalid JSON")
    add("--huge-result", metavar="BYTES", type=int, default=0, help="answer calls with that much text")
    add("--rows", metavar="BYTES", type=int, default=0, help="answer calls with that much structured content")
    add("--encoding", metavar="NAME", help="send this Content-Encoding header with answers to calls")
    add("--flood", choices=tuple(FLOODS), help="write this forever, as events, instead of answering calls")
    add("--elsewhere", metavar="URL", help="with --legacy: announce this URL as the endpoint")
    add("--record", metavar="FILE", help="append a line for each request to FILE: phase and headers")
    return parser


class FaultyHttpServer(ThreadingHTTPServer):
    """Serves each connection in a thread, with the faults of `flags`."""

    daemon_threads = True

    def __init__(self, flags: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.flags = flags
        self.statuses = dict(each.split("=") for each in flags.status)
        self.streams: dict[str, queue.Queue[bytes]] = {}

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, or hold it open without reading (`--half-open`)."""
        if self.flags.half_open:
            _sleep_for_ever()
        super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing when a client has closed its connection."""


class Exchange(BaseHTTPRequestHandler):
    """One connection. Each request is answered, or fails if its phase has a fault."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultyHttpServer
    phase = ""

    def do_POST(self) -> None:
        """Answer a message."""
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.phase = PHASES.get(message.get("method"), "other")
        if self._fails():
            return
        if self.server.flags.legacy and "session_id" not in self.path:
            self._send(405, b"")  # this path serves the event stream, which takes only GET
            return
        if self.phase == "call" and self.server.flags.flood:
            self._flood_answer()
            return
        answer = self._answer(message)
        if answer is None:
            self._send(202, b"")
        elif self.server.flags.legacy:
            self._send(202, b"")
            self.server.streams["1"].put(answer)
        elif self.server.flags.events:
            self._send(200, b"event: message\ndata: " + answer + b"\n\n", _EVENTS)
        else:
            self._send(200, answer)

    def do_GET(self) -> None:
        """Open the event stream of the SSE transport; refuse it for Streamable HTTP."""
        self.phase = "get"
        if self._fails():
            return
        if self.server.flags.legacy:
            self._serve_events()
        else:
            self._send(405, b"")

    def do_DELETE(self) -> None:
        """End the session."""
        self.phase = "delete"
        if not self._fails():
            self._send(200, b"")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing about a request."""

    def _serve_events(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", _EVENTS)
        self.send_header("connection", "close")
        self.end_headers()
        if "get" in self.server.flags.cut_at:
            return
        answers = self.server.streams.setdefault("1", queue.Queue())
        endpoint = self.server.flags.elsewhere or "/messages?session_id=1"
        self.wfile.write(b"event: endpoint\ndata: " + endpoint.encode() + b"\n\n")
        while True:
            answer = answers.get()
            if not answer:
                self._flood()
            self._write(b"event: message\ndata: " + answer + b"\n\n")

    def _flood_answer(self) -> None:
        if self.server.flags.legacy:
            self._send(202, b"")
            self.server.streams["1"].put(b"")
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", _EVENTS)
        self.send_header("connection", "close")
        self.end_headers()
        self._flood()

    def _flood(self) -> None:
        flood = FLOODS[self.server.flags.flood]
        flood *= max(1, 65_536 // len(flood))
        while True:
            self.wfile.write(flood)

    def _fails(self) -> bool:
        """Carry out the fault that replaces an answer in this phase; return False if there is none."""
        flags, phase = self.server.flags, self.phase
        if flags.record:
            with open(flags.record, "a") as record:  # noqa: PTH123 - pathlib would slow down the start
                record.write(json.dumps({"phase": phase, "headers": dict(self.headers)}) + "\n")
        if flags.exit_at == phase:
            os._exit(1)
        if phase in flags.silent_at:
            _sleep_for_ever()
        if phase in flags.reset_at or phase in flags.close_at:
            if phase in flags.reset_at:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._hang_up()
            return True
        if phase in self.server.statuses:
            self._send(int(self.server.statuses[phase]), flags.body.encode(), flags.body_type)
            return True
        if phase in flags.page_at:
            self._send(200, PAGE, "text/html; charset=utf-8")
            return True
        return False

    def _answer(self, message: dict[str, Any]) -> bytes | None:
        if "id" not in message or "method" not in message:
            return None
        if self.phase in self.server.flags.garbage_at:
            return b'{"half": '
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], **self._outcome(message)}).encode()

    def _outcome(self, message: dict[str, Any]) -> dict[str, Any]:
        params = message.get("params") or {}
        if self.phase in self.server.flags.null_at:
            return {"result": None}
        if self.phase == "initialize":
            named = {"serverInfo": {"name": "faulty", "version": "1.0"}, "capabilities": {"tools": {}}}
            return {"result": {"protocolVersion": params.get("protocolVersion"), **named}}
        if self.phase == "list":
            schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            return {"result": {"tools": [{"name": name, "inputSchema": schema} for name in ("echo", "fail")]}}
        if self.phase == "call":
            text = params["arguments"].get("text", "") + "x" * self.server.flags.huge_result
            content = [{"type": "text", "text": text}]
            rows: Any = {"rows": [[]] * (self.server.flags.rows // 4)}
            structured = {"structuredContent": rows} if self.server.flags.rows else {}
            return {"result": {"content": content, "isError": params["name"] == "fail", **structured}}
        return {"error": {"code": -32601, "message": f"Method not found: {message['method']}"}}

    def _send(self, status: int, body: bytes, content_type: str = _JSON) -> None:
        flags, cut = self.server.flags, self.phase in self.server.flags.cut_at
        self.send_response(status)
        if body:
            self.send_header("content-type", content_type)
        if flags.encoding and self.phase == "call":
            self.send_header("content-encoding", flags.encoding)
        self.send_header("content-length", str(len(body)))
        if flags.location:
            self.send_header("location", flags.location)
        if self.phase == "initialize" and not flags.stateless and not flags.legacy:
            self.send_header("mcp-session-id", "session-1")
        self.end_headers()
        self._write(body[: len(body) // 2] if cut else body)
        if cut:
            self._hang_up()
        if flags.exit_after == self.phase:
            os._exit(0)

    def _write(self, body: bytes) -> None:
        if self.server.flags.drip is None:
            self.wfile.write(body)
            return
        for position in range(len(body)):
            self.wfile.write(body[position : position + 1])
            time.sleep(self.server.flags.drip)

    def _hang_up(self) -> None:
        self.close_connection = True
        # Do not call `shutdown`: it would close the connection with a FIN instead of a reset.
        self.rfile.close()
        self.connection.close()


def _sleep_for_ever() -> None:
    while True:
        time.sleep(3600)


def main() -> None:
    """Serve on a free port of the loopback interface until killed."""
    with FaultyHttpServer(_flags().parse_args()) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
