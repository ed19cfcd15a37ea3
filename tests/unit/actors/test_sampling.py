"""Sampling: servers' requests to the model, through an LLM actor of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import promises
import pytest

from grue.actors.llm import LlmActor
from grue.actors.sampling import CurrentSampler, Sampler
from grue.messages import CompletionPostponed, ServerName, ServerSampled, Usage
from grue.policies import Budget, TurnLimits
from grue.protocol.retry import RetryPolicy
from grue.protocol.turn.prices import Spent
from grue.runtime.actor import Actor, Supervisor, reply
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.llm_server import ScriptedLlmServer, error_reply, silence, text_reply
from grue.tool_sessions.server_requests import Declined, Sampled, SamplingRequest
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

pytestmark = pytest.mark.anyio
QUESTION = SamplingRequest("Be brief.", (("user", "One?"), ("assistant", "Two."), ("user", "Three?")))


NO_LIMIT = Budget()


class Agent(Actor[Any]):
    """Counts what it is told, as the turn's state machine does. The turn itself has asked once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told: list[Any] = []
        self.llms: list[LlmActor] = []
        self.scopes: list[anyio.CancelScope] = []

    async def receive(self, envelope: Envelope[Any]) -> None:
        self.told.append(envelope.body)

    def spent(self) -> Spent:
        return Spent(requests=1 + len(self.told), usage=sum((each.usage for each in self.told), Usage()))


@asynccontextmanager
async def sampler(server: ScriptedLlmServer, most: int, budget: Budget = NO_LIMIT) -> AsyncIterator[Sampler]:
    async with counted(server, most, budget) as (one, _):
        yield one


@asynccontextmanager
async def counted(
    server: ScriptedLlmServer, most: int, budget: Budget, *, reads: bool = True
) -> AsyncIterator[tuple[Sampler, Agent]]:
    settings = LlmSettings(base_url=server.base_url, model="m", retry=RetryPolicy(max_retries=0))
    endpoint = LlmEndpoint(settings)
    async with Supervisor(Recorder(), turn=1) as group:
        agent = Agent(group.mailbox("agent"))
        if reads:
            group.start(agent)

        def start() -> tuple[LlmActor, anyio.CancelScope]:
            llm = LlmActor(group.mailbox("llm-sampling"), agent.mailbox, endpoint, group.note)
            agent.llms.append(llm)
            agent.scopes.append(group.start(llm))
            return llm, agent.scopes[-1]

        limits = TurnLimits(max_samplings=most, budget=budget)
        yield Sampler(start, agent.mailbox, limits, agent.spent, lambda: len(agent.told)), agent


async def test_each_request_is_a_conversation_of_its_own() -> None:
    with ScriptedLlmServer([text_reply("Four."), text_reply("Five.")]) as server:
        async with sampler(server, 2) as one:
            sample = partial(one.sample, ServerName("a"))
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


class Postponer(Actor[Any]):
    """An LLM actor whose replies come in a batch."""

    async def receive(self, envelope: Envelope[Any]) -> None:
        reply(envelope, CompletionPostponed(request=1, item="a"))


async def test_a_request_that_is_postponed_is_declined_and_costs_nothing() -> None:
    async with Supervisor(Recorder(), turn=1) as group:
        agent, llm = Agent(group.mailbox("agent")), Postponer(group.mailbox("llm-sampling"))
        group.start(agent)
        limits = TurnLimits(max_samplings=1)
        one = Sampler(lambda: (llm, group.start(llm)), agent.mailbox, limits, agent.spent, lambda: 0)
        answer = await one.sample(ServerName("a"), QUESTION)
    assert answer == Declined("the model's reply comes later, in a batch of the provider")
    assert agent.told == []


async def test_the_limit_is_the_turns_whoever_asks() -> None:
    with ScriptedLlmServer([text_reply("Four.")]) as server:
        async with sampler(server, 1) as one:
            await one.sample(ServerName("a"), QUESTION)
            answer = await one.sample(ServerName("b"), QUESTION)
    assert answer == Declined("the limit of sampling requests in this turn is used up: 1")


