"""D4: the required hosts feed the Langfuse client that they are given."""

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest
from langfuse_stand_in import StandIn

from grue.config.settings import GameConfiguration
from grue.hosts.zork.games.house import HouseGame
from grue.hosts.zork.manager import MCPManager
from grue.hosts.zork.orchestrator import EpisodeSetup, ZorkOrchestratorV2
from grue.testing import faulty_server
from grue.testing.doubles import MockLLMClient
from grue.testing.leftovers import assert_nothing_left

DEADLINE_S = 60.0


def configuration(folder: Path, *flags: str, **given: Any) -> GameConfiguration:
    command, *args = faulty_server.argv(*flags)
    servers = {"mcpServers": {"box": {"command": command, "args": args}}}
    (folder / "mcp_config.json").write_text(json.dumps(servers))
    return GameConfiguration(project_dir=folder, mcp_enabled=True, **given)


@pytest.mark.slow
def test_a_manager_that_is_used_by_itself_tells_of_its_sessions_and_calls(tmp_path: Path) -> None:
    client = StandIn()

    async def use() -> None:
        manager = MCPManager(configuration(tmp_path), langfuse_client=client)
        await manager.connect_session()
        await manager.call_tool("box.echo", {"text": "hi"}, timeout_seconds=DEADLINE_S)
        await manager.call_tool("box.fail", {})
        await manager.disconnect_session()

    with assert_nothing_left():
        asyncio.run(use())
        gc.collect()  # nobody has the manager any more: what it was told is sent
        assert client.flushed.wait(DEADLINE_S)
    assert client.tree() == [
        ("client", "episode"),
        ("episode", "agent-tool-calling-session"),
        ("agent-tool-calling-session", "mcp-tool-box.echo"),
        ("agent-tool-calling-session", "mcp-tool-box.fail"),
    ]
    assert client.beginning("mcp-tool-box.echo")["input"] == {"text": "hi"}
    assert client.beginning("mcp-tool-box.echo")["metadata"]["timeout_seconds"] == DEADLINE_S
    assert client.ending("mcp-tool-box.echo")["output"] == {"content": "hi"}
    assert client.ending("mcp-tool-box.fail")["level"] == "ERROR"
    assert sorted(client.ended()) == sorted(name for _, name in client.tree())
    assert not client.shut_down.is_set()


def test_a_manager_that_is_told_to_use_langfuse_and_is_not_used_has_no_thread(tmp_path: Path) -> None:
    client = StandIn()
    with assert_nothing_left():
        manager = MCPManager(configuration(tmp_path), langfuse_client=client)
    assert manager.langfuse_client is client
    assert client.log == []


@pytest.mark.slow
def test_an_episode_is_told_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    client, llm = StandIn(), MockLLMClient()
    llm.add_response(tool_calls=[{"id": "c1", "name": "box.echo", "arguments": '{"text": "hm"}'}])
    for action in ("look", "inventory"):
        llm.add_response(content=json.dumps({"thinking": "Hm.", "action": action, "new_objective": None}))
    setup = EpisodeSetup(game=HouseGame(), client=llm, max_turns=2, langfuse_client=client)

    with assert_nothing_left():
        orchestrator = ZorkOrchestratorV2("episode-9", configuration(tmp_path), setup)
        result = orchestrator.play_episode()
        orchestrator.close()
    assert result.commands == ("look", "inventory")
    assert client.flushed.is_set()
    assert client.tree() == [
        ("client", "episode"),
        ("episode", "turn 1"),
        ("turn 1", "agent-tool-calling-session"),
        ("agent-tool-calling-session", "Agent"),
        ("agent-tool-calling-session", "mcp-tool-box.echo"),
        ("agent-tool-calling-session", "Agent"),
        ("episode", "turn 2"),
        ("turn 2", "agent-tool-calling-session"),
        ("agent-tool-calling-session", "Agent"),
    ]
    assert client.beginning("episode")["trace_context"] == {"trace_id": "trace of episode-9"}
    assert client.ending("episode")["metadata"]["reason"] == "turn_limit"
    assert sorted(client.ended()) == sorted(name for _, name in client.tree())


@pytest.mark.parametrize("fails", ["create_trace_id", "start_observation", "flush"])
def test_p32_a_client_that_raises_changes_nothing_but_the_log(
    tmp_path: Path, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(StandIn):
        def __getattribute__(self, name: str) -> Any:
            if name == fails:
                raise LookupError("no such client")
            return super().__getattribute__(name)

    llm = MockLLMClient()
    llm.add_response(content=json.dumps({"thinking": "Hm.", "action": "look", "new_objective": None}))
    setup = EpisodeSetup(game=HouseGame(), client=llm, max_turns=1, langfuse_client=Broken())
    orchestrator = ZorkOrchestratorV2("episode-9", configuration(tmp_path), setup)
    assert orchestrator.play_episode().commands == ("look",)
    orchestrator.close()
    warnings = [record.message for record in caplog.records if record.name == "grue"]
    assert warnings == ["langfuse: something was not sent: LookupError: no such client"]
