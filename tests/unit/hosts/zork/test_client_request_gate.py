"""Every request of the Zork host's client passes the process's gate, as do calls of other clients."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from grue.config.settings import RetrySettings
from grue.errors import LLMError
from grue.hosting import GameConfiguration
from grue.hosts.zork.agent import ZorkAgent
from grue.hosts.zork.client import LLMClient
from grue.testing.llm_server import ScriptedLlmServer, error_reply, text_reply
from grue.transports.llm.exchange import Permit, RequestOutcome, WantedRequest, set_request_gate

HELLO = [{"role": "user", "content": "Hello."}]


class Gate:
    """A gate that notes what is asked and settled, and refuses if it is told to."""

    def __init__(self) -> None:
        self.refused = ""
        self.wanted: list[WantedRequest] = []
        self.settled: list[RequestOutcome] = []

    async def admit(self, wanted: WantedRequest) -> Permit | str:
        self.wanted.append(wanted)
        return self.refused or self

    def settle(self, outcome: RequestOutcome) -> None:
        self.settled.append(outcome)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """The gate of this process."""
    gate = Gate()
    set_request_gate(gate)
    yield gate
    set_request_gate(None)


def client(server: ScriptedLlmServer) -> LLMClient:
    config = GameConfiguration(retry=RetrySettings(max_retries=2))
    return LLMClient(config, base_url=server.base_url, api_key="k", sleep=lambda _: None)


def test_each_attempt_of_a_blocking_request_asks_and_settles(gate: Gate) -> None:
    replies = iter([error_reply(429, "slow down"), text_reply("hello")])
    with ScriptedLlmServer(lambda request: next(replies)) as server, client(server) as llm:
        assert llm.chat_completions_create("m", HELLO, max_tokens=7).content == "hello"
    assert [(each.model, each.max_tokens) for each in gate.wanted] == [("m", 7)] * 2
    assert [each.status for each in gate.settled] == [429, 200]
    assert all(each.prompt_bytes > len("Hello.") for each in gate.wanted)


def test_a_refused_request_is_not_sent_and_the_error_says_why(gate: Gate) -> None:
    gate.refused = "the fleet's limit of 1 request is used up: 1 is spent"
    with ScriptedLlmServer(lambda request: text_reply("hello")) as server, client(server) as llm:
        with pytest.raises(LLMError, match="The request was not sent: the fleet's limit of 1 request is"):
            llm.chat_completions_create("m", HELLO)
        assert server.requests == []


class OtherClient:
    """A client of another maker, which sends requests as it likes."""

    def __init__(self) -> None:
        self.calls = 0
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **arguments: Any) -> dict[str, Any]:
        self.calls += 1
        message = {
            "role": "assistant",
            "content": '{"thinking": "t", "action": "look", "new_objective": null}',
        }
        return {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        }


def test_a_call_of_another_client_asks_once(gate: Gate) -> None:
    other = OtherClient()
    agent = ZorkAgent(GameConfiguration(), "m", other)
    assert agent.get_action_with_reasoning("You are in a maze.")["action"] == "look"
    assert (other.calls, len(gate.wanted)) == (1, 1)
    assert [(each.status, each.input_tokens, each.output_tokens) for each in gate.settled] == [(200, 5, 2)]
