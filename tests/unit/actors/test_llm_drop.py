"""The LLM actor drops a request that has offered presumed tools, and its conversation is as before."""

from typing import Any

import anyio
import pytest
from llm_desk import LISTING, TURN, desk, settings_for
from msgspec.structs import replace

from grue.actors.llm import LentConversation, LlmActor, LlmEndpoint
from grue.errors import ActorCrashed
from grue.messages import (
    CompletionFailed,
    CompletionReceived,
    DropCompletion,
    OfferTools,
    ReplyDropped,
    RequestCompletion,
    SystemText,
    Usage,
    UserText,
)
from grue.protocol.chat_wire.conversation import EncodedConversation
from grue.protocol.context.history import History, Ledger
from grue.protocol.turn.prices import Price
from grue.runtime.actor import Supervisor
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import ScriptedLlmServer, hang_up, silence, text_reply, tool_calls_reply

pytestmark = pytest.mark.anyio

OTHERS = OfferTools((replace(LISTING.tools[0], description="Other words."),))  # type: ignore[index]
LONG_PATIENCE_S = 60


async def arrived(server: ScriptedLlmServer, count: int = 1) -> None:
    """Wait until the endpoint has a request."""
    with anyio.fail_after(LONG_PATIENCE_S):
        while len(server.requests) < count:  # noqa: ASYNC110 - another thread receives it
            await anyio.sleep(0.01)


async def test_a_request_under_way_is_cancelled_and_charged_as_an_estimate() -> None:
    with ScriptedLlmServer([silence(), text_reply("north")]) as server:
        settings = settings_for(server.base_url, max_tokens=500, prices={"*": Price(input=1.0, output=2.0)})
        async with desk(LlmEndpoint(settings)) as agent:
            await agent.presume()
            await arrived(server)
            (dropped,) = await agent.drop()
            size = len(server.requests[0].raw)
            assert dropped.usage.output_tokens == 500
            assert dropped.usage.input_tokens == -(-size // 3)
            assert dropped.usage.cost_usd == pytest.approx((dropped.usage.input_tokens + 1000) / 1e6)
            reply = await agent.reply((), OTHERS)
        assert reply.content == "north"
        first, second = server.requests
        assert second.messages == first.messages
        assert second.body["tools"][0]["function"]["description"] == "Other words."


async def test_a_reply_that_has_come_is_forgotten_and_was_paid_for() -> None:
    script = [tool_calls_reply(("think.think", {})), text_reply("north")]
    with ScriptedLlmServer(script) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            await agent.presume()
            with anyio.fail_after(LONG_PATIENCE_S):
                assert isinstance((await agent.agent.receive()).body, CompletionReceived)
            assert await agent.drop() == [ReplyDropped(request=1)]
            await agent.reply((), OTHERS)
        assert server.requests[1].messages == server.requests[0].messages


async def test_a_reply_on_its_way_comes_before_the_answer_to_the_drop() -> None:
    with ScriptedLlmServer([text_reply("hm")]) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            await agent.presume()
            with anyio.fail_after(LONG_PATIENCE_S):
                while not len(agent.agent):  # noqa: ASYNC110 - a mailbox has no event to wait for
                    await anyio.sleep(0.01)
            reply, dropped = await agent.drop()
    assert isinstance(reply, CompletionReceived)
    assert dropped == ReplyDropped(request=1)


async def test_a_failed_request_is_dropped_at_no_cost() -> None:
    with ScriptedLlmServer([hang_up()] * 3) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            await agent.presume()
            with anyio.fail_after(LONG_PATIENCE_S):
                assert isinstance((await agent.agent.receive()).body, CompletionFailed)
            assert await agent.drop() == [ReplyDropped(request=1, usage=Usage())]


async def test_the_next_message_is_served_after_a_reply_that_stands() -> None:
    with ScriptedLlmServer([text_reply("north"), text_reply("south")]) as server:
        async with desk(LlmEndpoint(settings_for(server.base_url))) as agent:
            await agent.presume()
            with anyio.fail_after(LONG_PATIENCE_S):
                first = (await agent.agent.receive()).body
            second = await agent.reply((), OfferTools())
    assert (first.content, second.content) == ("north", "south")
    assert [message["role"] for message in server.requests[1].messages][-1] == "assistant"


async def test_a_conversation_that_outlives_the_turn_and_its_file_lose_the_reply() -> None:
    saved: list[bytes] = []
    with ScriptedLlmServer([text_reply("hm"), silence()]) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url))
        history = History(Ledger(saved.append))
        encoded = EncodedConversation(endpoint.profile, model=endpoint.settings.model, history=history)

        async def nothing() -> None:
            pass

        async with Supervisor(Recorder(), turn=1) as supervisor:
            llm: Any = supervisor.mailbox("llm")
            agent: Any = supervisor.mailbox("agent")
            lent = LentConversation(TURN, encoded, nothing)
            supervisor.start(LlmActor(llm, agent, endpoint, supervisor.note, lent))
            new = (SystemText("You play."), UserText("West of House."))
            await llm.send(
                RequestCompletion(conversation=TURN, request=1, new=new, mode=LISTING, presumed=True),
                sender="agent",
            )
            with anyio.fail_after(LONG_PATIENCE_S):
                await agent.receive()
                assert history.unread is not None
                drop = DropCompletion(conversation=TURN, request=1, reason="other tools")
                await llm.send(drop, sender="agent")
                assert (await agent.receive()).body == ReplyDropped(request=1)
    assert history.unread is None
    assert len(history.entries) == 1
    assert saved[-1] == b"", "the reply is taken back from the file"


async def test_an_exception_of_the_request_ends_the_actor_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise LookupError("a bug")

    with ScriptedLlmServer([text_reply("north")]) as server:
        endpoint = LlmEndpoint(settings_for(server.base_url))
        monkeypatch.setattr(endpoint, "post", broken)
        with pytest.raises(ActorCrashed, match="LookupError: a bug"):
            await _presume_once(endpoint)


async def _presume_once(endpoint: LlmEndpoint) -> None:
    async with desk(endpoint) as agent:
        await agent.presume()
        with anyio.fail_after(LONG_PATIENCE_S):
            await agent.agent.receive()
