"""Connections to an endpoint: one for each request under way, kept for the next, closed in the end."""

import contextlib
import functools
import ssl
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.abc
import httpx
import pytest
from anyio.streams.tls import TLSStream
from loopback_tls import tls_contexts
from msgspec.structs import replace

from grue.protocol.chat_wire.failures import Fault
from grue.protocol.retry import RetryPolicy
from grue.testing.llm_server import ScriptedLlmServer, silence, text_reply
from grue.transports.llm import exchange as exchange_module
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings
from grue.transports.llm.exchange import (
    Answered,
    Connection,
    Connections,
    ExchangeError,
    HttpReply,
    exchange,
    proxy_for,
    timeouts_of,
)

pytestmark = pytest.mark.anyio

BODY = b'{"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}'
AT_ONCE = 5


async def at_once(endpoint: LlmEndpoint) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(endpoint.post, BODY)


async def cancelled(endpoint: LlmEndpoint, server: ScriptedLlmServer) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(endpoint.post, BODY)
        with anyio.fail_after(60):
            while not server.requests:
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def test_requests_one_after_the_other_share_a_connection() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        async with LlmEndpoint(LlmSettings(base_url=server.base_url, model="scripted")) as endpoint:
            for _ in range(4):
                assert isinstance(await endpoint.post(BODY), Answered)
        assert server.accepted == 1


async def test_requests_at_once_have_one_each_and_later_ones_use_those() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        async with LlmEndpoint(LlmSettings(base_url=server.base_url, model="scripted")) as endpoint:
            await at_once(endpoint)
            await at_once(endpoint)
        assert len(server.requests) == 2 * AT_ONCE
        assert server.accepted == AT_ONCE


async def test_a_cancelled_request_gives_its_place_back() -> None:
    replies = iter([silence(), text_reply("hi")])
    with ScriptedLlmServer(lambda _: next(replies)) as server:
        async with LlmEndpoint(LlmSettings(base_url=server.base_url, model="scripted")) as endpoint:
            await cancelled(endpoint, server)
            assert isinstance(await endpoint.post(BODY), Answered)


def network(*, https: bool = False) -> Connection:
    return Connection(https=https)


def request_to(url: str, body: bytes = b"") -> httpx.Request:
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), 60.0)
    return httpx.Request("POST", url, content=body, extensions={"timeout": timeouts})


async def body_of(connection: Connection, request: httpx.Request) -> bytes:
    reply = await connection.send(request)
    body = b"".join([chunk async for chunk in reply.chunks()])
    await reply.close()
    return body


async def test_a_connection_that_was_idle_too_long_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.transports.llm.exchange._KEPT_S", -1.0)
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        connection = network()
        for _ in range(2):
            assert b"hi" in await body_of(connection, request_to(f"{server.base_url}/chat/completions", BODY))
        await connection.close()
        assert server.accepted == 2


