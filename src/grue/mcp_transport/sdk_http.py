"""The SDK's HTTP transports as one stream of messages that fails the way a process's pipes do.

The transports run in a task of their own, beside two unbounded queues, so that neither a send nor the end of
a session ever waits for the server. They are given a client (`_Client`) that lets no fault through to them:
most would make them end with an exception group, log a traceback, or never answer. Each fault becomes,
instead, the answer to the request that it befell.
"""

import contextvars
import functools
import logging
import math
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpcore2  # noqa: F401 - httpx2 does it with its first client: a turn is not to wait for that
import httpx2
import mcp_types as types
import msgspec
import pydantic
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from grue.mcp_transport.http import HttpServer
from grue.mcp_transport.http_faults import (
    COMPRESSED,
    CUT_SHORT,
    ENDPOINT_ELSEWHERE,
    NO_MESSAGE,
    NOT_TAKING,
    SESSION_LOST,
    TOO_MUCH,
    content_fault,
    redirect_fault,
    status_fault,
    too_long_fault,
    transport_fault,
)
from grue.mcp_transport.incoming import is_usable, read_any_message, refusal_of
from grue.mcp_transport.sdk import MOST_UNASKED, MessageStream, encode_message
from grue.mcp_transport.sdk_events import CalmEvents, LargeAnswers
from grue.mcp_transport.stdio import ProcessLimits
from grue.protocol.safe_text import beginning, plain_text
from grue.tool_sessions.failures import WireFault, first_fault
from grue.tool_sessions.notices import Notify

__all__ = ["HttpStream"]

_EVENTS = "text/event-stream"
_JSON = "application/json"
_SESSION_ID = "mcp-session-id"
_SAYS_CHARS = 200
_SAYS_BYTES = 65_536
_IDLE_S = 3.0
"""How long an unused connection is kept: less than the five seconds after which common servers close it, for
a request that meets the closing is lost."""

_MOST_WAITING = 1000
"""Messages of the server that wait for the session to take them; more wait with the server."""

_MOST_UNSENT = 10_000
"""Messages that wait for the server to take them, until it is given up."""

_LOOK_AGAIN_S = 0.002

_ELSEWHERE = "Endpoint origin does not match"
"""What the SDK logs, and then waits for ever, where a server names an endpoint at another host."""

_our_stream = contextvars.ContextVar["HttpStream | None"]("grue_http_stream", default=None)
"""Set in the tasks that the libraries run for us: whom to tell what they log."""


