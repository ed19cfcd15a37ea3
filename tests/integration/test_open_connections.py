"""Connections to the model stay open: over the turns of an episode, and over the items of a batch."""

import asyncio

import pytest
from fault_turns import Mode
from patient_turns import ASK, patient_model

from grue import FunctionTools, LlmSettings, Runner
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

TURNS = 4


@pytest.mark.parametrize("mode", ["episode", "ahead", "kept"])
@pytest.mark.slow
def test_the_turns_of_an_episode_share_one_connection(mode: Mode) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    with patient_model() as model, assert_nothing_left(), model.runner(mode) as runner:
        runner.run_turn(ASK)
        runner.start_turn(ASK).result()
        asyncio.run(runner.run_turn_async(ASK))
        runner.run_turn(ASK)
        assert len(model.server.requests) == 2 * TURNS
        assert model.server.accepted == 1


def test_a_turn_that_is_an_episode_of_its_own_leaves_none_open() -> None:
    with patient_model() as model, assert_nothing_left():
        runner = model.runner("turn", servers=False)
        for _ in range(TURNS):
            runner.run_turn(ASK)
        assert model.server.accepted == TURNS


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.slow
def test_the_turns_of_a_batch_share_as_many_connections_as_run_at_once(concurrency: int) -> None:
    def say(request: LlmRequest) -> LlmReply:
        called = any(message["role"] == "tool" for message in request.messages)
        return text_reply("done") if called else tool_calls_reply(("desk.ring", {}))

    desk = FunctionTools({"ring": lambda: "yes?"})
    with ScriptedLlmServer(say) as llm, assert_nothing_left():
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, servers={"desk": desk}) as runner:
            items = list(runner.map([ASK] * 8, concurrency=concurrency))
        assert all(item.outcome for item in items)
        assert len(llm.requests) == 16
        assert llm.accepted <= concurrency