async def served(answer: Callable[[anyio.abc.ByteStream], Awaitable[None]]) -> AsyncIterator[str]:
    """Yield the URL of a server that calls `answer` with each of its connections."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, answer)
        yield f"http://127.0.0.1:{port}/v1"
        group.cancel_scope.cancel()


served_at = contextlib.asynccontextmanager(served)


async def test_a_connection_that_the_server_has_closed_meanwhile_is_opened_again() -> None:
    closed = anyio.Event()
    connected: list[object] = []

    async def once(stream: anyio.abc.ByteStream) -> None:
        connected.append(stream)
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
        closed.set()

    async with served_at(once) as url:
        connection = network()
        for number in (1, 2):
            assert await body_of(connection, request_to(url)) == b"x"
            await closed.wait()
            closed = anyio.Event()
            assert len(connected) == number
        await connection.close()


async def mute(ended: anyio.Event, stream: anyio.abc.ByteStream) -> None:
    async with stream:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while await stream.receive():
                pass
    ended.set()


async def test_a_proxy_that_does_not_answer_uses_up_the_limit_of_the_connect() -> None:
    async with served_at(functools.partial(mute, anyio.Event())) as url:
        connection = Connection(https=True, proxy=url)
        request = request_to("https://llm.invalid/v1")
        request.extensions["timeout"] |= {"connect": 0.05, "read": 2.0}
        with pytest.raises(ExchangeError, match=r"no connection within 0\.05 s"):
            await connection.send(request)
        await connection.close()


async def test_one_limit_holds_for_all_steps_of_a_connect() -> None:
    """TLS is not answered, and each step of it may take as long as the limit."""
    ended = anyio.Event()
    async with served_at(functools.partial(mute, ended)) as url:
        connection = network(https=True)
        request = request_to(url.replace("http:", "https:"))
        request.extensions["timeout"]["connect"] = 0.05
        with pytest.raises(ExchangeError, match=r"no connection within 0\.05 s") as raised:
            await connection.send(request)
        assert raised.value.kind == "unreachable"
        with anyio.fail_after(60):
            await ended.wait()  # the socket is closed
        await connection.close()


async def test_the_limit_of_the_connect_is_none_of_the_reply() -> None:
    go_on = anyio.Event()

    async def slow(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await stream.receive()
            await go_on.wait()
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")

    async with served_at(slow) as url, anyio.create_task_group() as group:
        connection = network()
        request = request_to(url)
        request.extensions["timeout"]["connect"] = 1.0

        async def later() -> None:
            await anyio.sleep(1.1)  # the limit is over by then
            go_on.set()

        group.start_soon(later)
        assert await body_of(connection, request) == b"x"
        await connection.close()


async def test_a_reply_that_comes_byte_by_byte_has_a_limit_as_a_whole() -> None:
    async def drip(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            with contextlib.suppress(anyio.BrokenResourceError):
                await stream.receive()
                await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n")
                for _ in range(300):
                    await anyio.sleep(0.01)
                    await stream.send(b" ")

    async with served_at(drip) as url:
        connections = Connections(network)
        fault = await exchange(connections, request_to(url), replace(PATIENCE, timeout_s=0.5))
        await connections.close()
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.message) == ("timed_out", "no complete reply within 0.5 s")


async def test_the_list_of_models_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grue.transports.llm.endpoint._LIST_TIMEOUT_S", 0.2)
    with ScriptedLlmServer([], models=silence()) as server:
        settings = LlmSettings(base_url=server.base_url, model="m", retry=RetryPolicy(timeout_s=3.0))
        async with LlmEndpoint(settings) as endpoint:
            fault = await endpoint.models()
    assert isinstance(fault, Fault)
    assert fault.message == "no complete reply within 0.2 s"


async def test_a_name_that_is_none_is_unreachable() -> None:
    connection = network()
    with pytest.raises(ExchangeError) as raised:
        await connection.send(request_to(f"http://{'a' * 70}.invalid/"))
    assert raised.value.kind == "unreachable"
    await connection.close()


async def test_who_waits_for_a_request_to_be_sent_hears_of_one_that_failed() -> None:
    heard: list[str] = []
    request = request_to(f"http://{'a' * 70}.invalid/")
    fault = await exchange(Connections(network), request, PATIENCE, on_sent=lambda: heard.append("sent"))
    assert isinstance(fault, Fault)
    assert heard == ["sent"]


@pytest.mark.parametrize("location", ["https://elsewhere.invalid/", "http://[::1", "x" * 9])
async def test_a_redirect_is_a_reply_whatever_its_address_is(location: str) -> None:
    asked: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(307, headers={"Location": location})

    connection = Connection(https=False, transport=httpx.MockTransport(redirect))
    reply = await connection.send(request_to("http://llm.invalid/v1"))
    assert (reply.status, reply.headers["location"]) == (307, location)
    assert asked == ["http://llm.invalid/v1"]
    await reply.close()


LARGE = 2**18
"""What is read from a socket at once."""


class Corked(anyio.abc.ByteStream):
    """A socket's stream that sends what it is given only at `flush`, in one piece."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self._stream = stream
        self._held = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await self.flush()
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        self._held += item

    async def flush(self) -> None:
        held, self._held = self._held, b""
        if held:
            await self._stream.send(held)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("size", [1, 65_000, LARGE - 100])
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
async def test_what_comes_behind_a_reply_is_not_taken_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secured: bool, size: int, apart: bool
) -> None:
    """Over TLS the second reply may be in the same record as the first, or in one of its own."""
    replies: list[bytes] = []

    async def serve(socket: anyio.abc.SocketStream) -> None:
        stream: anyio.abc.ByteStream = Corked(socket)
        if secured:
            stream = await TLSStream.wrap(
                stream, server_side=True, ssl_context=context, standard_compatible=False
            )
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while await stream.receive():
                    body = str(len(replies)).encode() * size
                    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body
                    replies.append(body)
                    for sent in (reply, reply) if apart else (2 * reply,):
                        await stream.send(sent)

    context, trusting = tls_contexts(tmp_path)
    monkeypatch.setattr(exchange_module, "_tls", lambda https: trusting)
    async with served_at(serve) as url:
        connection = network(https=secured)
        for expected in (b"0", b"1", b"2"):
            body = await body_of(connection, request_to(url.replace("http:", "https:") if secured else url))
            assert {*body.decode()} == {expected.decode()}
        await connection.close()