@pytest.mark.parametrize("budget", [Budget(tokens=15), Budget(requests=3)], ids=["tokens", "requests"])
async def test_the_agent_is_told_of_each_request_and_none_is_made_beyond_the_budget(budget: Budget) -> None:
    with ScriptedLlmServer([text_reply("Four.")]) as server:
        async with counted(server, 5, budget) as (one, agent):
            sample = partial(one.sample, ServerName("a"))
            assert await sample(QUESTION) == Sampled("Four.", "scripted")
            await anyio.wait_all_tasks_blocked()
            assert agent.told == [ServerSampled(server="a", usage=Usage(input_tokens=10, output_tokens=5))]
            answer = await sample(QUESTION)
    assert answer == Declined("the budget of this turn is spent"), "one request is left for the answer"


async def test_requests_at_the_same_time_leave_one_for_the_answer() -> None:
    with ScriptedLlmServer([text_reply("Four.")]) as server:
        async with counted(server, 5, Budget(requests=3)) as (one, _), anyio.create_task_group() as tasks:
            sample, answers = partial(one.sample, ServerName("a")), []

            async def ask() -> None:
                answers.append(await sample(QUESTION))

            tasks.start_soon(ask)
            tasks.start_soon(ask)
    assert answers == [Declined("the budget of this turn is spent"), Sampled("Four.", "scripted")]


async def test_a_report_that_the_agent_has_not_read_counts() -> None:
    """A server may ask again before the agent has read what the first request has cost."""
    with ScriptedLlmServer([text_reply("Four.")] * 2) as server:
        async with counted(server, 5, Budget(requests=3), reads=False) as (one, _):
            assert await one.sample(ServerName("a"), QUESTION) == Sampled("Four.", "scripted")
            answer = await one.sample(ServerName("a"), QUESTION)
    assert answer == Declined("the budget of this turn is spent")


async def test_a_request_that_its_server_cancels_is_counted_and_ends() -> None:
    with ScriptedLlmServer([silence(), text_reply("Four.")]) as server:
        async with counted(server, 5, NO_LIMIT) as (one, agent):
            sample = partial(one.sample, ServerName("a"), QUESTION)
            await promises.cancelled_when(lambda: server.requests, sample)
            await anyio.wait_all_tasks_blocked()
            (told,) = agent.told
            assert (told.server, told.usage.input_tokens > 0) == ("a", True)
            assert agent.llms[0].mailbox.is_closed, "nobody waits for the reply any more"
            with anyio.fail_after(promises.GUARD_S):
                assert await sample() == Sampled("Four.", "scripted"), "it does not wait for the first reply"


async def test_a_request_that_the_end_of_its_turn_interrupts_is_counted() -> None:
    with ScriptedLlmServer([silence()]) as server:
        async with counted(server, 5, NO_LIMIT) as (one, agent), anyio.create_task_group() as tasks:
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await one.sample(ServerName("a"), QUESTION))

            tasks.start_soon(ask)
            with anyio.fail_after(promises.GUARD_S):
                while not server.requests:  # noqa: ASYNC110 - nothing tells us
                    await anyio.sleep(0.005)
            agent.scopes[0].cancel()
        assert answers == [Declined("the turn has ended")]
        assert [told.usage.input_tokens > 0 for told in agent.told] == [True]


async def test_a_slow_reply_to_one_server_does_not_hold_up_another() -> None:
    with ScriptedLlmServer([silence(), text_reply("Four.")]) as server:
        async with sampler(server, 5) as one, anyio.create_task_group() as tasks:
            tasks.start_soon(one.sample, ServerName("slow"), QUESTION)
            with anyio.fail_after(promises.GUARD_S):
                while not server.requests:  # noqa: ASYNC110 - nothing tells us
                    await anyio.sleep(0.005)
                assert await one.sample(ServerName("quick"), QUESTION) == Sampled("Four.", "scripted")
            tasks.cancel_scope.cancel()


async def test_a_model_that_fails_is_told_to_the_server() -> None:
    with ScriptedLlmServer([error_reply(500, "out of order")]) as server:
        async with sampler(server, 1) as one:
            answer = await one.sample(ServerName("a"), QUESTION)
    assert isinstance(answer, Declined)
    assert "out of order" in answer.reason


async def test_half_a_reply_is_no_answer_to_a_server() -> None:
    with ScriptedLlmServer([text_reply("You are", finish_reason="content_filter")]) as server:
        async with sampler(server, 1) as one:
            answer = await one.sample(ServerName("a"), QUESTION)
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
