"""The SDK's HTTP transports as a `MessageStream` that fails in the same way as a process's pipes.

The transports run in their own task, with a queue for each direction, so that sending never waits for the
server. If an MCP request fails, their HTTP client (`_Client`) reports the fault to `HttpStream`, and returns
a response without a body. It does not raise the fault: after most exceptions, the transports would end with a
group of exceptions, log a traceback, or never answer.
"""

import contextlib
import functools
import logging
import math
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

import anyio
import httpcore2  # noqa: F401 - imported here, because a turn would wait while httpx2 imports it later
import httpx2
import mcp_types as types
import msgspec
import pydantic
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from grue.protocol.chat_wire.profile import is_loopback
from grue.runtime.large_data import CutLineError, EventBuffer, LineTooLongError
from grue.runtime.loops.beside_loop import Pace, aside
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.safe_text import beginning, plain_text
from grue.tool_sessions.failures import SESSION_LOST, WireFault, first_fault
from grue.tool_sessions.server_requests import Notify
from grue.tool_sessions.server_specs import HttpServer
from grue.transports.mcp import http_faults as faults
from grue.transports.mcp import incoming
from grue.transports.mcp.library_logs import library_logs_to
from grue.transports.mcp.message_stream import MAX_UNASKED, MessageStream, encode_message
from grue.transports.mcp.token_store import token_store

if TYPE_CHECKING:
    from grue.transports.mcp.oauth import Authorizer


def _fault_of(error: types.ErrorData) -> WireFault | None:
    """Return the fault for an error that the SDK's transport has made; `None`: the server has made it."""
    if error.code == types.CONNECTION_CLOSED and error.message.startswith("SSE stream ended"):
        return faults.CUT_SHORT
    if error.code == types.CONNECTION_CLOSED and error.message.startswith("SSE stream failed: "):
        words = error.message.removeprefix("SSE stream failed: ")
        return WireFault(f"its stream of events is not usable: {words}", ends_session=False)
    if error.code == types.PARSE_ERROR and error.message.startswith("Failed to parse SSE message: "):
        return faults.NOT_A_MESSAGE
    return None


def refusal_in(error: Exception) -> types.JSONRPCError | None:
    """Return an error reply for an answer that the SDK could not parse; `None`: its id is not in `error`."""
    if not isinstance(error, pydantic.ValidationError):
        return None
    # An array is a JSON-RPC batch only if it is the whole message; `loc` has one item then.
    values = (
        each["input"] for each in error.errors() if len(each["loc"]) == 1 or isinstance(each["input"], dict)
    )
    return next((incoming.refusal_of(value) for value in values if isinstance(value, dict | list)), None)


