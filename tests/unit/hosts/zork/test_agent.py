"""`ZorkAgent`: the required signatures on the core."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from grue.config.settings import GameConfiguration
from grue.errors import LLMError, MCPError, MCPServerStartupError
from grue.hosts.zork.agent import ZorkAgent
from grue.hosts.zork.client import LLMClient
from grue.messages import CloseSession, ConnectFailed, McpDisabled, Message, OpenSession, SessionClosed
from grue.policies import FailurePolicy
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.doubles import MockLLMClient, MockMCPManager
from grue.testing.llm_server import ScriptedLlmServer, text_reply

ANSWER = json.dumps({"thinking": "It creaks.", "action": "examine door", "new_objective": None})
THINK = {"name": "thoughtbox.think", "arguments": {"thought": "A door."}}


def agent(client: MockLLMClient, manager: Any = None, **options: Any) -> ZorkAgent:
    config = GameConfiguration(mcp_enabled=manager is not None, project_dir=Path())
    return ZorkAgent(config=config, model="gpt-4", client=client, mcp_manager=manager, **options)


def thinking_client(thoughts: int = 1, answer: str = ANSWER) -> MockLLMClient:
    client = MockLLMClient()
    for _ in range(thoughts):
        client.add_response(tool_calls=[THINK], finish_reason="tool_calls")
    client.add_response(content=answer)
    return client


def test_the_required_tool_calling_loop_works_as_written() -> None:
    manager, client = MockMCPManager(), thinking_client()
    manager.set_tool_result("thoughtbox.think", {"nextThoughtNeeded": False})
    result = agent(client, manager).get_action_with_reasoning("West of House", "Memories: none")
    assert result == {
        "action": "examine door",
        "reasoning": "It creaks.",
        "new_objective": None,
        "raw_response": ANSWER,
    }
    assert manager.call_count == 1
    assert not manager.connected
    assert client.requests[0]["messages"][1]["content"].endswith("West of House\n\nMemories: none") or (
        "West of House\n\nMemories: none"
        in json.dumps(client.requests[0]["messages"][1]).replace("\\n", "\n")
    )
    assert json.loads(client.requests[1]["messages"][-1]["content"]) == {
        "content": {"nextThoughtNeeded": False}
    }


def test_the_async_twin_gives_the_same() -> None:
    manager = MockMCPManager()
    result = asyncio.run(agent(thinking_client(), manager)._generate_action_async("West of House", None))
    assert result["action"] == "examine door"
    assert manager.call_count == 1


def test_max_iterations_force_the_final_answer() -> None:
    manager, client = MockMCPManager(), MockLLMClient()
    for _ in range(20):
        client.add_response(tool_calls=[THINK], finish_reason="tool_calls")
    config = GameConfiguration(mcp_enabled=True, mcp_max_tool_iterations=20)
    client.add_response(content=ANSWER)
    result = ZorkAgent(config=config, client=client, mcp_manager=manager).get_action_with_reasoning("West")
    assert manager.call_count == 20
    assert result["action"] == "examine door"
    assert client.requests[-1]["tools"] is None
    assert client.requests[-1]["response_format"]["type"] == "json_schema"
    asked = str(client.requests[-1]["messages"][-1]["content"])
    assert "Please provide your final action now without calling any more tools." in asked


def test_a_manager_without_a_server_name_keeps_its_tools_own_names() -> None:
    class Bare(MockMCPManager):
        def __init__(self) -> None:
            super().__init__()
            del self.server_name

    manager = Bare()
    assert agent(thinking_client(), manager).get_action_with_reasoning("x")["action"] == "examine door"
    assert manager.calls == [("thoughtbox.think", {"thought": "A door."})]


def test_r15_3_an_answer_that_is_none_falls_back_after_one_repair() -> None:
    client = MockLLMClient()
    client.add_response(content="I think I will look around.")
    client.add_response(content="Look!")
    one = agent(client)
    result = one.get_action_with_reasoning("x")
    assert result["action"] == "look"
    assert result["reasoning"] == "Parse error: it contains no JSON object. Raw: Look!"
    assert one.last_outcome is not None
    assert one.last_outcome.kind == "fallback"


def test_p48_without_mcp_the_keys_are_the_same_and_no_tools_are_offered() -> None:
    client = MockLLMClient()
    client.add_response(content=ANSWER)
    result = agent(client).get_action_with_reasoning("x")
    assert set(result) == {"action", "reasoning", "new_objective", "raw_response"}
    assert client.requests[0]["tools"] is None
    assert client.requests[0]["tool_choice"] is None
    assert client.requests[0]["response_format"] is not None


def test_r12_5_a_model_without_tool_calling_is_refused_before_the_manager_is_touched() -> None:
    manager = MockMCPManager()
    config = GameConfiguration(mcp_enabled=True)
    one = ZorkAgent(config=config, model="qwq-32b", client=MockLLMClient(), mcp_manager=manager)
    with pytest.raises(MCPError, match="Model 'qwq-32b' does not support tool calling"):
        one.get_action_with_reasoning("x")
    assert manager.connect_count == 0


def test_r1_5_with_mcp_off_a_manager_that_is_there_is_left_alone() -> None:
    manager, client = MockMCPManager(), MockLLMClient()
    client.add_response(content=ANSWER)
    config = GameConfiguration(mcp_enabled=False)
    one = ZorkAgent(config=config, model="gpt-4", client=client, mcp_manager=manager)
    assert one.get_action_with_reasoning("x")["action"] == "examine door"
    assert (manager.connect_count, one.server) == (0, None)
    assert client.requests[0]["tools"] is None


def test_r12_4_forced_tool_support_overrides_the_name() -> None:
    manager = MockMCPManager()
    config = GameConfiguration(mcp_enabled=True, mcp_force_tool_support=True)
    one = ZorkAgent(config=config, model="qwq-32b", client=thinking_client(), mcp_manager=manager)
    assert one.get_action_with_reasoning("x")["action"] == "examine door"


@pytest.mark.parametrize("forced", [True, False])
def test_r12_4_the_agents_own_flag_counts_though_its_client_was_made_without_it(forced: bool) -> None:
    with ScriptedLlmServer(lambda _request: text_reply(ANSWER)) as server:
        client = LLMClient(GameConfiguration(), base_url=server.base_url, api_key="k")
        config = GameConfiguration(mcp_enabled=True, mcp_force_tool_support=forced)
        one = ZorkAgent(config=config, model="qwq-32b", client=client, mcp_manager=MockMCPManager())
        if forced:
            assert one.get_action_with_reasoning("x")["action"] == "examine door"
        else:
            with pytest.raises(MCPError, match="does not support tool calling"):
                one.get_action_with_reasoning("x")
    assert [bool(request.body["tools"]) for request in server.requests] == [True] * forced


def test_r6_1_a_manager_that_cannot_connect_on_the_first_turn_ends_it() -> None:
    manager = MockMCPManager()
    manager.connect_error = OSError("no such pipe")
    with pytest.raises(MCPServerStartupError, match="no such pipe"):
        agent(thinking_client(), manager).get_action_with_reasoning("x")


def test_r6_9_a_manager_that_fails_twice_later_is_given_up() -> None:
    manager, client = MockMCPManager(), MockLLMClient()
    for _ in range(4):
        client.add_response(content=ANSWER)
    one = agent(client, manager)
    kinds = []
    for turn in range(4):
        manager.connect_error = OSError("gone") if turn in (1, 2) else None
        one.get_action_with_reasoning("x")
        assert one.last_outcome is not None
        kinds.append(one.last_outcome.kind)
    assert kinds == ["answered", "degraded", "degraded", "degraded"]
    assert manager.connect_count == 1, "no attempt after it was given up"


def test_a_disabled_manager_is_not_connected() -> None:
    manager, client = MockMCPManager(), MockLLMClient()
    manager.is_disabled = True
    client.add_response(content=ANSWER)
    one = agent(client, manager)
    assert one.get_action_with_reasoning("x")["action"] == "examine door"
    assert one.last_outcome is not None
    assert one.last_outcome.kind == "degraded"
    assert manager.connect_count == 0


def test_a_client_that_fails_for_good_is_one_typed_error() -> None:
    class Refusing:
        class chat:  # noqa: N801 - the shape of the required clients
            class completions:  # noqa: N801
                @staticmethod
                def create(**_options: object) -> None:
                    raise ConnectionError("no route")

    with pytest.raises(LLMError, match="no route"):
        agent(Refusing()).get_action_with_reasoning("x")  # type: ignore[arg-type]


def test_p6_one_session_a_turn_is_opened_and_closed() -> None:
    said: list[Message] = []
    recorder = Recorder()

    def keep(envelope: Envelope[Message], line: bytes) -> None:
        said.append(envelope.body)

    recorder.add(keep)
    one = agent(thinking_client(2), MockMCPManager(), recorder=recorder)
    one.get_action_with_reasoning("x")
    order = [type(body) for body in said if isinstance(body, OpenSession | CloseSession | SessionClosed)]
    assert order == [OpenSession, CloseSession, SessionClosed]


def test_a_logger_gets_the_required_records(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("zork-test")
    with caplog.at_level(logging.INFO, logger="zork-test"):
        agent(thinking_client(), MockMCPManager(), logger=logger, episode_id="e1").get_action_with_reasoning(
            "x"
        )
    events = {getattr(record, "event_type", None): record for record in caplog.records}
    assert events["mcp_tool_call"].tool_name == "thoughtbox.think"  # type: ignore[attr-defined]
    assert events["mcp_session_complete"].final_action == "examine door"  # type: ignore[attr-defined]
    assert {record.episode_id for record in caplog.records if record.name != "asyncio"} == {"e1"}  # type: ignore[attr-defined]


def test_the_agent_counts_turns_and_its_host_may_set_them() -> None:
    client = MockLLMClient()
    for _ in range(3):
        client.add_response(content=ANSWER)
    one = agent(client)
    one.get_action_with_reasoning("x")
    assert one.turn == 1
    one.turn = 40
    one.get_action_with_reasoning("x")
    assert one.last_outcome is not None
    assert one.last_outcome.turn == one.turn == 41


def test_p27_a_server_that_was_given_up_stays_so_whatever_the_policy_says() -> None:
    """A runner of another host would try it again in each of these turns."""
    manager = MockMCPManager()
    manager.connect_error = OSError("no such server")
    policy = FailurePolicy(first_connect="disable", retry_disabled_s=0.0)
    made = agent(thinking_client(0), manager, policy=policy)
    told: list[Message] = []
    made.recorder.add(lambda envelope, _line: told.append(envelope.body))
    for turn in range(3):
        if turn:
            manager.connect_error = None
            made.client.add_response(content=ANSWER)
        made.get_action_with_reasoning("West of House", None)
        assert made.last_outcome is not None
        assert made.last_outcome.kind == "degraded"
    assert sum(isinstance(body, ConnectFailed) for body in told) == 1
    assert [body.newly for body in told if isinstance(body, McpDisabled)] == [True, False, False]
