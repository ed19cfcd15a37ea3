"""Replies that end at their length limit: asked for once more, with more room, where that may help."""

from typing import Any

import pytest
from llm_desk import desk, notes, settings_for
from msgspec.structs import replace

from grue.actors.llm import LlmEndpoint
from grue.messages import CompletionReceived, ReplyCut, Usage, UserText
from grue.protocol.chat_wire.profiles import GENERIC
from grue.protocol.retry import RetryPolicy
from grue.testing.llm_server import Script, ScriptedLlmServer, error_reply, text_reply

pytestmark = pytest.mark.anyio

CUT = text_reply("lo", finish_reason="length")
LOOK = text_reply("look")
ONE = Usage(input_tokens=10, output_tokens=5)


async def told(script: Script, **changes: Any) -> tuple[CompletionReceived, list[ReplyCut], list[Any]]:
    """Return the reply, the notes of cuts, and the limits that were sent."""
    lines: list[bytes] = []
    with ScriptedLlmServer(script) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, **changes)), lines) as agent:
            reply = await agent.reply()
        limits = [request.body.get("max_tokens") for request in server.requests]
    return reply, notes(lines, ReplyCut), limits


async def test_a_cut_reply_is_asked_for_once_more_with_more_room() -> None:
    reply, cuts, limits = await told([CUT, LOOK], max_tokens=100)
    assert (reply.content, reply.finish_reason) == ("look", "stop")
    assert reply.usage == ONE + ONE
    assert cuts == [ReplyCut(request=1, limit_tokens=100, retried_with=400, usage=ONE)]
    assert limits == [100, 400]


async def test_a_reply_that_is_cut_again_is_taken_as_it_is() -> None:
    reply, cuts, limits = await told([CUT, text_reply("loo", finish_reason="length")], max_tokens=100)
    assert (reply.content, reply.finish_reason, reply.usage) == ("loo", "length", ONE + ONE)
    assert [(cut.limit_tokens, cut.retried_with) for cut in cuts] == [(100, 400), (400, None)]
    assert limits == [100, 400]


async def test_the_cut_reply_stands_where_the_second_request_fails() -> None:
    retry = RetryPolicy(max_retries=1, initial_delay_s=0.0)
    script = [CUT, error_reply(503, "busy"), error_reply(503, "busy")]
    reply, cuts, limits = await told(script, max_tokens=100, retry=retry)
    assert (reply.content, reply.finish_reason, reply.usage) == ("lo", "length", ONE)
    assert len(cuts) == 1
    assert limits == [100, 400, 400]


async def test_a_limit_that_the_endpoint_refuses_is_lowered_to_its_own() -> None:
    words = "max_tokens is too large: 400. This model supports at most 256 completion tokens."
    reply, cuts, limits = await told([CUT, error_reply(400, words), LOOK], max_tokens=100)
    assert (reply.content, limits) == ("look", [100, 400, 256])
    assert cuts[0].retried_with == 400


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, None),
        ({"max_tokens": 100, "retry": RetryPolicy(length_retry_factor=1.0)}, 100),
        ({"max_tokens": 100, "profile": replace(GENERIC, max_output_tokens=100)}, 100),
        ({"max_tokens": 100, "profile": replace(GENERIC, sampling=frozenset())}, None),
    ],
    ids=["no limit sent", "factor 1", "the endpoint's largest", "a field that it refuses"],
)
async def test_where_more_room_cannot_be_had_the_cut_reply_is_taken(
    changes: dict[str, Any], limit: int | None
) -> None:
    reply, cuts, limits = await told([CUT], **changes)
    assert (reply.content, reply.usage) == ("lo", ONE)
    assert cuts == [ReplyCut(request=1, limit_tokens=limit, usage=ONE)]
    assert limits == [limit]


async def test_the_next_request_has_the_usual_limit_and_only_the_whole_reply() -> None:
    with ScriptedLlmServer([CUT, LOOK, text_reply("bye")]) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, max_tokens=100))) as agent:
            await agent.reply()
            await agent.reply((UserText("And?"),))
        last = server.requests[-1]
        assert last.body["max_tokens"] == 100
        assert [message["content"] for message in last.messages[2:]] == ["look", "And?"]
