"""The requirements' own tests, written out: code against their names, signatures and texts works.

Only imports, the `...` of the sketches and `asyncio.run` for pytest-asyncio are ours.
"""

import asyncio
import json
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from grue.config.mcp_servers import MCPConfig, MCPServerConfig
from grue.config.settings import GameConfiguration
from grue.errors import MCPError, MCPServerStartupError, MCPToolCallError
from grue.hosts.zork.agent import ZorkAgent
from grue.hosts.zork.bundled import bundled_server
from grue.hosts.zork.chat_messages import FunctionCall, LLMResponse, ToolCall
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.manager import MCPManager
from grue.messages import ToolCallResult
from grue.testing.doubles import MockLLMClient, MockMCPManager
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply

PARAMETERS = {
    "type": "object",
    "properties": {
        "thought": {"type": "string", "description": "Your current thinking step"},
        "thoughtNumber": {"type": "integer", "minimum": 1},
        "nextThoughtNeeded": {"type": "boolean"},
    },
    "required": ["thought", "thoughtNumber", "nextThoughtNeeded"],
}


@pytest.fixture
def mock_config(tmp_path: Path) -> GameConfiguration:
    thoughtbox = {
        "command": "npx",
        "args": ["-y", "@kastalien-research/thoughtbox"],
        "env": {"DISABLE_THOUGHT_LOGGING": "true"},
    }
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"thoughtbox": thoughtbox}}))
    return GameConfiguration(mcp_enabled=True, project_dir=tmp_path)


@pytest.fixture
def bundled_config(tmp_path: Path) -> GameConfiguration:
    server = bundled_server()
    mind = {"command": server.command, "args": list(server.args)}
    (tmp_path / "mcp_config.json").write_text(json.dumps({"mcpServers": {"mind": mind}}))
    return GameConfiguration(mcp_enabled=True, project_dir=tmp_path)


# --- LLM client extensions ---


def test_llm_response_with_tool_calls() -> None:
    response = LLMResponse(
        content=None,
        model="gpt-4",
        tool_calls=[
            ToolCall(
                id="call_123",
                type="function",
                function=FunctionCall(name="thoughtbox.think", arguments='{"thought": "test"}'),
            )
        ],
        finish_reason="tool_calls",
    )
    assert response.content is None
    assert response.tool_calls is not None
    assert len(response.tool_calls) == 1
    assert response.finish_reason == "tool_calls"


def test_llm_client_supports_tools_parameter(mock_config: GameConfiguration) -> None:
    with ScriptedLlmServer([text_reply("ok")]) as server:
        client = LLMClient(config=mock_config, base_url=server.base_url)
        client.chat_completions_create(
            model="gpt-4",
            messages=[{"role": "user", "content": "test"}],
            tools=[{"type": "function", "function": {"name": "thoughtbox.think", "parameters": PARAMETERS}}],
        )
        client.close()
    assert server.requests[0].tool_names == ["thoughtbox.think"]


def test_the_required_loop_written_by_hand() -> None:
    """The sketch's own loop, on the client: its history goes back and forth as it is."""
    script = [tool_calls_reply(("thoughtbox.think", {"thought": "hm"})), text_reply('{"action": "look"}')]
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are ZorkGPT...", "cache_control": {"type": "ephemeral"}},
        {"role": "user", "content": "Current location: West of House"},
    ]
    with ScriptedLlmServer(script) as server, LLMClient(base_url=server.base_url) as client:
        response = client.chat.completions.create(
            model="gpt-4",
            messages=messages,
            stop=None,
            name="Agent",
            response_format=None,
            tools=[{"type": "function", "function": {"name": "thoughtbox.think", "parameters": PARAMETERS}}],
            tool_choice="auto",
        )
        messages.append(
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": tc.id,
                        "type": tc.type,
                        "function": {"name": tc.function.name, "arguments": tc.function.arguments},
                    }
                    for tc in response.tool_calls
                ],
            }
        )
        result = ToolCallResult(content={"nextThoughtNeeded": False}, is_error=False)
        call_id = response.tool_calls[0].id
        messages.append({"role": "tool", "tool_call_id": call_id, "content": json.dumps(result.to_dict())})
        response = client.chat.completions.create(model="gpt-4", messages=messages, tools=None)
    assert response.content == '{"action": "look"}'


@pytest.mark.parametrize(
    ("model", "supported"),
    [
        ("o1-preview", False),
        ("deepseek/deepseek-r1", False),
        ("openai/gpt-4", True),
        ("anthropic/claude-3.5-sonnet", True),
        ("somebody/new-model", True),
    ],
)
def test_model_compatibility(model: str, supported: bool, mock_config: GameConfiguration) -> None:
    assert LLMClient(config=mock_config)._supports_tool_calling(model, mock_config) is supported


# --- MCP manager ---


def test_mcp_manager_load_config(mock_config: GameConfiguration) -> None:
    manager = MCPManager(config=mock_config, logger=MagicMock())
    assert manager.server_config is not None
    assert manager.server_config.command == "npx"


def test_mcp_manager_schema_translation(mock_config: GameConfiguration) -> None:
    manager = MCPManager(config=mock_config, logger=MagicMock(), langfuse_client=None)
    mcp_schema = {"name": "think", "description": "Structured reasoning", "inputSchema": PARAMETERS}
    openai_schema = manager._translate_schema(mcp_schema, server_name="thoughtbox")
    assert openai_schema == {
        "type": "function",
        "function": {
            "name": "thoughtbox.think",
            "description": "Structured reasoning",
            "parameters": PARAMETERS,
        },
    }


