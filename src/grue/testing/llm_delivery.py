"""Send a reply over a socket: whole, in part, slowly, or not at all."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from http.client import responses as _REASONS  # noqa: N812 - a table

from grue.testing.llm_replies import LlmReply, Pace

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that makes closing a connection send RST instead of FIN."""


def deliver(reply: LlmReply, connection: socket.socket, closing: threading.Event) -> bool:
    """Send a reply, and return whether to keep the connection.

    Args:
        reply: The reply; a stream has `events`.
        connection: Closed here only by a reset; otherwise the caller closes it.
        closing: Set when the server closes; ends every pause.

    Raises:
        OSError: The client has closed the connection.
    """
    for piece in _pieces(reply):
        connection.sendall(piece)
        if reply.pace is not None and closing.wait(reply.pace.every_s):
            return False
    if reply.then == "hang":
        closing.wait()
    if reply.then == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        # close() is not enough: the request handler has a file object on the socket, which keeps it open.
        os.close(connection.detach())
    return reply.then == "keep"


def _pieces(reply: LlmReply) -> Iterator[bytes]:
    """Yield the pieces to send, each with a write of its own."""
    if reply.then != "keep" and reply.after is None:
        yield reply.body
        return
    head, *body = _chunked(reply) if reply.events else _whole(reply)
    if reply.pace is not None:
        yield head
        yield from _cut(b"".join(body), reply.pace)
    elif reply.events:
        yield head
        yield from body
    else:
        # One write: a body in a second packet could be delayed until the first one is acknowledged.
        yield head + b"".join(body)


def _whole(reply: LlmReply) -> Iterator[bytes]:
    body = reply.body if reply.after is None else reply.body[: int(len(reply.body) * reply.after)]
    promised = body if reply.then == "keep" else reply.body
    yield _head(reply, {"Content-Length": str(len(promised))})
    yield body


def _chunked(reply: LlmReply) -> Iterator[bytes]:
    yield _head(reply, {"Transfer-Encoding": "chunked"})
    for event in reply.events[: share(len(reply.events), reply.after)]:
        yield b"%x\r\n%b\r\n" % (len(event), event)
    if reply.then == "keep":
        yield b"0\r\n\r\n"


def share(count: int, after: float | None) -> int:
    """Return the number of events in the fraction `after` of `count`; at least one, and not all of them."""
    return count if after is None else max(1, min(count - 1, int(count * after)))


def _cut(body: bytes, pace: Pace) -> Iterator[bytes]:
    for start in range(0, len(body), pace.size):
        yield body[start : start + pace.size]


def _head(reply: LlmReply, framing: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Unknown')}"]
    lines += [f"{name}: {value}" for name, value in {**reply.headers, **framing}.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