@pytest.mark.parametrize(
    "begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"], ids=["head", "body"]
)
async def test_bytes_that_are_not_tls_break_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    async def serve(socket: anyio.abc.SocketStream) -> None:
        stream = await TLSStream.wrap(
            socket, server_side=True, ssl_context=context, standard_compatible=False
        )
        await stream.receive()
        if begun:
            await stream.send(begun)
        await socket.send(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        await socket.aclose()

    context, trusting = tls_contexts(tmp_path)
    monkeypatch.setattr(exchange_module, "_tls", lambda https: trusting)
    async with served_at(serve) as url:
        connection = network(https=True)
        with pytest.raises(ExchangeError, match="SSL") as raised:
            await body_of(connection, request_to(url.replace("http:", "https:")))
        assert raised.value.kind == "broken"
        await connection.close()


class Holding:
    """A stream of an event loop that has read a byte more than httpx has asked for."""

    def __init__(self) -> None:
        self.is_closed = False

    def get_extra_info(self, _: str) -> None:
        return None

    async def read(self, _: int) -> bytes:
        return b"x"

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(("received", "is_closed"), [(1000, False), (65_536, True)])
async def test_a_reply_as_long_as_a_read_closes_a_connection_that_holds_more(
    received: int, is_closed: bool
) -> None:
    connection = SimpleNamespace(_h11_state=SimpleNamespace(trailing_data=(b"", False)))

    class Body(httpx.AsyncByteStream):
        _httpcore_stream = SimpleNamespace(_stream=SimpleNamespace(_connection=connection))

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"x" * received

    stream = Holding()
    reply = HttpReply(httpx.Response(200, stream=Body(), extensions={"network_stream": stream}))
    assert sum([len(chunk) async for chunk in reply.chunks()]) == received
    await reply.close()
    assert stream.is_closed == is_closed


async def test_a_connection_over_tls_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What TLS itself sends, such as session tickets, is no second reply."""
    context, trusting = tls_contexts(tmp_path)
    monkeypatch.setattr(exchange_module, "_tls", lambda https: trusting)
    connected: list[object] = []

    async def serve(socket: anyio.abc.ByteStream) -> None:
        connected.append(socket)
        stream = await TLSStream.wrap(
            socket, server_side=True, ssl_context=context, standard_compatible=False
        )
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while await stream.receive():
                    await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")

    async with served_at(serve) as url:
        connection = network(https=True)
        for _ in range(3):
            assert await body_of(connection, request_to(url.replace("http:", "https:"))) == b"x"
        await connection.close()
    assert len(connected) == 1


async def test_a_tunnel_through_a_proxy_is_not_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, trusting = tls_contexts(tmp_path)
    monkeypatch.setattr(exchange_module, "_tls", lambda https: trusting)
    happened: list[str] = []

    async def proxy(socket: anyio.abc.ByteStream) -> None:
        happened.append((await socket.receive()).decode().partition(" ")[0])
        await socket.send(b"HTTP/1.1 200 OK\r\n\r\n")
        async with await TLSStream.wrap(socket, server_side=True, ssl_context=context) as stream:
            while b"\r\n\r\n" not in await stream.receive():
                pass
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    async with served_at(proxy) as url:
        connection = Connection(https=True, proxy=url)
        request = request_to(url.replace("http:", "https:"))
        await (await connection.send(request, lambda: happened.append("sent"))).close()
        await connection.close()
    assert happened == ["CONNECT", "sent"]


PLAIN = LlmSettings(base_url="http://host/v1", model="m")
SECURE = LlmSettings(model="m")


async def test_certificates_are_loaded_once_a_process_and_only_for_https(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[ssl.SSLContext] = []

    def load() -> ssl.SSLContext:
        loaded.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return loaded[-1]

    monkeypatch.setattr(exchange_module, "_tls", functools.cache(exchange_module._tls.__wrapped__))
    monkeypatch.setattr(
        httpx,
        "create_ssl_context",
        lambda: loaded.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) or loaded[-1],
    )
    await LlmEndpoint(PLAIN).prepare()
    assert loaded == []
    await LlmEndpoint(SECURE).prepare()
    await LlmEndpoint(SECURE).prepare()
    assert len(loaded) == 1


# --- What httpx raises, and what it has read already ---

PATIENCE = RetryPolicy(timeout_s=30.0, connect_timeout_s=5.0)


def given(transport: Callable[[httpx.Request], httpx.Response]) -> Connection:
    return Connection(https=False, transport=httpx.MockTransport(transport))


def through(transport: Callable[[httpx.Request], httpx.Response]) -> Connections:
    return Connections(lambda: given(transport))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (httpx.ConnectError("refused"), "unreachable", "cannot connect: refused"),
        (httpx.ConnectTimeout(""), "unreachable", "cannot connect: ConnectTimeout"),
        (httpx.ProxyError("407"), "unreachable", "cannot connect: 407"),
        (httpx.ReadTimeout("slow"), "timed_out", "no complete reply within 30 s"),
        (TimeoutError(), "timed_out", "no complete reply within 30 s"),
        (httpx.DecodingError("bad gzip"), "invalid_reply", "the reply cannot be decompressed: bad gzip"),
        (httpx.ReadError(""), "unavailable", "the connection broke: ReadError"),
        (httpx.RemoteProtocolError("closed"), "unavailable", "the connection broke: closed"),
    ],
)
async def test_what_an_exception_of_httpx_means(error: Exception, kind: str, words: str) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    fault = await exchange(through(fail), request_to("http://llm.invalid/v1"), PATIENCE)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.message) == (kind, words)


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"https_proxy": "http://p:3128", "http_proxy": "http://other"}, "http://p:3128"),
        ({"http_proxy": "http://other"}, None),
        ({"all_proxy": "socks5://p:1080"}, "socks5://p:1080"),
        ({"https_proxy": "p:3128"}, "http://p:3128"),
        ({"https_proxy": "http://p", "no_proxy": "elsewhere,llm.example"}, None),
        ({"https_proxy": "http://p", "no_proxy": "api.llm.example:8443"}, None),
        ({"https_proxy": "http://p", "no_proxy": "api.llm.example:443"}, "http://p"),
        ({"https_proxy": "http://p", "no_proxy": "*"}, None),
    ],
)
def test_the_proxy_is_the_one_that_the_environment_names(
    environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(httpx.URL("https://api.llm.example:8443/v1")) == proxy


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("https_proxy", "foo://user:sesame@p:1080", "Unknown scheme"),
        ("https_proxy", "http://user:sesame/open@p:1080", "the URL of a proxy is invalid"),
        ("https_proxy", "socks5://p:1080", "socksio"),
        ("SSL_CERT_FILE", "/absent/ca.pem", "No such file"),
    ],
)
async def test_a_proxy_or_certificates_that_cannot_be_used_are_a_failed_connect(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(other.upper(), raising=False)
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv(name, value)
    exchange_module._tls.cache_clear()
    settings = LlmSettings(base_url="https://api.llm.example/v1", model="m", api_key="key")
    async with LlmEndpoint(settings) as endpoint:
        fault = await endpoint.post(BODY)
    assert isinstance(fault, Fault)
    assert fault.kind == "unreachable"
    assert words in fault.message
    assert "sesame" not in fault.message


def test_the_limits_for_httpx() -> None:
    assert timeouts_of(PATIENCE) == {"connect": 5.0, "read": 30.0, "write": 30.0, "pool": 30.0}


async def test_what_a_transport_raises_is_the_cause() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ExchangeError, match="refused") as raised:
        await given(refuse).send(request_to("http://llm.invalid/v1"))
    assert isinstance(raised.value.__cause__, httpx.ConnectError)
    assert raised.value.kind == "unreachable"


async def test_a_body_that_httpx_has_read_is_not_decompressed_again() -> None:
    coded = zlib.compress(b"the reply")
    headers = {"Content-Encoding": "deflate"}

    async def streamed() -> AsyncIterator[bytes]:
        yield coded

    for content in (coded, streamed()):
        answered = await exchange(
            through(lambda _, it=content: httpx.Response(200, headers=headers, content=it)),
            request_to("http://llm.invalid/v1"),
            PATIENCE,
        )
        assert isinstance(answered, Answered)
        assert answered.body == b"the reply"


async def test_a_stream_that_breaks_is_an_exchange_that_failed() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"the re"
        raise httpx.ReadError("reset")

    responses: list[httpx.Response] = []

    def answer(_: httpx.Request) -> httpx.Response:
        responses.append(httpx.Response(200, content=broken()))
        return responses[-1]

    reply = await given(answer).send(request_to("http://llm.invalid/v1"))
    with pytest.raises(ExchangeError, match="reset") as raised:
        async for _ in reply.chunks():
            pass
    assert raised.value.kind == "broken"
    await reply.close()
    assert responses[0].is_closed


def test_headers_are_found_by_their_name_in_lower_case() -> None:
    raw = [(b"Content-Type", b"text/plain"), (b"X-A", b"1"), (b"x-a", b"\xe9")]
    assert HttpReply(httpx.Response(200, headers=raw)).headers == {
        "content-type": "text/plain",
        "x-a": "1, \u00e9",
    }


@pytest.mark.slow
async def test_other_tasks_run_while_a_reply_of_many_small_pieces_is_read() -> None:
    pieces = 20_000
    turns = 0

    async def serve(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await stream.send(b"1\r\nx\r\n" * pieces + b"0\r\n\r\n")

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with served_at(serve) as url, anyio.create_task_group() as group:
        connection = network()
        group.start_soon(turn)
        assert await body_of(connection, request_to(url)) == b"x" * pieces
        group.cancel_scope.cancel()
        await connection.close()
    assert turns > pieces / 64
