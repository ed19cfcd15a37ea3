"""Connections to the model stay open: over the turns of an episode, and over the items of a batch."""

import asyncio

import anyio
import pytest
from patient_turns import ASK, patient_model
from scripted_server import ScriptedConnection, ScriptedServer

from grue import FunctionTools, LlmSettings, Runner
from grue.testing.fault_turns import Mode
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.connection import Listing

TURNS = 4


@pytest.mark.parametrize("mode", ["episode", "ahead", "kept"])
def test_the_turns_of_an_episode_share_one_connection(mode: Mode) -> None:
    pytest.importorskip("mcp")
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


class StartsAfterTheModel(ScriptedConnection):
    """A server whose start takes until the model has a connection."""

    def __init__(self, llm: ScriptedLlmServer) -> None:
        super().__init__(ScriptedServer(), "ok")
        self._llm = llm

    async def open(self, timeout_s: float) -> Listing:
        with anyio.fail_after(60):
            while not self._llm.accepted:  # noqa: ASYNC110 - nothing tells us
                await anyio.sleep(0.01)
        return await super().open(timeout_s)


def test_a_turn_connects_to_the_model_while_its_servers_start() -> None:
    with ScriptedLlmServer(lambda _: text_reply("done")) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m")
        with Runner(llm=settings, servers={"a": lambda _note: StartsAfterTheModel(llm)}) as runner:
            runner.run_turn(ASK)
        assert llm.accepted == len(llm.requests) == 1
