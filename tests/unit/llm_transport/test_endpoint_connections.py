"""Connections to an endpoint: one for each request under way, kept for the next, closed in the end."""

import anyio
import pytest

from grue.lean_httpx import httpx
from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings
from grue.llm_transport.exchange import Answered
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


async def opened_ahead(server: ScriptedLlmServer) -> OneConnection:
    transport = OneConnection(httpx.URL(server.base_url), None)
    await transport.open(10.0)
    return transport


def request_to(server: ScriptedLlmServer) -> httpx.Request:
    return httpx.Request("POST", f"{server.base_url}/chat/completions", content=BODY)


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
        response = await transport.handle_async_request(request_to(server))
        assert b"hi" in await response.aread()
        await transport.aclose()
        assert server.accepted == 2


async def test_a_request_during_a_connect_that_fails_fails_as_it_does() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        base_url = server.base_url
        request = request_to(server)
    transport = OneConnection(httpx.URL(base_url), None)  # nobody listens there any more
    async with anyio.create_task_group() as group:
        group.start_soon(transport.open, 10.0)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(request)


async def test_after_a_failed_connect_the_next_request_connects() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        base_url = server.base_url
        request = request_to(server)
    transport = OneConnection(httpx.URL(base_url), None)
    await transport.open(10.0)
    with pytest.raises(httpx.ConnectError):
        await transport.handle_async_request(request)


async def test_a_cancelled_connect_leaves_nothing_open() -> None:
    with ScriptedLlmServer(lambda _: text_reply("hi")) as server:
        transport = OneConnection(httpx.URL(server.base_url), None)
        async with anyio.create_task_group() as group:
            group.start_soon(transport.open, 10.0)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        response = await transport.handle_async_request(request_to(server))
        assert b"hi" in await response.aread()
        await transport.aclose()
