"""The tool server without a process: what it is told is what comes of it."""

import anyio
import pytest

from grue.engine.runner import Runner, TurnOutcome, TurnRequest
from grue.errors import MCPServerStartupError
from grue.messages import ToolCallRecord, ToolCallResult
from grue.testing.fake_tools import FakeToolServer
from grue.testing.llm_server import ScriptedLlmServer, text_reply, tool_calls_reply
from grue.transports.llm.endpoint import LlmSettings

TURN = TurnRequest[str](system="s", user="u")


def play(cave: FakeToolServer, *tools: str) -> TurnOutcome[str]:
    """A turn whose model calls these tools in one reply, then answers."""
    calls = tool_calls_reply(*[(f"cave.{tool}", {"at": "once"}) for tool in tools])
    with ScriptedLlmServer([calls, text_reply("north")]) as llm:
        runner = Runner(llm=LlmSettings(base_url=llm.base_url, model="m"), servers={"cave": cave})
        return runner.run_turn(TURN)


def one(outcome: TurnOutcome[str]) -> ToolCallRecord:
    (record,) = outcome.tool_calls
    return record


@pytest.fixture
def cave() -> FakeToolServer:
    return FakeToolServer("cave")


def test_results_come_in_order_and_the_last_one_stays(cave: FakeToolServer) -> None:
    cave.answers("look", "dark", ToolCallResult("light"))
    outcome = play(cave, "look", "look", "look")
    assert [call.result.content for call in outcome.tool_calls] == ["dark", "light", "light"]
    assert cave.calls == [("look", {"at": "once"})] * 3


def test_a_failure_and_then_an_answer_fail_once(cave: FakeToolServer) -> None:
    cave.fails("dig", "stone")
    cave.answers("dig", "gold")
    failed, *others = play(cave, "dig", "dig", "dig").tool_calls
    assert failed.result.error_message == "stone"
    assert [call.result.content for call in others] == ["gold", "gold"]


def test_what_is_set_after_the_last_was_given_takes_its_place(cave: FakeToolServer) -> None:
    cave.answers("dig", "gold")
    play(cave, "dig")
    cave.fails("dig", "stone")
    assert one(play(cave, "dig")).result.error_message == "stone"
    cave.answers("dig", "silver")
    assert one(play(cave, "dig")).result.content == "silver", "the failure was met, and makes room too"


def test_without_a_result_the_content_is_none(cave: FakeToolServer) -> None:
    cave.answers("look")
    assert one(play(cave, "look")).result == ToolCallResult(None)


def test_a_failure_and_a_refusal_are_error_results(cave: FakeToolServer) -> None:
    cave.fails("dig", "the ground is hard")
    cave.refuses("fly", "no wings")
    dug, flown = play(cave, "dig", "fly").tool_calls
    assert dug.result.error_message == "the ground is hard"
    assert "no wings" in (flown.result.error_message or "")
    assert {dug.settlement, flown.settlement} == {"returned"}


def test_a_timeout_takes_no_time(cave: FakeToolServer) -> None:
    cave.times_out("dig")
    outcome = play(cave, "dig")
    assert one(outcome).settlement == "timed_out"
    assert outcome.duration_s < 60


def test_a_death_ends_the_tools_of_the_turn(cave: FakeToolServer) -> None:
    cave.dies("dig", "a cave-in")
    outcome = play(cave, "dig")
    assert (outcome.kind, one(outcome).settlement) == ("forced", "died")
    assert "a cave-in" in (one(outcome).result.error_message or "")


def test_it_fails_to_start_as_often_as_told(cave: FakeToolServer) -> None:
    cave.answers("look", "dark")
    cave.fails_to_start()
    with pytest.raises(MCPServerStartupError, match="told to fail"):
        play(cave, "look")
    assert one(play(cave, "look")).result.content == "dark"
    assert cave.sessions == 2


def test_errors_name_the_server_as_the_runner_does() -> None:
    server = FakeToolServer("another")
    server.fails_to_start()
    with pytest.raises(MCPServerStartupError, match="Failed to start MCP server 'cave': told to fail"):
        play(server)


def test_the_model_sees_what_was_listed(cave: FakeToolServer) -> None:
    schema = {"type": "object", "properties": {"where": {"type": "string"}}}
    cave.answers("look", description="Look around.", schema=schema)
    (tool,) = cave.listed
    assert (tool.name, tool.description, tool.input_schema) == ("cave.look", "Look around.", schema)


def test_the_defaults_of_two_servers_are_not_shared() -> None:
    first, second = FakeToolServer("a"), FakeToolServer("b")
    first.answers("x")
    second.answers("x")
    first.listed[0].input_schema["type"] = "changed"
    assert second.listed[0].input_schema["type"] == "object"


def test_a_change_is_told_once(cave: FakeToolServer) -> None:
    async def session() -> list[object]:
        async with cave(None) as connection:
            await connection.open(60)
            before = await connection.refresh_tools(1)
            cave.answers("dig")
            return [before, await connection.refresh_tools(1), await connection.refresh_tools(1)]

    cave.answers("look")
    before, changed, after = anyio.run(session)
    assert (before, after) == (None, None)
    assert changed == cave.listed