class HttpStream(MessageStream):
    """Both directions of a connection; see `MessageStream`.

    Attributes:
        broken: Why nothing more can be exchanged.
        remedy: What to do about that, where the fault says so.
        large: Answers that are kept from the SDK.
        notify: Hears of what the server does beside the protocol.
    """

    def __init__(self, server: HttpServer, limits: ProcessLimits, notify: Notify) -> None:
        self.large = LargeAnswers()
        self.notify = notify
        self.broken: str | None = None
        self.remedy: str | None = None
        self._server = server
        self._limits = limits
        self._unasked = 0
        self._arrived, self._inbound = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self._outbound, self._unsent = anyio.create_memory_object_stream[SessionMessage](math.inf)
        self._scope = anyio.CancelScope(shield=True)
        self._connected = False
        self._leaving = anyio.Event()
        self._left = anyio.Event()

    async def carry(self) -> None:
        """Connect, and carry messages both ways until `leave` or until the connection breaks. Never raises.

        Shielded, because ending the session takes an exchange of its own: `leave` ends it, always.
        """
        _our_stream.set(self)
        try:
            with self._scope:
                await self._carry()
        except Exception as error:  # noqa: BLE001 - whatever the transports raise means that they are broken
            self.break_off(_broken_by(error))
        finally:
            self.break_off(CUT_SHORT)
            self._outbound.close()
            self._unsent.close()
            self._left.set()

    async def leave(self, grace_s: float) -> None:
        """End the session at the server, which gets `grace_s` for it, also while being cancelled."""
        self._leaving.set()
        if self._connected:
            with anyio.move_on_after(grace_s, shield=True):
                await self._left.wait()
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._left.wait()
        self._inbound.close()

    def answer(self, request_id: int | str, message: types.JSONRPCMessage) -> None:
        """Deliver the server's answer to a request, under the id that the request had."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            message.id = request_id
        self._deliver(SessionMessage(message))

    def fail(self, request_id: int | str, fault: WireFault) -> None:
        """Answer a request with the fault that has befallen it."""
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=fault.cause, data=fault)
        self._deliver(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))

    def break_off(self, fault: WireFault) -> None:
        """End the stream; the first fault counts."""
        if self.broken is None:
            self.broken, self.remedy = fault.cause, fault.remedy
        self._arrived.close()

    def logged(self, text: str) -> None:
        """Take what a library logs on our behalf."""
        self.notify("noise", text)
        if text.startswith(_ELSEWHERE):
            self.break_off(ENDPOINT_ELSEWHERE)

    async def receive(self) -> SessionMessage | Exception:
        """Return the server's next message."""
        return await self._inbound.receive()

    async def send(self, item: SessionMessage) -> None:
        """Queue a message; never waits."""
        if self._outbound.statistics().current_buffer_used > _MOST_UNSENT:
            self.break_off(NOT_TAKING)
        if self.broken is not None:
            raise anyio.BrokenResourceError
        self._outbound.send_nowait(item)

    async def _carry(self) -> None:
        async with self._transport() as (read, write), anyio.create_task_group() as pumps:
            self._connected = True
            pumps.start_soon(self._receive_all, read)
            pumps.start_soon(self._send_all, write)
            await self._leaving.wait()
            pumps.cancel_scope.cancel()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Any, Any]]:
        if self._server.transport == "sse":
            # Its own factory makes the client.
            async with sse_client(self._server.url, httpx_client_factory=self._client) as streams:
                yield streams
        else:
            async with (
                self._client() as client,
                streamable_http_client(
                    self._server.url, http_client=client, max_sse_event_size=self._limits.max_line_bytes
                ) as streams,
            ):
                yield streams

    def _client(self, *_: object, **__: object) -> "_Client":
        return _Client(self, self._server, self._limits)

    async def _receive_all(self, read: Any) -> None:
        async for item in read:
            await self._wait_for_room()
            if not isinstance(item, Exception):
                if is_usable(item.message):
                    item.message = self.large.put_back(item.message)
                    self._deliver(_in_our_words(item))
                continue
            self.notify("noise", first_fault(item))
            refusal = _refusal_in(item)
            if refusal is not None:
                self._deliver(SessionMessage(refusal))
        self._leaving.set()  # and what the transport raises now is the reason

    async def _send_all(self, write: Any) -> None:
        async for item in self._unsent:
            await write.send(item)

    async def _wait_for_room(self) -> None:
        """Read on when what was read before is being taken."""
        while self.broken is None and self._arrived.statistics().current_buffer_used > _MOST_WAITING:  # noqa: ASYNC110
            await anyio.sleep(_LOOK_AGAIN_S)

    def _deliver(self, item: SessionMessage) -> None:
        answers = isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError)
        self._unasked = 0 if answers else self._unasked + 1
        if self._unasked > MOST_UNASKED:
            self.break_off(TOO_MUCH)
        if self.broken is None:
            self._arrived.send_nowait(item)


