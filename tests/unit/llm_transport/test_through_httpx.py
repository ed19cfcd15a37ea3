"""Requests through httpx transports: a user's, and the one that knows proxies."""

import zlib
from collections.abc import AsyncIterator

import httpx
import pytest

from grue.llm_transport.exchange import Answered, exchange
from grue.llm_transport.http_messages import ExchangeError, HttpRequest, HttpUrl
from grue.llm_transport.through_httpx import ThroughHttpx, exchange_error, fault_of_exchange, http_timeout
from grue.protocol.retry import RetryPolicy

pytestmark = pytest.mark.anyio

PATIENCE = RetryPolicy(timeout_s=30.0, connect_timeout_s=5.0)
REQUEST = HttpRequest("POST", HttpUrl("http", "llm.invalid", None, "/v1"), [(b"Host", b"h")], b"hello", {})


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
async def test_what_an_exception_of_httpx_means(
    error: httpx.HTTPError | TimeoutError, kind: str, words: str
) -> None:
    fault = fault_of_exchange(error, 30.0)
    assert (fault.kind, fault.message) == (kind, words)


def test_the_limits_for_httpx() -> None:
    assert http_timeout(PATIENCE) == httpx.Timeout(30.0, connect=5.0)


async def test_what_a_transport_raises_is_the_cause() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ExchangeError, match="refused") as raised:
        await ThroughHttpx(httpx.MockTransport(refuse)).send(REQUEST)
    assert isinstance(raised.value.__cause__, httpx.ConnectError)
    assert exchange_error(raised.value.__cause__).kind == raised.value.kind == "unreachable"


async def test_a_body_that_httpx_has_read_is_not_decompressed_again() -> None:
    coded = zlib.compress(b"the reply")
    headers = {"Content-Encoding": "deflate"}

    async def streamed() -> AsyncIterator[bytes]:
        yield coded

    for content in (coded, streamed()):
        transport = httpx.MockTransport(
            lambda _, it=content: httpx.Response(200, headers=headers, content=it)
        )
        answered = await exchange(ThroughHttpx(transport), REQUEST, PATIENCE)
        assert isinstance(answered, Answered)
        assert answered.body == b"the reply"


async def test_a_stream_that_breaks_is_an_exchange_that_failed() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"the re"
        raise httpx.ReadError("reset")

    transport = ThroughHttpx(httpx.MockTransport(lambda _: httpx.Response(200, content=broken())))
    reply = await transport.send(REQUEST)
    with pytest.raises(ExchangeError, match="reset") as raised:
        async for _ in reply.chunks():
            pass
    assert raised.value.kind == "broken"
    assert not reply.settle()
    await reply.close()
    assert reply.settle()