def broken_by(error: Exception) -> WireFault:
    """Return the fault for `error`, which ended the stream of a server's events."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RuntimeError):  # the SSE transport ended before the server named an endpoint
        return WireFault("its stream of events ended before it named an endpoint", ends_session=True)
    return WireFault(f"its stream of events is not usable: {first_fault(error)}", ends_session=True)


_SMALL_BYTES = 16_384
_FIELD = re.compile(rb"(?:^|[\r\n])(?:data|event|id|retry)\b")
Answer = types.JSONRPCResponse | types.JSONRPCError


class FilteredEvents(httpx2.AsyncByteStream):
    """The events in the body of a response, without those that are only comments.

    The SDK parses an event in one step and skips comments without a pause, which may block the event loop. A
    large answer is put into `answers`, and a small event with the answer's id is yielded in its place. An
    answer of more bytes than the first of `limits` is reported to `notify` and, if its id can be read,
    replaced by an error. An event of more bytes than the second of `limits` ends the stream.
    """

    def __init__(
        self,
        source: Any,
        request_id: int | str | None,
        answers: dict[int | str, Answer],
        notify: Notify,
        limits: tuple[int, int],
    ) -> None:
        self._source = source
        # The request that the body answers. `None`: the body of a GET that resumes no request's stream.
        self._request_id = request_id
        self._answers = answers
        self._notify = notify
        self._limit, longest = limits
        self._events = EventBuffer(longest, self._limit)
        self._pace = Pace()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        begun = False
        async for chunk in self._source:
            self._pace.paused()
            self._events.feed(chunk if begun else incoming.without_mark(chunk))
            begun = True
            async for event in self._complete_events():
                yield event
        rest = self._events.rest()
        if rest:
            yield rest

    async def aclose(self) -> None:
        """Close the connection."""
        await self._source.aclose()

    async def _complete_events(self) -> AsyncIterator[bytes]:
        while True:
            await self._pace.pause()
            try:
                event = self._events.take()
            except CutLineError as cut:
                yield self._refused(cut)
                continue
            except LineTooLongError as error:
                raise httpx2.SSEError(f"it has {error}") from error
            if event is None:
                return
            if len(event) > _SMALL_BYTES:
                yield await self._read(event)
            elif _FIELD.search(event):
                yield event + b"\n\n"

    def _refused(self, cut: CutLineError) -> bytes:
        self._notify("too_large", f"{cut}, and at most {self._limit} are read")
        head = cut.head.partition(b"data:")[2]
        return self._stand_in(
            incoming.refusal_of_cut(CutLineError(head, cut.tail, cut.size), self._limit), b""
        )

    async def _read(self, event: bytes) -> bytes:
        data, others = await aside(_data_and_others, event)
        message = await incoming.read_message(data)
        if isinstance(message, types.JSONRPCRequest | types.JSONRPCNotification):
            return event + b"\n\n"
        return self._stand_in(message, others)

    def _stand_in(self, answer: Answer | None, others: bytes) -> bytes:
        """Put a large answer into `answers`, and return a small event. For `None`, return a comment."""
        if answer is None:
            self._notify("noise", "a large event that is not a message")
            return b": left out\n\n"
        if self._request_id is not None:
            answer.id = self._request_id
        if answer.id is not None:
            self._answers[answer.id] = answer
        return (
            others + b'data: {"jsonrpc":"2.0","id":' + msgspec.json.encode(answer.id) + b',"result":{}}\n\n'
        )


def _data_and_others(event: bytes) -> tuple[bytes, bytes]:
    data, others = [], []
    for line in event.splitlines():
        if line.startswith(b"data:"):
            data.append(line[6 if line.startswith(b"data: ") else 5 :])
        elif line.startswith((b"event:", b"id:", b"retry:")):
            others.append(line + b"\n")
    return b"\n".join(data), b"".join(others)


_SCOPE_TOO_SMALL = re.compile(r"error\s*=\s*\"?insufficient_scope")
_MOST_RENEWALS = 2  # not 1, because a token that another process has stored may have expired too
Send = Callable[[httpx2.Request], Awaitable[httpx2.Response]]


class Authorization:
    """Adds a server's tokens to requests. `on_secret` is as in `ClientOptions`."""

    def __init__(self, server: HttpServer, on_secret: Callable[[str, str], None]) -> None:
        self._server = server
        self._on_secret = on_secret
        self._origin = _origin(httpx2.URL(server.url))
        self._store = token_store(server)
        self._made: Authorizer | None = None

    async def send(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        """Send `request` by `send`. If it goes to the server's origin, add a token; renew a refused token."""
        if _origin(request.url) != self._origin:
            return await send(request)
        token = await self._authorizer().token() if self._made or self._store.may_have() else ""
        if token:
            request.headers["authorization"] = f"Bearer {token}"
        response = await send(request)
        renewals = 0
        while asks_for_token(response):
            await response.aclose()
            authorizer = self._authorizer()
            if renewals == _MOST_RENEWALS or (renewals and token == authorizer.issued):
                authorizer.give_up(response)
            token = await authorizer.renew(token, response)
            request.headers["authorization"] = f"Bearer {token}"
            response = await send(request)
            renewals += 1
        return response

    def _authorizer(self) -> "Authorizer":
        if self._made is None:
            # Imported only if a token may be stored, or after a refusal, because it imports the SDK's OAuth.
            from grue.transports.mcp.oauth import Authorizer

            self._made = Authorizer(self._server, self._store, self._on_secret)
        return self._made


def asks_for_token(response: httpx2.Response) -> bool:
    """Return whether another token may help: the status is 401, or 403 because of too small a scope."""
    if response.status_code == httpx2.codes.FORBIDDEN:
        return _SCOPE_TOO_SMALL.search(response.headers.get("www-authenticate", "")) is not None
    return response.status_code == httpx2.codes.UNAUTHORIZED


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return (url.scheme, url.host, url.port)


_EVENTS = "text/event-stream"
_JSON = "application/json"
_SESSION_ID = "mcp-session-id"
_LAST_EVENT_ID = "last-event-id"
_CANCELLED = "notifications/cancelled"
_FOLLOWED = "grue_redirects_followed"  # an entry of `Request.extensions`
_ERROR_TEXT_CHARS = 200
_ERROR_TEXT_BYTES = 65_536
_IDLE_S = 3.0  # common servers close an unused connection after 5 s; a request sent then is lost
_MAX_UNREAD = 1000  # most messages that are queued for the session before reading pauses
_MAX_UNSENT = 10_000  # most messages that may wait to be sent before the connection counts as broken
_ROOM_POLL_S = 0.002

_BETWEEN_GETS_S = 0.1  # shortest time: a server may repeatedly end its stream and ask for a new one at once
_MAY_SPEAK_SSE = frozenset((400, 404, 405))  # how an SSE server refuses Streamable HTTP's first request
_OTHER_ORIGIN_LOGGED = "Endpoint origin does not match"  # after it has logged this, the SDK waits for ever


class HttpStream(MessageStream):
    """A `MessageStream` over HTTP."""

    over_http = True

    def __init__(
        self,
        server: HttpServer,
        limits: ProcessLimits,
        notify: Notify,
        authorization: Authorization | None = None,
    ) -> None:
        self.large: dict[int | str, Answer] = {}  # what `FilteredEvents` took out, by the small event's id
        self.notify = notify
        self.authorization = authorization
        self.broken: str | None = None
        self.remedy: str | None = None  # what the user can do about the broken stream, if it is known
        self._server = server
        self._limits = limits
        self._unasked = 0
        self._arrived, self._inbound = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self._outbound, self._unsent = anyio.create_memory_object_stream[SessionMessage](math.inf)
        self._scope = anyio.CancelScope(shield=True)
        self._connected = False
        self.transport: Literal["http", "sse"] = "sse" if server.transport == "sse" else "http"
        self.declined: WireFault | None = None  # why the address refused Streamable HTTP, if SSE is tried
        self.cancelled: set[int | str] = set()  # ids of requests: their streams are not resumed
        self._first: SessionMessage | None = None
        self._leaving = False
        self._finished = anyio.Event()
        self._left = anyio.Event()

    async def carry(self) -> None:
        """Carry messages until `leave` or the transport's end, even after a cancellation or `break_off`."""
        try:
            with library_logs_to(self.logged), self._scope:
                await self._carry_until_finished()
                if self.declined is not None and not self._leaving:
                    self.transport, self._finished = "sse", anyio.Event()
                    await self._carry_until_finished()
        except Exception as error:  # noqa: BLE001 - any exception of the transports breaks the stream
            self.break_off(broken_by(error))
        finally:
            self.break_off(faults.CUT_SHORT)
            self._outbound.close()
            self._unsent.close()
            self._left.set()

    async def leave(self, grace_s: float) -> None:
        """End the session at the server within `grace_s`, even while the calling task is being cancelled."""
        self._leaving = True
        self._finished.set()
        if self._connected:
            with anyio.move_on_after(grace_s, shield=True):
                await self._left.wait()
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._left.wait()
        self._inbound.close()

    def answer(self, request_id: int | str, message: types.JSONRPCMessage) -> None:
        """Queue for the session a message from a request's response. An answer gets the request's id."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            message.id = request_id
        self._deliver(SessionMessage(message))

    def fail(self, request_id: int | str, fault: WireFault) -> None:
        """Answer a request with the fault that made it fail."""
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=fault.cause, data=fault)
        self._deliver(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))

    def falls_back(self, fault: WireFault, status: int) -> bool:
        """Decide whether to try the older SSE transport. If so, end this attempt and store `fault`."""
        if self._server.transport != "auto" or self.transport == "sse" or status not in _MAY_SPEAK_SSE:
            return False
        self.declined = fault
        self._finished.set()
        return True

    def break_off(self, fault: WireFault) -> None:
        """Break the stream because of `fault`. If the stream is broken already, the first cause stays."""
        if self.broken is None:
            self.broken, self.remedy = fault.cause, fault.remedy
        self._arrived.close()

    def logged(self, record: logging.LogRecord) -> None:
        """Report a library's log record by a notice, unless it has a traceback. May break the stream."""
        if record.exc_info:
            return  # most exceptions that are logged also come to `_receive_all`, which reports them
        text = record.getMessage()
        self.notify("noise", text)
        if text.startswith(_OTHER_ORIGIN_LOGGED):
            self.break_off(faults.ENDPOINT_AT_OTHER_HOST)

    async def receive(self) -> SessionMessage | Exception:
        """Return the server's next message."""
        return await self._inbound.receive()

    async def _send(self, item: SessionMessage) -> None:
        if self._outbound.statistics().current_buffer_used > _MAX_UNSENT:
            self.break_off(faults.NOT_READING)
        if self.broken is not None:
            raise anyio.BrokenResourceError
        self._outbound.send_nowait(item)

    async def _carry_until_finished(self) -> None:
        async with self._transport() as (read, write), anyio.create_task_group() as pumps:
            self._connected = True
            pumps.start_soon(self._receive_all, read)
            pumps.start_soon(self._send_all, write)
            await self._finished.wait()
            pumps.cancel_scope.cancel()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Any, Any]]:
        if self.transport == "sse":
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
        try:
            return _Client(self, self._server, self._limits)
        except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
            self.break_off(faults.environment_fault(error))
            raise

    async def _receive_all(self, read: Any) -> None:
        async for item in read:
            while self.broken is None and self._arrived.statistics().current_buffer_used > _MAX_UNREAD:  # noqa: ASYNC110
                await anyio.sleep(_ROOM_POLL_S)
            if not isinstance(item, Exception):
                if incoming.is_usable(item.message):
                    message = item.message
                    if self.large and isinstance(message, types.JSONRPCResponse):
                        item.message = self.large.pop(message.id, message)
                    elif isinstance(message, types.JSONRPCError) and (fault := _fault_of(message.error)):
                        message.error = types.ErrorData(
                            code=message.error.code, message=fault.cause, data=fault
                        )
                    self._deliver(item)
                continue
            self.notify("noise", first_fault(item))
            refusal = refusal_in(item)
            if refusal is not None:
                self._deliver(SessionMessage(refusal))
        self._finished.set()

    async def _send_all(self, write: Any) -> None:
        if self.declined is not None and self._first is not None:
            await write.send(self._first)
        async for item in self._unsent:
            self._first = self._first or item
            await write.send(item)

    def _deliver(self, item: SessionMessage) -> None:
        answers = isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError)
        self._unasked = 0 if answers else self._unasked + 1
        if self._unasked > MAX_UNASKED:
            self.break_off(faults.TOO_MANY_MESSAGES)
        if self.broken is None:
            self._arrived.send_nowait(item)


