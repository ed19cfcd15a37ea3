"""A chat completions endpoint on loopback that plays a script: so many tool calls, then a text.

The model's name is the script: `calls-3` asks for the first tool on offer in three replies, one call each,
and answers `done` after that. It runs as a process of its own, so that none of its work counts with the
caller's, prints its port, and ends when its input ends. Each reply is one write without Nagle's delay; in two
packets, or with the delay, every request would take 40 ms longer.

`GET /sent` returns the requests and bytes that came in since it was asked last.
"""

import asyncio
import itertools
import json
import sys
from typing import Any, ClassVar

ARGUMENTS = json.dumps({"text": "a brass lantern"})
_numbers = itertools.count(1)


def message_for(request: dict[str, Any]) -> dict[str, Any]:
    """Return the assistant's next message."""
    wanted = int(request["model"].partition("-")[2])
    asked = sum(1 for message in request["messages"] if message.get("tool_calls"))
    if asked >= wanted:
        return {"role": "assistant", "content": "done"}
    function = {"name": request["tools"][0]["function"]["name"], "arguments": ARGUMENTS}
    call = {"id": f"call_{next(_numbers)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def completion(request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a chat completions request."""
    message = message_for(request)
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {
        "id": "chatcmpl-benchmark",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


class Connection(asyncio.Protocol):
    """One connection, kept alive; asyncio turns Nagle's delay off."""

    received: ClassVar = {"requests": 0, "bytes": 0}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._unread = bytearray()

    def data_received(self, chunk: bytes) -> None:
        self._unread += chunk
        while (end := self._unread.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._unread[:end]).decode("latin-1").split("\r\n")
            lengths = [line for line in head if line.lower().startswith("content-length:")]
            whole = end + 4 + (int(lengths[0].partition(":")[2]) if lengths else 0)
            if len(self._unread) < whole:
                return
            body = bytes(self._unread[end + 4 : whole])
            del self._unread[:whole]
            self._reply(self._answer(head[0], body))

    def _answer(self, request_line: str, body: bytes) -> dict[str, Any]:
        if request_line.startswith("GET"):
            counted = dict(self.received)
            self.received.update(requests=0, bytes=0)
            return counted
        self.received["requests"] += 1
        self.received["bytes"] += len(body)
        return completion(json.loads(body))

    def _reply(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


async def main() -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=512)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