class _Client(httpx2.AsyncClient):
    """A client for one server that answers its user whatever happens.

    Its timeouts are for connecting and for notifications, which nobody waits for; whoever waits for an answer
    has a time limit of their own.
    """

    def __init__(self, stream: HttpStream, server: HttpServer, limits: ProcessLimits) -> None:
        connect_s = server.connect_timeout_s
        super().__init__(
            # Not compressed: what is read can be no longer than what was sent.
            headers={"accept-encoding": "identity", **server.headers},
            timeout=httpx2.Timeout(None, connect=connect_s),
            limits=httpx2.Limits(keepalive_expiry=_IDLE_S),
            verify=_tls(secure=server.url.startswith("https")),
        )
        self._stream = stream
        self._server = server
        self._max_message_bytes = min(limits.max_message_bytes, limits.max_line_bytes)
        self._max_event_bytes = limits.max_line_bytes

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; a fault goes to the stream, and the caller gets an answer that it can ignore."""
        head = await _head(request)
        limit_s = None if _is_awaited(request, head) else self._server.connect_timeout_s
        try:
            with anyio.fail_after(limit_s):
                response = await super().send(request, **options)
                outcome = await self._judge(request, response, head)
        except TimeoutError:
            return _taken(request)
        except httpx2.RequestError as error:
            where = f"{request.url.host}:{request.url.port or (443 if request.url.scheme == 'https' else 80)}"
            outcome = transport_fault(error, where, self._server.connect_timeout_s)
        return self._refused(request, head, outcome) if isinstance(outcome, WireFault) else outcome

    def _refused(self, request: httpx2.Request, head: "_Head", fault: WireFault) -> httpx2.Response:
        if head.is_request and head.id is not None:
            self._stream.fail(head.id, fault)
        elif request.method == "GET" and self._server.transport == "sse":
            self._stream.break_off(fault)
            return httpx2.Response(503, request=request)
        # A stream for the server's own messages is an offer; it is declined with a 405.
        return httpx2.Response(405, request=request) if request.method == "GET" else _taken(request)

    async def _judge(
        self, request: httpx2.Request, response: httpx2.Response, head: "_Head"
    ) -> httpx2.Response | WireFault:
        """Return a response that the transport can use, or what is wrong with it."""
        following = response.next_request
        if following is not None and _stays(request, following):
            return response
        awaited = _is_awaited(request, head)
        if awaited and response.is_success and _is_compressed(response):
            await response.aclose()
            return COMPRESSED
        if awaited and response.is_success and _kind(response) == _EVENTS:
            answered = head.id if request.method == "POST" else None
            limits = (self._max_message_bytes, self._max_event_bytes)
            stream = self._stream
            response.stream = CalmEvents(response.stream, answered, stream.large, stream.notify, limits)
            return response
        try:
            if awaited and following is not None:
                url = following.url.copy_with(userinfo=b"", query=None, fragment=None)
                return redirect_fault(response.status_code, plain_text(str(url)))
            if response.is_success and request.method == "GET":
                return content_fault(response.status_code, _kind(response))
            if not awaited or (response.is_success and self._server.transport == "sse"):
                return _taken(request)
            return await self._read(request, response, head)
        finally:
            await response.aclose()

    async def _read(
        self, request: httpx2.Request, response: httpx2.Response, head: "_Head"
    ) -> httpx2.Response | WireFault:
        """Read the body of an answer, or of a refusal."""
        body = await _body(response, self._max_message_bytes if response.is_success else _SAYS_BYTES)
        if body is None:
            return too_long_fault(self._max_message_bytes)
        message = await read_any_message(body) if _kind(response) == _JSON else None
        if not response.is_success:
            fault = _refusal(request, response, message, body)
            if fault is not None:
                return fault
        elif _kind(response) != _JSON:
            return content_fault(response.status_code, _kind(response))
        if message is None or head.id is None:
            return NO_MESSAGE
        if head.method == "initialize" and response.is_success:
            # The transport takes the session's id from this response's headers.
            kept = {name: value for name, value in response.headers.items() if name == _SESSION_ID}
            content = encode_message(message)
            return httpx2.Response(
                200, headers={**kept, "content-type": _JSON}, content=content, request=request
            )
        self._stream.answer(head.id, message)
        return _taken(request)


class _Head(msgspec.Struct, frozen=True):
    """What of a message tells whether it is a request, and which."""

    id: int | str | None = None
    method: str | None = None

    @property
    def is_request(self) -> bool:
        return self.id is not None and self.method is not None


async def _head(request: httpx2.Request) -> _Head:
    if request.method != "POST":
        return _Head()
    try:
        return msgspec.json.decode(await request.aread(), type=_Head)
    except msgspec.DecodeError:
        return _Head()


def _stays(request: httpx2.Request, following: httpx2.Request) -> bool:
    """Say whether a redirect leads to the same server, as the same request: only then it is followed."""
    before, after = request.url, following.url
    same = (before.scheme, before.host, before.port) == (after.scheme, after.host, after.port)
    return same and request.method == following.method and after.userinfo in (b"", before.userinfo)


def _taken(request: httpx2.Request) -> httpx2.Response:
    """Return the response after which a transport has nothing more to do."""
    return httpx2.Response(200 if request.method == "DELETE" else 202, request=request)


def _is_awaited(request: httpx2.Request, head: _Head) -> bool:
    """Say whether somebody waits for what the server says to this, with a time limit of their own."""
    return head.is_request or request.method == "GET"


def _refusal(
    request: httpx2.Request, response: httpx2.Response, message: types.JSONRPCMessage | None, body: bytes
) -> WireFault | None:
    """Return the fault for a status from 400 on; `None` if the body has an error that says it better."""
    status = response.status_code
    error = message.error if isinstance(message, types.JSONRPCError) else None
    if request.method == "POST" and (_SESSION_ID in request.headers or _names_session(request.url)):
        if status == 404 and (error is None or error.code != types.METHOD_NOT_FOUND):
            return SESSION_LOST
        # What the TypeScript SDK's own examples answer to a session that they do not know.
        if status == 400 and error is not None and "session" in error.message.lower():
            return SESSION_LOST
    says = error.message if error is not None else ""
    if error is None and _kind(response) in (_JSON, "application/problem+json", "text/plain"):
        says = body.decode("utf-8", "replace")
    fault = status_fault(status, beginning(" ".join(plain_text(says).split()), _SAYS_CHARS))
    return None if error is not None and not fault.ends_session else fault


def _names_session(url: httpx2.URL) -> bool:
    return not {"sessionId", "session_id"}.isdisjoint(url.params)


def _is_compressed(response: httpx2.Response) -> bool:
    """Say whether a few bytes of the body may become millions."""
    return bool(response.headers.get("content-encoding", "identity").strip().lower() != "identity")


async def _body(response: httpx2.Response, limit: int) -> bytes | None:
    """Return the body, or `None` if it is longer than `limit` bytes."""
    if _is_compressed(response):
        return b""  # of a refusal: its status has to do
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            return None if response.is_success else bytes(body[:limit])
    return bytes(body)


def _kind(response: httpx2.Response) -> str:
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


def _in_our_words(item: SessionMessage) -> SessionMessage:
    """Return a message, or where the transport made it up, what it stands for."""
    message = item.message
    if isinstance(message, types.JSONRPCError):
        fault = _stands_for(message.error)
        if fault is not None:
            message.error = types.ErrorData(code=message.error.code, message=fault.cause, data=fault)
    return item


def _stands_for(error: types.ErrorData) -> WireFault | None:
    if error.code == types.CONNECTION_CLOSED and error.message.startswith("SSE stream ended"):
        return CUT_SHORT
    if error.code == types.CONNECTION_CLOSED and error.message.startswith("SSE stream failed: "):
        words = error.message.removeprefix("SSE stream failed: ")
        return WireFault(f"its stream of events is not usable: {words}", ends_session=False)
    if error.code == types.PARSE_ERROR and error.message.startswith("Failed to parse SSE message: "):
        return NO_MESSAGE
    return None


def _refusal_in(error: Exception) -> types.JSONRPCError | None:
    """Return the error that stands for an answer that the transport could not use, if it was one."""
    if not isinstance(error, pydantic.ValidationError):
        return None
    values = (each["input"] for each in error.errors())
    return next((refusal_of(value) for value in values if isinstance(value, dict)), None)


def _broken_by(error: Exception) -> WireFault:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RuntimeError):  # its reader has ended before there was an endpoint
        return WireFault("its stream of events ended before it named an endpoint", ends_session=True)
    return WireFault(f"its stream of events is not usable: {first_fault(error)}", ends_session=True)


@functools.cache
def _tls(*, secure: bool) -> ssl.SSLContext:
    """Return the context for one kind of server; to read the system's authorities takes a while."""
    return httpx2.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class _Told(logging.Filter):
    """Keeps back what libraries log on our behalf, and tells it where it belongs: it may show a URL."""

    def filter(self, record: logging.LogRecord) -> bool:
        stream = _our_stream.get()
        # What comes with an exception comes as an item of the stream, too.
        if stream is not None and record.levelno >= logging.WARNING and not record.exc_info:
            stream.logged(record.getMessage())
        return stream is None


for _name in ("httpx2", "mcp.client.sse", "mcp.client.streamable_http"):
    logging.getLogger(_name).addFilter(_Told())
