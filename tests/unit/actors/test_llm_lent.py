"""A conversation that outlives the turn: what is on file when, and whose thoughts are sent to whom."""

import json

import pytest
from llm_desk import LISTING, OPENING, TURN, desk, notes, settings_for

from grue.actors.llm import LentConversation, LlmEndpoint
from grue.messages import (
    AnswerSchema,
    RequireAnswer,
    SchemaIgnored,
    ThoughtsDropped,
    ToolMessage,
    UserText,
)
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.chat_wire.profiles import GENERIC
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

pytestmark = pytest.mark.anyio

THOUGHT = "a private thought of another model"


async def test_a_reply_is_on_file_before_its_calls_can_be_made() -> None:
    saved: list[object] = []
    conversation = EncodedConversation(GENERIC, model="some/model")

    async def save() -> None:
        saved.append(conversation.history.unread)

    with ScriptedLlmServer([tool_calls_reply(("think.think", "{}"))]) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, profile=GENERIC))
        async with desk(endpoint, lent=LentConversation(TURN, conversation, save)) as agent:
            reply = await agent.reply()
            assert reply.tool_calls
            assert len(saved) == 2, "what was asked, and the reply"
            assert saved[0] is None
            assert saved[1] is conversation.history.unread is not None


@pytest.mark.parametrize("model", ["some/model", "another/model"])
async def test_thoughts_go_to_the_model_that_had_them_and_to_no_other(model: str) -> None:
    conversation = EncodedConversation(GENERIC, model="some/model")

    async def save() -> None: ...

    lines: list[bytes] = []
    said = tool_calls_reply(("think.think", "{}"), reasoning_content=THOUGHT)
    with ScriptedLlmServer([said, text_reply("ok")]) as server:
        for named, new in (("some/model", OPENING), (model, None)):
            endpoint = LlmEndpoint(settings_for(server.base_url, profile=GENERIC, model=named))
            async with desk(endpoint, lines, LentConversation(TURN, conversation, save)) as agent:
                if new is not None:
                    call_id = (await agent.reply(new)).tool_calls[0].call_id
                else:
                    await agent.reply((ToolMessage(call_id, "ok"), UserText("And?")), LISTING)
        sent = json.dumps(server.requests[1].body)
    assert (THOUGHT in sent) == (model == "some/model")
    assert len(notes(lines, ThoughtsDropped)) == (model != "some/model")


@pytest.mark.parametrize("finish", ["length", "content_filter", "stop"])
async def test_only_a_whole_reply_shows_that_an_endpoint_ignores_schemas(finish: str) -> None:
    schema = AnswerSchema("a", {"type": "object", "properties": {"x": {}}, "required": ["x"]})
    lines: list[bytes] = []
    with ScriptedLlmServer([text_reply('{"x', finish_reason=finish)]) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url, profile=GENERIC))
        async with desk(endpoint, lines) as agent:
            await agent.reply(mode=RequireAnswer(schema))
    assert endpoint.profile.ignores_schema == (finish == "stop")
    assert len(notes(lines, SchemaIgnored)) == (finish == "stop")
