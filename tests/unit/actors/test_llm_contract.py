"""Every way to ask a model gives the agent the same events for the same conversation."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import anyio
import pytest
from msgspec.structs import replace

from grue.actors.llm import LlmActor
from grue.config.settings import GameConfiguration, RetrySettings
from grue.engine.runner import LlmFactory
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.client_actor import client_actor
from grue.messages import (
    AnswerSchema,
    CompletionFailed,
    CompletionReceived,
    OfferTools,
    RequestCompletion,
    RequireAnswer,
    SystemText,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserText,
)
from grue.protocol.retry import RetryPolicy
from grue.runtime.actor import Supervisor
from grue.runtime.trace.recorder import Recorder
from grue.testing.doubles import MockLLMClient
from grue.testing.llm_server import LlmReply, ScriptedLlmServer, error_reply, text_reply, tool_calls_reply
from grue.testing.providers.chat_rules import ProviderRules
from grue.transports.llm.endpoint import LlmEndpoint, LlmSettings

pytestmark = pytest.mark.anyio

THINK = ToolDefinition(
    server="mind",
    tool="think",
    description="Think.",
    input_schema={"type": "object", "properties": {"thought": {"type": "string"}}},
)
ANSWER = AnswerSchema(
    "AgentResponse",
    {"type": "object", "properties": {"action": {"type": "string"}, "why": {"type": "string"}}},
)
OPENING = (SystemText("You play."), UserText("A dark room."))


class Said(NamedTuple):
    """What the model is made to say: a text, tool calls (id, name, arguments), or an HTTP error."""

    text: str | None = None
    calls: Sequence[tuple[str, str, str]] = ()
    status: int = 200

    def reply(self) -> LlmReply:
        if self.status != 200:
            return error_reply(self.status, "no, thank you")
        if not self.calls:
            return text_reply(self.text)
        named = [(name, arguments) for _, name, arguments in self.calls]
        return tool_calls_reply(*named, ids=[call_id for call_id, _, _ in self.calls])


class RefusalError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__("no, thank you")
        self.status_code = status_code


@contextmanager
def served(script: Sequence[Said]) -> Iterator[ScriptedLlmServer]:
    rules = ProviderRules(cache_markers=0)
    with ScriptedLlmServer([said.reply() for said in script], rules=rules) as server:
        yield server


@contextmanager
def over_http(script: Sequence[Said], server: ScriptedLlmServer | None = None) -> Iterator[LlmFactory]:
    with ExitStack() as stack:
        server = server or stack.enter_context(served(script))
        settings = LlmSettings(base_url=server.base_url, model="gpt-4o", retry=RetryPolicy(max_retries=0))
        yield lambda mailbox, agent, note: LlmActor(mailbox, agent, LlmEndpoint(settings), note)


@contextmanager
def over_client(script: Sequence[Said], server: ScriptedLlmServer | None = None) -> Iterator[LlmFactory]:
    with ExitStack() as stack:
        server = server or stack.enter_context(served(script))
        config = GameConfiguration(retry=RetrySettings(max_retries=0))
        yield client_actor(
            stack.enter_context(LLMClient(config, base_url=server.base_url, api_key="")), "gpt-4o"
        )


@contextmanager
def over_mock(script: Sequence[Said]) -> Iterator[LlmFactory]:
    client = MockLLMClient()
    for said in script:
        if said.status != 200:
            client.add_error(RefusalError(said.status))
            continue
        calls = [
            {"id": call_id, "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in said.calls
        ]
        client.add_response(content=said.text, tool_calls=calls)
    yield client_actor(client, "gpt-4o")


KINDS: dict[str, Callable[[Sequence[Said]], Any]] = {
    "LlmActor": over_http,
    "LLMClient": over_client,
    "MockLLMClient": over_mock,
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


Ask = Callable[[RequestCompletion], Any]


@asynccontextmanager
async def asking(llm: LlmFactory) -> AsyncIterator[Ask]:
    async with Supervisor(Recorder()) as supervisor:
        agent = supervisor.mailbox("agent")
        mailbox = supervisor.mailbox("llm")
        supervisor.start(llm(mailbox, agent, supervisor.note))

        async def ask(command: RequestCompletion) -> Any:
            await mailbox.send(command, sender="agent")
            with anyio.fail_after(60):
                return (await agent.receive()).body

        yield ask


def first(mode: OfferTools | RequireAnswer | None = None) -> RequestCompletion:
    return request(1, *OPENING, mode=mode or OfferTools((THINK,)))


def request(number: int, *new: Any, mode: OfferTools | RequireAnswer | None = None) -> RequestCompletion:
    return RequestCompletion(conversation="turn", request=number, new=new, mode=mode or OfferTools())


def comparable(event: Any) -> Any:
    """Return a completion without what depends on who was asked."""
    assert isinstance(event, CompletionReceived)
    none = CompletionReceived(request=0)
    return replace(event, model="", usage=none.usage, facts=none.facts, elapsed_s=0.0, prompt_tokens=0)


async def test_calls_and_text_arrive_the_same(kind: Any) -> None:
    script = [
        Said(calls=[("a", "mind.think", '{"thought": "hm"}'), ("b", "mind.think", "not JSON")]),
        Said(calls=[("c", "mind.nonsense", "")]),
        Said(text='{"action": "north"}'),
    ]
    with kind(script) as llm:
        async with asking(llm) as ask:
            heard = [
                await ask(first()),
                await ask(request(2, ToolMessage("a", '{"content": 1}'), ToolMessage("b", '{"error": "?"}'))),
                await ask(
                    request(3, ToolMessage("c", "{}"), UserText("Now answer."), mode=RequireAnswer(ANSWER))
                ),
            ]
    calls = (ToolCall(call_id="a", name="mind.think", arguments='{"thought": "hm"}'),)
    calls += (ToolCall(call_id="b", name="mind.think", arguments="not JSON"),)
    nonsense = ToolCall(call_id="c", name="mind.nonsense", arguments="{}")
    assert [comparable(event) for event in heard] == [
        CompletionReceived(request=1, tool_calls=calls, finish_reason="tool_calls"),
        CompletionReceived(request=2, tool_calls=(nonsense,), finish_reason="tool_calls"),
        CompletionReceived(request=3, content='{"action": "north"}', finish_reason="stop"),
    ]


async def test_p11_ids_are_made_unique_in_the_same_way(kind: Any) -> None:
    script = [
        Said(calls=[("x", "mind.think", "{}"), ("x", "mind.think", "{}")]),
        Said(calls=[("x", "mind.think", "{}")]),
    ]
    with kind(script) as llm:
        async with asking(llm) as ask:
            one = await ask(first())
            two = await ask(request(2, *(ToolMessage(call.call_id, "{}") for call in one.tool_calls)))
    ids = [call.call_id for call in (*one.tool_calls, *two.tool_calls)]
    assert ids == ["x", "call_1_1", "call_2_1"]


async def test_a_call_that_was_not_answered_is_not_repeated(kind: Any) -> None:
    """The scripted server, like a strict provider, would refuse the second request otherwise."""
    script = [Said(calls=[("a", "mind.think", "{}"), ("b", "mind.think", "{}")]), Said(text="done")]
    with kind(script) as llm:
        async with asking(llm) as ask:
            await ask(first())
            heard = await ask(request(2, ToolMessage("b", "{}"), mode=RequireAnswer()))
    assert comparable(heard).content == "done"


async def test_nothing_said_is_an_empty_completion(kind: Any) -> None:
    with kind([Said()]) as llm:
        async with asking(llm) as ask:
            heard = comparable(await ask(first()))
    assert heard == CompletionReceived(request=1, finish_reason="stop")


@pytest.mark.parametrize(("status", "meant"), [(401, "refused"), (503, "unavailable")])
async def test_a_failure_has_the_same_meaning(kind: Any, status: int, meant: str) -> None:
    with kind([Said(status=status)]) as llm:
        async with asking(llm) as ask:
            heard = await ask(first())
    assert isinstance(heard, CompletionFailed)
    assert (heard.request, heard.failure.kind, heard.failure.status) == (1, meant, status)
    assert heard.failure.model == "gpt-4o"
    assert "no, thank you" in heard.failure.message


async def test_the_blocking_client_sends_the_very_bytes_of_the_actor() -> None:
    script = [Said(calls=[("a", "mind.think", "{}")]), Said(text="{}"), Said(text="{}")]
    sent = []
    for over in (over_http, over_client):
        with served(script) as server, over(script, server) as llm:
            async with asking(llm) as ask:
                await ask(first())
                await ask(request(2, ToolMessage("a", "{}")))
                await ask(request(3, UserText("Again."), mode=RequireAnswer(ANSWER)))
            assert not [request.refused for request in server.requests if request.refused]
            sent.append([request.raw for request in server.requests])
    assert sent[0] == sent[1]
