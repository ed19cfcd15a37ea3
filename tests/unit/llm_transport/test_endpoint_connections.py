"""Connections to an endpoint: one for each request under way, kept for the next, closed in the end."""

import anyio
import pytest

from grue.llm_transport.endpoint import LlmEndpoint, LlmSettings
from grue.llm_transport.exchange import Answered
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
