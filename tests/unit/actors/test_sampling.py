"""Sampling: servers' requests to the model, through an LLM actor of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from grue.actors.llm import LlmActor
from grue.actors.sampling import CurrentSampler, Sampler
from grue.messages import ServerName
from grue.policies import Budget
from grue.protocol.retry import RetryPolicy
from grue.runtime.actor import Supervisor
from grue.runtime.trace.recorder import Recorder
from grue.testing.llm_server import ScriptedLlmServer, error_reply, text_reply
from grue.tool_sessions.server_requests import Declined, Sampled, SamplingRequest
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

pytestmark = pytest.mark.anyio
QUESTION = SamplingRequest("Be brief.", (("user", "One?"), ("assistant", "Two."), ("user", "Three?")))


NO_LIMIT = Budget()


@asynccontextmanager
async def sampler(server: ScriptedLlmServer, most: int, budget: Budget = NO_LIMIT) -> AsyncIterator[Sampler]:
    settings = LlmSettings(base_url=server.base_url, model="m", retry=RetryPolicy(max_retries=0))
    async with Supervisor(Recorder(), turn=1) as group:
        llm = group.mailbox("llm-sampling")
        group.start(LlmActor(llm, group.mailbox("agent"), LlmEndpoint(settings), group.note))
        yield Sampler(llm, most, budget)


async def test_each_request_is_a_conversation_of_its_own() -> None:
    with ScriptedLlmServer([text_reply("Four."), text_reply("Five.")]) as server:
        async with sampler(server, 2) as one:
            sample = one.on_behalf_of(ServerName("a"))
            assert await sample(QUESTION) == Sampled("Four.", "scripted")
            assert await sample(SamplingRequest("", (("user", "Again?"),))) == Sampled("Five.", "scripted")
        first, second = (request.body["messages"] for request in server.requests)
    assert [(message["role"], message["content"]) for message in first] == [
        ("system", "Be brief."),
        ("user", "One?"),
        ("assistant", "Two."),
        ("user", "Three?"),
    ]
    assert [message["content"] for message in second] == ["Again?"]


async def test_the_limit_is_the_turns_whoever_asks() -> None:
    with ScriptedLlmServer([text_reply("Four.")]) as server:
        async with sampler(server, 1) as one:
            await one.on_behalf_of(ServerName("a"))(QUESTION)
            answer = await one.on_behalf_of(ServerName("b"))(QUESTION)
    assert answer == Declined("this turn allows 1 sampling requests, and they are used up")


async def test_what_servers_ask_is_counted_and_declined_once_it_has_spent_the_budget() -> None:
    with ScriptedLlmServer([text_reply("Four.")]) as server:
        async with sampler(server, 5, Budget(tokens=15)) as one:
            sample = one.on_behalf_of(ServerName("a"))
            assert await sample(QUESTION) == Sampled("Four.", "scripted")
            assert (one.spent.requests, one.spent.tokens) == (1, 15)
            answer = await sample(QUESTION)
    assert answer == Declined("the budget of this turn is spent")


async def test_a_model_that_fails_is_told_to_the_server() -> None:
    with ScriptedLlmServer([error_reply(500, "out of order")]) as server:
        async with sampler(server, 1) as one:
            answer = await one.on_behalf_of(ServerName("a"))(QUESTION)
    assert isinstance(answer, Declined)
    assert "out of order" in answer.reason


async def test_half_a_reply_is_no_answer_to_a_server() -> None:
    with ScriptedLlmServer([text_reply("You are", finish_reason="content_filter")]) as server:
        async with sampler(server, 1) as one:
            answer = await one.on_behalf_of(ServerName("a"))(QUESTION)
    assert answer == Declined("the provider stopped the reply before its end (content_filter)")


async def test_a_session_that_is_opened_beside_a_turn_asks_nothing_on_its_behalf() -> None:
    with ScriptedLlmServer([text_reply("Four.")]) as server:
        async with sampler(server, 1) as its_own, sampler(server, 1) as other:
            current = CurrentSampler()
            current.sampler = other
            sample = current.on_behalf_of(ServerName("a"), beside=other)
            assert await sample(QUESTION) == Declined("no turn is running that allows it")
            current.sampler = its_own
            assert await sample(QUESTION) == Sampled("Four.", "scripted")