# The id of the request that the current task of the SDK sends. It is still set when that task resumes the
# request's broken stream of events.
_answering: ContextVar[int | str | None] = ContextVar("answering", default=None)


class _Client(httpx2.AsyncClient):
    """An HTTP client. It limits each connect; and if no answer is awaited, the whole exchange."""

    def __init__(self, stream: HttpStream, server: HttpServer, limits: ProcessLimits) -> None:
        connect_s = server.connect_timeout_s
        super().__init__(
            # Ask for no compression, because a short compressed body can expand to a huge one.
            headers={"accept-encoding": "identity", **server.headers},
            timeout=httpx2.Timeout(None, connect=connect_s),
            limits=httpx2.Limits(keepalive_expiry=_IDLE_S),
            verify=_tls(secure=httpx2.URL(server.url).scheme == "https"),
            # Use no proxy of the environment for a server on this machine: most proxies cannot reach it.
            trust_env=not is_loopback(server.url),
        )
        self._stream = stream
        self._server = server
        self._max_message_bytes = min(limits.max_message_bytes, limits.max_line_bytes)
        self._max_event_bytes = limits.max_line_bytes
        self._next_get_at = -math.inf

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        head = _Head()
        with contextlib.suppress(msgspec.DecodeError):
            head = msgspec.json.decode(await request.aread(), type=_Head)
        if head.is_request:
            _answering.set(head.id)
        elif head.method == _CANCELLED:
            self._stream.cancelled.add(msgspec.json.decode(request.content)["params"]["requestId"])
        if _resumed(request) in self._stream.cancelled:
            return httpx2.Response(405, request=request)
        if self._stream.sessionless:
            request.headers.pop(_SESSION_ID, None)
        if request.method == "GET":
            begun_at = max(anyio.current_time(), self._next_get_at)
            self._next_get_at = begun_at + _BETWEEN_GETS_S
            await anyio.sleep_until(begun_at)
        limit_s = None if _is_awaited(request, head) else self._server.connect_timeout_s
        send: Send = functools.partial(super().send, **options)
        authorization = self._stream.authorization
        try:
            with anyio.fail_after(limit_s):
                response = await (
                    send(request) if authorization is None else authorization.send(request, send)
                )
                outcome = await self._judge(request, response, head)
        except TimeoutError:
            return _empty_success(request)
        except faults.AuthorizationRefused as error:
            outcome = error.fault
        except httpx2.RequestError as error:
            host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            proxied = self._transport_for_url(request.url) is not self._transport
            outcome = faults.transport_fault(error, where, self._server.connect_timeout_s, proxied=proxied)
        return self._refused(request, head, outcome) if isinstance(outcome, WireFault) else outcome

    def _refused(self, request: httpx2.Request, head: "_Head", fault: WireFault) -> httpx2.Response:
        if head.is_request and head.id is not None:
            self._stream.fail(head.id, fault)
        elif request.method == "GET" and self._stream.transport == "sse":
            self._stream.break_off(faults.sse_also_refused(self._stream.declined, fault))
            return httpx2.Response(503, request=request)
        # Whatever the fault was, after a 405 the SDK goes on without the stream of unasked messages.
        return httpx2.Response(405, request=request) if request.method == "GET" else _empty_success(request)

    async def _judge(
        self, request: httpx2.Request, response: httpx2.Response, head: "_Head"
    ) -> httpx2.Response | WireFault:
        """Return `response`, or another one that the SDK's transport can use, or the fault of the request."""
        following = response.next_request
        same_place = (
            following is not None
            and _origin(following.url) == _origin(request.url)
            and following.url.userinfo in (b"", request.url.userinfo)
        )
        # The SDK may follow a redirect to the same server with the same method. Any other redirect would turn
        # a POST into a GET, or send the user's headers, with their secrets, to another server.
        may_follow = following is not None and same_place and request.method == following.method
        if following is not None and may_follow:
            followed = request.extensions.get(_FOLLOWED, 0)
            if followed < self.max_redirects:
                following.extensions = {**following.extensions, _FOLLOWED: followed + 1}
                return response
        awaited = _is_awaited(request, head)
        # Refuse a compressed body: a few bytes may expand to gigabytes before a limit counts them.
        if awaited and response.is_success and _is_compressed(response):
            await response.aclose()
            return faults.COMPRESSED
        if awaited and response.is_success and _content_type(response) == _EVENTS:
            answered = head.id if request.method == "POST" else _resumed(request)
            limits = (self._max_message_bytes, self._max_event_bytes)
            stream = self._stream
            response.stream = FilteredEvents(response.stream, answered, stream.large, stream.notify, limits)
            return response
        try:
            if awaited and following is not None:
                url = plain_text(str(following.url.copy_with(userinfo=b"", query=None, fragment=None)))
                if may_follow:
                    return faults.redirect_loop(url)
                return faults.redirect_fault(response.status_code, url, same_place=same_place)
            # A GET asks for a stream of events, and this answer has another content type.
            if response.is_success and request.method == "GET":
                return faults.content_fault(response.status_code, _content_type(response))
            # A notification has no answer. With the SSE transport, the GET's stream brings the answer.
            if not awaited or (response.is_success and self._stream.transport == "sse"):
                return _empty_success(request)
            return await self._read(request, response, head)
        finally:
            await response.aclose()

    async def _read(
        self, request: httpx2.Request, response: httpx2.Response, head: "_Head"
    ) -> httpx2.Response | WireFault:
        """Return a response for the SDK, or the fault. Queue the answer, except a success of `initialize`."""
        body = await _body(response, self._max_message_bytes if response.is_success else _ERROR_TEXT_BYTES)
        if body is None:
            return WireFault(f"its answer is longer than {self._max_message_bytes} bytes", ends_session=False)
        message = await incoming.read_message(body) if _content_type(response) == _JSON else None
        if not response.is_success:
            fault = _refusal(request, response, message, body)
            if fault is not None:
                starting = head.method == "initialize"
                falls_back = starting and self._stream.falls_back(fault, response.status_code)
                return _empty_success(request) if falls_back else fault
        elif _content_type(response) != _JSON:
            return faults.content_fault(response.status_code, _content_type(response))
        if message is None or head.id is None:
            return faults.NOT_A_MESSAGE
        if head.method == "initialize" and response.is_success:
            # The SDK's transport reads the session's id from what is returned here: copy that header.
            kept = {name: value for name, value in response.headers.items() if name == _SESSION_ID}
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
                message.id = head.id  # some servers answer with the id `null` or another one
            content = encode_message(message)
            return httpx2.Response(
                200, headers={**kept, "content-type": _JSON}, content=content, request=request
            )
        self._stream.answer(head.id, message)
        return _empty_success(request)