def test_mcp_config_models(mock_config: GameConfiguration) -> None:
    config = MCPConfig.from_file(str(mock_config.mcp_config_path))
    name, server = config.get_server_config()
    assert (name, type(server)) == ("thoughtbox", MCPServerConfig)
    assert server.args == ["-y", "@kastalien-research/thoughtbox"]
    assert server.env == {"DISABLE_THOUGHT_LOGGING": "true"}


def test_mcp_manager_session(bundled_config: GameConfiguration) -> None:
    async def turn() -> tuple[list[str], ToolCallResult]:
        manager = MCPManager(bundled_config, MagicMock())
        assert not manager.is_disabled
        try:
            await manager.connect_session()
            tools = await manager.get_tool_schemas()
            result = await manager.call_tool(
                tool_name="mind.think",
                arguments={
                    "thought": "I have a brass key.",
                    "thoughtNumber": 1,
                    "totalThoughts": 2,
                    "nextThoughtNeeded": True,
                },
                timeout_seconds=bundled_config.mcp_tool_call_timeout_seconds,
            )
        finally:
            await manager.disconnect_session()
        return [tool["function"]["name"] for tool in tools], result

    names, result = asyncio.run(turn())
    assert names == ["mind.think"]
    assert not result.is_error
    assert json.loads(json.dumps(result.to_dict()))["content"]["thoughtNumber"] == 1


# --- Data and errors ---


def test_tool_call_result_to_dict() -> None:
    assert ToolCallResult(content={"a": 1}).to_dict() == {"content": {"a": 1}}
    failed = ToolCallResult(content=None, is_error=True, error_message="Tool call timed out after 30s")
    assert failed.to_dict() == {"error": "Tool call timed out after 30s", "content": None}


def test_errors_have_one_root() -> None:
    assert issubclass(MCPServerStartupError, MCPError)
    assert issubclass(MCPToolCallError, MCPError)


# --- Agent ---

THINKING = ToolCall(
    id="call_1", type="function", function=FunctionCall("thoughtbox.think", '{"thought": "hm"}')
)


def test_agent_tool_calling_loop() -> None:
    mock_mcp = MockMCPManager()
    mock_mcp.set_tool_result("thoughtbox.think", {"nextThoughtNeeded": False})
    mock_llm = MockLLMClient()
    mock_llm.add_response(tool_calls=[THINKING], finish_reason="tool_calls")
    mock_llm.add_response(content='{"thinking": "...", "action": "examine door"}', finish_reason="stop")
    config = GameConfiguration(mcp_enabled=True)
    agent = ZorkAgent(config=config, client=mock_llm, mcp_manager=mock_mcp)
    result = asyncio.run(
        agent._generate_action_async(game_state_text="West of House", relevant_memories=None)
    )
    assert result["action"] == "examine door"
    assert mock_mcp.call_count == 1  # Tool was called once


def test_agent_max_iterations() -> None:
    """25 replies with tool calls: 20 are followed, and a model that goes on calling gets no further ones."""
    mock_mcp = MockMCPManager()
    mock_llm = MockLLMClient()
    # Always return tool calls (never stop)
    for _ in range(25):
        mock_llm.add_response(tool_calls=[THINKING], finish_reason="tool_calls")
    # Final response
    mock_llm.add_response(content='{"thinking": "...", "action": "look"}', finish_reason="stop")
    config = GameConfiguration(mcp_enabled=True)
    agent = ZorkAgent(config=config, client=mock_llm, mcp_manager=mock_mcp)
    result = asyncio.run(agent._generate_action_async(game_state_text="West of House"))
    # Should stop at 20 iterations and force final answer
    assert mock_mcp.call_count == 20
    assert result["action"] is not None
    # What the sketch leaves open: the forced request and its one repair are all that follows.
    assert [bool(request["tools"]) for request in mock_llm.requests] == [True] * 20 + [False] * 2


# --- Doubles ---


def test_mock_mcp_manager() -> None:
    async def turn() -> ToolCallResult:
        mock_mcp = MockMCPManager()
        mock_mcp.set_tool_result("thoughtbox.think", {"nextThoughtNeeded": False})
        await mock_mcp.connect_session()
        assert mock_mcp.connected
        (tool,) = await mock_mcp.get_tool_schemas()
        assert tool["function"]["name"] == "thoughtbox.think"
        result = await mock_mcp.call_tool("thoughtbox.think", {"thought": "hm"})
        assert mock_mcp.call_count == 1
        await mock_mcp.disconnect_session()
        assert not mock_mcp.connected
        return result

    assert asyncio.run(turn()) == ToolCallResult(content={"nextThoughtNeeded": False}, is_error=False)


def test_mock_llm_client() -> None:
    mock_llm = MockLLMClient()
    call = ToolCall(id="call_1", type="function", function=FunctionCall("thoughtbox.think", "{}"))
    mock_llm.add_response(tool_calls=[call], finish_reason="tool_calls")
    mock_llm.add_response(content='{"thinking": "...", "action": "examine door"}', finish_reason="stop")
    first = mock_llm.chat.completions.create(model="gpt-4", messages=[])
    second = mock_llm.chat.completions.create(model="gpt-4", messages=[])
    assert (first.content, first.tool_calls, first.finish_reason) == (None, [call], "tool_calls")
    assert (second.content, second.tool_calls) == ('{"thinking": "...", "action": "examine door"}', None)
    with pytest.raises(MCPError, match="no response for request 3"):
        mock_llm.chat.completions.create(model="gpt-4", messages=[])
