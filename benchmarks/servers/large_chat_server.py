"""A chat completions endpoint on loopback whose replies are as long as the model's name says.

The name is KIND=BYTES: `text=10000000` answers with that much text, `arguments=BYTES` calls the first tool on
offer with arguments of that size and answers `done` afterwards, `call=0` calls it with none. Where a stream
is asked for the text comes in events of 4 kB. It runs as a process of its own, prints its port, and ends when
its input ends. What it sends is made before it is asked for, so that none of that counts.
"""

import contextlib
import json
import sys
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = 4096


@cache
def completion(kind: str, size: int, tool: str) -> bytes:
    """Return a reply that comes at once."""
    message: dict[str, object] = {"role": "assistant", "content": "x" * size}
    if kind != "text":
        arguments = json.dumps({"text": "x" * size}) if size else "{}"
        call = {"id": "c1", "type": "function", "function": {"name": tool, "arguments": arguments}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps(
        {"id": "1", "object": "chat.completion", "model": "large", "choices": [choice]}
    ).encode()


@cache
def stream(size: int) -> bytes:
    """Return the same text as events."""
    choice = {"index": 0, "delta": {"content": "x" * PIECE}}
    event = json.dumps({"id": "1", "object": "chat.completion.chunk", "model": "large", "choices": [choice]})
    end = event.replace('"delta": {"content": "' + "x" * PIECE + '"}', '"delta": {}, "finish_reason": "stop"')
    return f"data: {event}\n\n".encode() * max(1, size // PIECE) + f"data: {end}\n\ndata: [DONE]\n\n".encode()


class Exchange(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer a request."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        kind, _, size = asked["model"].partition("=")
        answered = any(message["role"] == "tool" for message in asked["messages"])
        tool = asked["tools"][0]["function"]["name"] if asked.get("tools") else ""
        streamed = bool(asked.get("stream")) and kind == "text"
        if streamed:
            body = stream(int(size))
        elif kind != "text" and answered:
            body = completion("text", 4, "")
        else:
            body = completion(kind, int(size), tool)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if streamed else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the caller has had enough
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep quiet."""


class Server(ThreadingHTTPServer):
    """Says nothing of callers that have gone."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet."""


def main() -> None:
    """Serve until the end of the input."""
    with Server(("127.0.0.1", 0), Exchange) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
