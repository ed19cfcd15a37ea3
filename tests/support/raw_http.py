"""A local HTTP server whose answers the test writes byte by byte, such as those of faulty servers."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketStream

Serve = Callable[[SocketStream], Awaitable[None]]
"""Answers one request, which has been read; what it raises because the client has gone is no accident."""


@asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[str]:
    """Run a server that calls `serve` for one request on each connection; yield the base URL."""

    async def connected(stream: SocketStream) -> None:
        try:
            async with stream:
                await _request(stream)
                await serve(stream)
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            return

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, connected)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port}/v1"
        group.cancel_scope.cancel()


async def _request(stream: SocketStream) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += await stream.receive()
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    while length and len(body) < int(length[1]):
        body += await stream.receive()
    return body


def head(content_type: str, *, status: str = "200 OK") -> bytes:
    """Return the head of a response whose body ends when the connection closes."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n".encode()
