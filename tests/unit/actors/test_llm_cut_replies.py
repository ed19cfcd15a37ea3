"""Replies that end at their length limit: asked for once more, with more room, where that may help."""

import json
from typing import Any

import httpx
import pytest
from llm_desk import LISTING, OPENING, desk, notes, settings_for
from msgspec.structs import replace
from turns import sort_calls

from grue.actors.llm import LlmEndpoint
from grue.messages import CompletionReceived, ReplyCut, TextDelta, Usage, UserText
from grue.protocol.chat_wire.formats import FORMATS
from grue.protocol.chat_wire.profiles import GENERIC
from grue.protocol.retry import RetryPolicy
from grue.testing.llm_server import Script, ScriptedLlmServer, error_reply, text_reply
from grue.testing.providers.dialects import dialect_of

pytestmark = pytest.mark.anyio

CUT = text_reply("lo", finish_reason="length")
LOOK = text_reply("look")
DEFAULT_100: dict[str, Any] = {"profile": replace(GENERIC, default_max_tokens=100)}
"""Only a limit that nobody has set may be enlarged."""

USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
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
    reply, cuts, limits = await told([CUT, LOOK], **DEFAULT_100)
    assert (reply.content, reply.finish_reason) == ("look", "stop")
    assert reply.usage == ONE + ONE
    assert cuts == [ReplyCut(request=1, limit_tokens=100, retried_with=400, usage=ONE)]
    assert limits == [100, 400]


async def test_a_reply_that_is_cut_again_is_taken_as_it_is() -> None:
    reply, cuts, limits = await told([CUT, text_reply("loo", finish_reason="length")], **DEFAULT_100)
    assert (reply.content, reply.finish_reason, reply.usage) == ("loo", "length", ONE + ONE)
    assert [(cut.limit_tokens, cut.retried_with) for cut in cuts] == [(100, 400), (400, None)]
    assert limits == [100, 400]


async def test_the_cut_reply_stands_where_the_second_request_fails() -> None:
    retry = RetryPolicy(max_retries=1, initial_delay_s=0.0)
    script = [CUT, error_reply(503, "busy"), error_reply(503, "busy")]
    reply, cuts, limits = await told(script, **DEFAULT_100, retry=retry)
    assert (reply.content, reply.finish_reason, reply.usage) == ("lo", "length", ONE)
    assert len(cuts) == 1
    assert limits == [100, 400, 400]


async def test_a_limit_that_the_endpoint_refuses_is_lowered_to_its_own() -> None:
    words = "max_tokens is too large: 400. This model supports at most 256 completion tokens."
    reply, cuts, limits = await told([CUT, error_reply(400, words), LOOK], **DEFAULT_100)
    assert (reply.content, limits) == ("look", [100, 400, 256])
    assert cuts[0].retried_with == 400


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, None),
        ({"max_tokens": 100}, 100),
        ({**DEFAULT_100, "max_tokens": 100}, 100),
        ({**DEFAULT_100, "extra_body": {"max_tokens": 90}}, 90),
        ({**DEFAULT_100, "retry": RetryPolicy(length_retry_factor=1.0)}, 100),
        ({"profile": replace(GENERIC, default_max_tokens=100, max_output_tokens=100)}, 100),
        ({"max_tokens": 100, "profile": replace(GENERIC, sampling=frozenset())}, None),
    ],
    ids=[
        "no limit sent",
        "the user's",
        "the user's, though there is a default",
        "the user's own field",
        "factor 1",
        "the endpoint's largest",
        "a field that it refuses",
    ],
)
async def test_where_more_room_cannot_be_had_the_cut_reply_is_taken(
    changes: dict[str, Any], limit: int | None
) -> None:
    reply, cuts, limits = await told([CUT], **changes)
    assert (reply.content, reply.usage) == ("lo", ONE)
    assert [(cut.retried_with, cut.usage) for cut in cuts] == [(None, ONE)]
    assert limits == [limit]


async def test_the_next_request_has_the_usual_limit_and_only_the_whole_reply() -> None:
    with ScriptedLlmServer([CUT, LOOK, text_reply("bye")]) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url, **DEFAULT_100))) as agent:
            await agent.reply()
            await agent.reply((UserText("And?"),))
        last = server.requests[-1]
        assert last.body["max_tokens"] == 100
        assert [message["content"] for message in last.messages[2:]] == ["look", "And?"]


@pytest.mark.parametrize(
    "second", [[LOOK], [error_reply(503, "busy")] * 2], ids=["said again", "not said again"]
)
async def test_a_host_that_starts_over_when_told_has_the_reply_that_counts(second: list[Any]) -> None:
    lines: list[bytes] = []
    retry = RetryPolicy(max_retries=1, initial_delay_s=0.0)
    with ScriptedLlmServer([CUT, *second]) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, **DEFAULT_100, retry=retry))
        async with desk(endpoint, lines) as agent:
            reply = await agent.reply(stream=True)
    deltas = notes(lines, TextDelta)
    assert any(delta.restart for delta in deltas)
    started_over = max(at for at, delta in enumerate(deltas) if delta.restart)
    assert "".join(delta.text for delta in deltas[started_over:]) == reply.content


CALL = {"id": "a", "type": "function", "function": {"name": "think.think", "arguments": ""}}


@pytest.mark.parametrize("wire", list(FORMATS))
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_call_that_the_limit_cut_before_its_arguments_is_not_made(wire: str, stream: bool) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    completion = {"choices": [{"index": 0, "message": message, "finish_reason": "length"}], "usage": USAGE}
    dialect = dialect_of(FORMATS[wire].path)  # type: ignore[index]  # a parameter
    assert dialect is not None
    whole = dialect.from_chat(completion, {})
    body = b"".join(dialect.events(whole, {})) if stream else json.dumps(whole).encode()

    def answer(_: httpx.Request) -> httpx.Response:
        kind = "text/event-stream" if stream else "application/json"
        return httpx.Response(200, headers={"Content-Type": kind}, content=body)

    settings = settings_for("http://llm.invalid/v1", wire=wire, max_tokens=5)
    async with desk(LlmEndpoint(settings, transport=httpx.MockTransport(answer))) as agent:
        reply = await agent.reply(OPENING, LISTING, stream=stream)
    runs, (rejected,) = sort_calls(reply.tool_calls, LISTING.tools or ())
    assert runs == ()
    assert "cut at its length limit" in rejected.reason