class _Head(msgspec.Struct, frozen=True):
    """The `id` and the `method` of a message. A request has both; a notification has no `id`."""

    id: int | str | None = None
    method: str | None = None

    @property
    def is_request(self) -> bool:
        return self.id is not None and self.method is not None


def _resumed(request: httpx2.Request) -> int | str | None:
    """Return the id of the request whose broken stream of events a GET resumes; `None`: it resumes none."""
    return _answering.get() if _LAST_EVENT_ID in request.headers else None


def _empty_success(request: httpx2.Request) -> httpx2.Response:
    """Return a response without a body: status 200 for a DELETE, else 202. The SDK's transport ignores it."""
    return httpx2.Response(200 if request.method == "DELETE" else 202, request=request)


def _is_awaited(request: httpx2.Request, head: _Head) -> bool:
    """Return whether `request` gets an answer or a stream of events. If so, only connecting is limited."""
    return head.is_request or request.method == "GET"


def _refusal(
    request: httpx2.Request, response: httpx2.Response, message: types.JSONRPCMessage | None, body: bytes
) -> WireFault | None:
    """Return the fault of a refused request; `None`: `message` is a JSON-RPC error for the caller."""
    status = response.status_code
    error = message.error if isinstance(message, types.JSONRPCError) else None
    in_url = not {"sessionId", "session_id"}.isdisjoint(request.url.params)
    if request.method == "POST" and (_SESSION_ID in request.headers or in_url):
        if status == 404 and (error is None or error.code != types.METHOD_NOT_FOUND):
            return SESSION_LOST
        # Servers that copy the TypeScript SDK's examples answer an unknown session with 400 instead of 404.
        if status == 400 and error is not None and "session" in error.message.lower():
            return SESSION_LOST
    text = error.message if error is not None else ""
    if error is None and _content_type(response) in (_JSON, "application/problem+json", "text/plain"):
        text = body.decode("utf-8", "replace")
    challenge = response.headers.get("www-authenticate", "")
    shown = beginning(" ".join(plain_text(text).split()), _ERROR_TEXT_CHARS)
    fault = faults.status_fault(status, shown, challenge)
    return None if error is not None and not fault.ends_session else fault


def _is_compressed(response: httpx2.Response) -> bool:
    return bool(response.headers.get("content-encoding", "identity").strip().lower() != "identity")


async def _body(response: httpx2.Response, limit: int) -> bytes | None:
    """Return the body. If it is longer than `limit`: `None` for a success, its beginning for an error."""
    if _is_compressed(response):
        return b""  # a compressed error, whose status is enough; a compressed success was refused before
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            return None if response.is_success else bytes(body[:limit])
    return bytes(body)


def _content_type(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


@functools.cache
def _tls(*, secure: bool) -> ssl.SSLContext:
    return httpx2.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
