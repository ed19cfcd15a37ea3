"""R12, P13: who says whether a model can call tools, where the client has a method of its own for it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from grue.config.settings import GameConfiguration
from grue.errors import MCPError
from grue.hosts.zork.agent import ZorkAgent
from grue.hosts.zork.chat_messages import LLMResponse
from grue.hosts.zork.client import LLMClient
from grue.messages import ToolSupportChecked
from grue.runtime.trace.recorder import Recorder
from grue.testing.doubles import MockLLMClient, MockMCPManager
from grue.testing.llm_server import ScriptedLlmServer, text_reply

ANSWER = '{"thinking": "...", "action": "examine door"}'
DENIED_BY_NAME, KNOWN_BY_NAME = "qwq-32b", "gpt-4"


def judging(verdict: Any) -> MockLLMClient:
    """A client that says so of every model; a function takes the place of its method."""
    client = MockLLMClient()
    client.add_response(content=ANSWER)
    client._supports_tool_calling = verdict if callable(verdict) else lambda model, config=None: verdict  # type: ignore[method-assign]
    return client


def agent(client: Any, model: str, manager: MockMCPManager, **options: Any) -> ZorkAgent:
    forced = options.pop("force", False)
    config = GameConfiguration(mcp_enabled=True, mcp_force_tool_support=forced)
    return ZorkAgent(config=config, model=model, client=client, mcp_manager=manager, **options)


@pytest.mark.parametrize("model", [DENIED_BY_NAME, KNOWN_BY_NAME, "x-ai/grok-4-fast-reasoning", "new"])
def test_p13_the_clients_own_word_decides_whatever_the_name_is(model: str) -> None:
    willing = MockMCPManager()
    assert agent(judging(True), model, willing).get_action_with_reasoning("x")["action"] == "examine door"
    assert willing.connect_count == 1
    client, manager = judging(False), MockMCPManager()
    with pytest.raises(MCPError, match=f"Model '{model}' does not support tool calling") as caught:
        agent(client, model, manager).get_action_with_reasoning("x")
    assert "the client's _supports_tool_calling says so" in str(caught.value)
    assert (manager.connect_count, client.requests) == (0, [])


def test_r12_4_forced_it_is_not_asked() -> None:
    manager = MockMCPManager()
    agent(judging(False), DENIED_BY_NAME, manager, force=True).get_action_with_reasoning("x")
    assert manager.connect_count == 1


def test_without_tools_on_offer_it_is_not_asked() -> None:
    client, manager = judging(False), MockMCPManager()
    manager.is_disabled = True
    assert agent(client, KNOWN_BY_NAME, manager).get_action_with_reasoning("x")["action"] == "examine door"


def test_r6_9_a_server_that_is_given_up_needs_no_model_that_calls_tools() -> None:
    manager = MockMCPManager()
    manager.is_disabled = True
    with ScriptedLlmServer([text_reply(ANSWER)]) as server:
        one = agent(LLMClient(base_url=server.base_url), DENIED_BY_NAME, manager)
        assert one.get_action_with_reasoning("x")["action"] == "examine door"


def test_it_is_asked_as_required() -> None:
    asked: list[Any] = []

    def with_the_model_only(model: str) -> bool:
        asked.append((model,))
        return True

    def with_the_configuration(model: str, config: GameConfiguration) -> bool:
        asked.append((model, config.mcp_enabled))
        return True

    async def later(model: str) -> bool:
        await asyncio.sleep(0)
        asked.append((model, "later"))
        return True

    for method in (with_the_model_only, with_the_configuration, later):
        agent(judging(method), KNOWN_BY_NAME, MockMCPManager()).get_action_with_reasoning("x")
    assert asked == [("gpt-4",), ("gpt-4", True), ("gpt-4", "later")]


def test_what_it_raises_is_a_no_without_the_key() -> None:
    def raises(model: str) -> bool:
        raise ConnectionError("no answer to sk-very-secret")

    client, manager = judging(raises), MockMCPManager()
    client.api_key = "sk-very-secret"  # type: ignore[attr-defined]
    with pytest.raises(MCPError, match="raised ConnectionError: no answer to") as caught:
        agent(client, KNOWN_BY_NAME, manager).get_action_with_reasoning("x")
    assert "sk-very-secret" not in str(caught.value)
    assert manager.connect_count == 0


def test_the_verdict_is_in_the_trace() -> None:
    recorder, verdicts = Recorder(), []
    recorder.add(lambda envelope, _: verdicts.append(envelope.body))
    agent(judging(True), DENIED_BY_NAME, MockMCPManager(), recorder=recorder).get_action_with_reasoning("x")
    (checked,) = [body for body in verdicts if isinstance(body, ToolSupportChecked)]
    assert (checked.supported, checked.by, checked.endpoint) == (True, "client", "MockLLMClient")


# --- Clients made from ours ---


def deaf() -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        raise AssertionError("nothing is to be sent")

    return httpx.MockTransport(answer)


class Judging(LLMClient):
    def _supports_tool_calling(self, model: str, config: GameConfiguration | None = None) -> bool:
        return model == DENIED_BY_NAME


def test_p13_a_subclass_of_ours_is_asked_and_still_has_our_endpoint() -> None:
    manager = MockMCPManager()
    with pytest.raises(MCPError, match="_supports_tool_calling says so"):
        agent(Judging(transport=deaf()), KNOWN_BY_NAME, manager).get_action_with_reasoning("x")
    assert manager.connect_count == 0
    with ScriptedLlmServer([text_reply(ANSWER)]) as server:
        client = Judging(base_url=server.base_url)
        assert (
            agent(client, DENIED_BY_NAME, manager).get_action_with_reasoning("x")["action"] == "examine door"
        )
    assert server.requests[0].tool_names == ["thoughtbox.think"]


def test_p13_a_method_that_is_replaced_later_is_asked() -> None:
    with ScriptedLlmServer([text_reply(ANSWER)]) as server:
        client, manager = LLMClient(base_url=server.base_url), MockMCPManager()
        one = agent(client, KNOWN_BY_NAME, manager)
        assert one.get_action_with_reasoning("x")["action"] == "examine door"
        client._supports_tool_calling = lambda model, config=None: False  # type: ignore[method-assign]
        with pytest.raises(MCPError, match="does not support tool calling"):
            one.get_action_with_reasoning("x")
    assert manager.connect_count == 1


def completing(**kwargs: Any) -> LLMResponse:
    return LLMResponse(content=ANSWER, model=kwargs["model"])


class Completing(LLMClient):
    def chat_completions_create(self, *args: Any, **kwargs: Any) -> LLMResponse:
        return completing(**kwargs)


@pytest.mark.parametrize("where", ["subclass", "object", "chat.completions", "chat"])
def test_turns_go_through_a_completion_method_of_the_programs_own(where: str) -> None:
    client = (Completing if where == "subclass" else LLMClient)(transport=deaf())
    one = agent(client, KNOWN_BY_NAME, MockMCPManager())
    if where == "object":
        client.chat_completions_create = completing  # type: ignore[method-assign]
    elif where == "chat.completions":
        client.chat.completions.create = completing
    elif where == "chat":
        client.chat = SimpleNamespace(completions=SimpleNamespace(create=completing))
    assert one.get_action_with_reasoning("x")["action"] == "examine door"
