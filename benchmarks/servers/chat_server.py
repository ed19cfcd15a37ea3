"""A chat completions endpoint on loopback that plays a script: so many tool calls, then a text.

The model's name is the script: `calls-3` asks for the first tool on offer in three replies, one call each,
and answers `done` after that; where the caller wants its answer by a tool `final_answer`, by a call of it. It
runs as a process of its own, so that none of its work counts with the caller's, prints its port, and ends
when its input ends. Each reply, streamed or not, is one write without Nagle's delay; in two packets, or with
the delay, every request would take 40 ms longer.

With `--delay-ms 300` each reply is sent 300 ms after its request. With `--certificate FILE` it serves HTTPS.

`GET /sent` returns the requests and bytes that came in since it was asked last, and when the first of these
requests began to come in: `time.perf_counter()`, which is the same clock in all processes of a Linux machine.
`GET /last` returns the last message of the last request.
"""

import argparse
import asyncio
import itertools
import json
import ssl
import sys
import time
from typing import Any, ClassVar

FINAL = "final_answer"
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
EXAMPLES = {"string": "a brass lantern", "integer": 1, "number": 1.0, "boolean": False}
_numbers = itertools.count(1)


def message_for(request: dict[str, Any]) -> dict[str, Any]:
    """Return the assistant's next message."""
    wanted = int(request["model"].partition("-")[2])
    # Not by `tool_calls`: smolagents tells the calls of the past as text.
    asked = sum(1 for message in request["messages"] if message["role"] == "assistant")
    functions = {tool["function"]["name"]: tool["function"] for tool in request.get("tools", ())}
    final = functions.pop(FINAL, None)
    if asked < wanted:
        (name, function), *_ = functions.items()
        return _calling(name, _arguments_for(function["parameters"]))
    return _calling(FINAL, {"answer": "done"}) if final else {"role": "assistant", "content": "done"}


def _calling(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{next(_numbers)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = {name: schema["properties"][name]["type"] for name in schema.get("required", ())}
    # A property may be of one kind out of a list.
    return {name: EXAMPLES[kind if isinstance(kind, str) else kind[0]] for name, kind in kinds.items()}


def completion(request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a chat completions request."""
    message = message_for(request)
    choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
    return {**_head(request, "chat.completion"), "choices": [choice], "usage": USAGE}


def stream(request: dict[str, Any]) -> bytes:
    """Return the reply as server-sent events: the whole message, why it ends, and what it cost."""
    message = message_for(request)
    head = _head(request, "chat.completion.chunk")
    if message.get("tool_calls"):
        message["tool_calls"][0]["index"] = 0
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(message)}]},
    ]
    if (request.get("stream_options") or {}).get("include_usage"):
        chunks.append({**head, "choices": [], "usage": USAGE})
    events = [*map(json.dumps, chunks), "[DONE]"]
    return "".join(f"data: {event}\n\n" for event in events).encode()


def _head(request: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-benchmark", "object": kind, "created": 0, "model": request["model"]}


def _finish(message: dict[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


class Connection(asyncio.Protocol):
    """One connection, kept alive; asyncio turns Nagle's delay off."""

    delay_s: ClassVar = 0.0
    received: ClassVar[dict[str, float]] = {"requests": 0, "bytes": 0, "first_at": 0.0}
    last: ClassVar[dict[str, Any]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._unread = bytearray()
        self._began_at = 0.0

    def data_received(self, chunk: bytes) -> None:
        if not self._unread:
            self._began_at = time.perf_counter()
        self._unread += chunk
        while (end := self._unread.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._unread[:end]).decode("latin-1").split("\r\n")
            lengths = [line for line in head if line.lower().startswith("content-length:")]
            whole = end + 4 + (int(lengths[0].partition(":")[2]) if lengths else 0)
            if len(self._unread) < whole:
                return
            body = bytes(self._unread[end + 4 : whole])
            del self._unread[:whole]
            answer = self._answer(head[0].split()[1], body)
            if body and self.delay_s:
                asyncio.get_running_loop().call_later(self.delay_s, self._reply, *answer)
            else:
                self._reply(*answer)

    def _answer(self, path: str, body: bytes) -> tuple[str, bytes]:
        if not body:
            return "application/json", json.dumps(self._told(path)).encode()
        request = json.loads(body)
        if not self.received["requests"]:
            self.received["first_at"] = self._began_at
        self.received["requests"] += 1
        self.received["bytes"] += len(body)
        self.last.update(message=request["messages"][-1])
        if request.get("stream"):
            return "text/event-stream", stream(request)
        return "application/json", json.dumps(completion(request)).encode()

    def _told(self, path: str) -> dict[str, Any]:
        if path == "/last":
            return self.last
        counted = dict(self.received)
        self.received.update(requests=0, bytes=0, first_at=0.0)
        return counted

    def _reply(self, kind: str, body: bytes) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


async def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description="A scripted chat completions endpoint.")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="time from a request to its reply")
    parser.add_argument("--certificate", help="file with a key and its certificate: serve HTTPS")
    options = parser.parse_args()
    Connection.delay_s = options.delay_ms / 1e3
    tls = None
    if options.certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.certificate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=512, ssl=tls)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
