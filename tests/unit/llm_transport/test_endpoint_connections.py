"""Connections to an endpoint: one for each request under way, kept for the next, closed in the end."""

import contextlib
import ssl
import threading
from collections.abc import Callable

import anyio
import anyio.abc
import pytest

from grue.llm_transport import connections
from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings
from grue.llm_transport.exchange import Answered
from grue.llm_transport.http_messages import ExchangeError, HttpRequest, HttpUrl, plain_url
from grue.llm_transport.one_connection import OneConnection
from grue.testing.llm_server import ScriptedLlmServer, silence, text_reply

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


def url_of(server: ScriptedLlmServer) -> HttpUrl:
    url = plain_url(f"{server.base_url}/chat/completions")
    assert url is not None
    return url


async def opened_ahead(server: ScriptedLlmServer) -> OneConnection:
    transport = OneConnection(url_of(server), None)
    await transport.open(10.0)
    return transport


def request_to(server: ScriptedLlmServer) -> HttpRequest:
    url = url_of(server)
    headers = [(b"Host", url.netloc.encode()), (b"Content-Length", str(len(BODY)).encode())]
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), 60.0)
    return HttpRequest("POST", url, headers, BODY, timeouts)


async def body_of(transport: OneConnection, request: HttpRequest) -> bytes:
    reply = await transport.send(request)
    body = b"".join([chunk async for chunk in reply.chunks()])
    assert reply.settle()
    return body


async def test_a_connection_that_was_opened_ahead_is_used_by_the_first_request() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        async with LlmEndpoint(LlmSettings(base_url=server.base_url, model="scripted")) as endpoint:
            await endpoint.open_ahead()
            await endpoint.open_ahead()
            for _ in range(2):
                assert isinstance(await endpoint.post(BODY), Answered)
        assert server.accepted == 1


async def test_a_connection_that_was_opened_too_long_ago_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        transport = await opened_ahead(server)
        monkeypatch.setattr("grue.llm_transport.one_connection._KEPT_S", -1.0)
        assert b"hi" in await body_of(transport, request_to(server))
        await transport.close()
        assert server.accepted == 2


async def test_a_request_during_a_connect_that_fails_fails_as_it_does() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        request = request_to(server)
    transport = OneConnection(request.url, None)  # nobody listens there any more
    async with anyio.create_task_group() as group:
        group.start_soon(transport.open, 10.0)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(ExchangeError, match="Connect call failed"):
            await transport.send(request)


async def test_after_a_failed_connect_the_next_request_connects() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        request = request_to(server)
    transport = OneConnection(request.url, None)
    await transport.open(10.0)
    with pytest.raises(ExchangeError, match="Connect call failed"):
        await transport.send(request)


async def test_a_cancelled_connect_leaves_nothing_open() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        transport = OneConnection(url_of(server), None)
        async with anyio.create_task_group() as group:
            group.start_soon(transport.open, 10.0)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert b"hi" in await body_of(transport, request_to(server))
        await transport.close()


async def test_what_comes_behind_a_reply_is_not_taken_for_the_next_one() -> None:
    replies: list[bytes] = []

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(anyio.EndOfStream):
                while await stream.receive():
                    body = str(len(replies)).encode()
                    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n" + body
                    replies.append(body)
                    await stream.send(2 * reply)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    url = HttpUrl("http", "127.0.0.1", port, "/v1")
    request = HttpRequest("GET", url, [(b"Host", b"h")], b"", {"connect": 60.0})
    transport = OneConnection(url, None)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        for expected in (b"0", b"1"):
            reply = await transport.send(request)
            assert [chunk async for chunk in reply.chunks()] == [expected]
            if not reply.settle():
                await reply.close()
        await transport.close()
        group.cancel_scope.cancel()


class Certificates:
    """Counts the threads that load certificates, and loads none.

    Args:
        monkeypatch: Undoes it.
        load: What loading does; it returns nothing or raises.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, load: Callable[[], None] = lambda: None) -> None:
        self.threads: list[str] = []
        self._load = load
        monkeypatch.setattr(connections, "_certificates", connections._Certificates())
        monkeypatch.setattr(connections, "_load_certificates", self)

    def __call__(self) -> ssl.SSLContext:
        self.threads.append(threading.current_thread().name)
        self._load()
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def opened(*endpoints: LlmEndpoint) -> None:
    for endpoint in endpoints:
        async with endpoint:
            with endpoint._open().transport():
                pass


PLAIN = LlmSettings(base_url="http://host/v1", model="m")
SECURE = LlmSettings(model="m")


async def test_certificates_are_loaded_once_a_process_and_only_for_https(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificates = Certificates(monkeypatch)
    LlmEndpoint(PLAIN).begin()
    await opened(LlmEndpoint(PLAIN))
    assert certificates.threads == []
    await opened(LlmEndpoint(SECURE), LlmEndpoint(SECURE))
    assert certificates.threads == [threading.current_thread().name]


async def test_before_a_turn_they_are_loaded_in_a_thread_which_the_first_request_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()
    certificates = Certificates(monkeypatch, lambda: None if go_on.wait(60) else pytest.fail("never went on"))
    endpoint = LlmEndpoint(SECURE)
    endpoint.begin()
    endpoint.begin()
    go_on.set()
    await opened(endpoint)
    endpoint.begin()
    assert certificates.threads == ["grue-tls"]


async def test_a_fork_waits_until_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    before_forks: list[Callable[[], None]] = []
    monkeypatch.setattr("os.register_at_fork", lambda *, before: before_forks.append(before))
    go_on, order = threading.Event(), list[str]()

    def load() -> None:
        go_on.wait(60)
        order.append("loaded")

    Certificates(monkeypatch, load)
    LlmEndpoint(SECURE).begin()
    (wait,) = before_forks
    threading.Thread(target=go_on.set).start()
    wait()
    assert order == ["loaded"]


async def test_what_fails_in_the_thread_is_raised_by_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise FileNotFoundError("no certificates")

    certificates = Certificates(monkeypatch, missing)
    endpoint = LlmEndpoint(SECURE)
    endpoint.begin()
    with pytest.raises(FileNotFoundError, match="no certificates"):
        await opened(endpoint)
    assert certificates.threads == ["grue-tls", threading.current_thread().name]


async def test_without_a_thread_the_request_loads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = Certificates(monkeypatch)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        LlmEndpoint(SECURE).begin()
    await opened(LlmEndpoint(SECURE))
    assert certificates.threads == [threading.current_thread().name]
