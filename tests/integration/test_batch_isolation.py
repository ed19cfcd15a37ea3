"""Turns of a batch are episodes of their own: they share the endpoint, the recorder and the budget."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from transport_servers import QUICK, faulty

from grue import LlmSettings, RetryPolicy, Runner, StdioServer, TurnLimits, TurnOutcome, TurnRequest
from grue.engine.turn import BatchItem
from grue.errors import MCPServerStartupError
from grue.protocol.turn.connection import Disabled, Untried
from grue.testing.leftovers import assert_nothing_left
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    Script,
    ScriptedLlmServer,
    error_reply,
    text_reply,
    tool_calls_reply,
)

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

ASK = TurnRequest[str](system="s", user="u")
NO_RETRY = RetryPolicy(max_retries=0)


def one_call_a_turn(request: LlmRequest) -> LlmReply:
    if any(message["role"] == "tool" for message in request.messages):
        return text_reply("done")
    return tool_calls_reply(("faulty.echo", {"text": "hi"}))


def runner(llm: ScriptedLlmServer, server: StdioServer, **more: Any) -> Runner:
    settings = LlmSettings(base_url=llm.base_url, model="m", retry=NO_RETRY)
    return Runner(llm=settings, servers={"faulty": server}, process_limits=QUICK, **more)


def settlements(item: BatchItem[TurnOutcome[str]]) -> list[str]:
    assert item.outcome is not None, item.error
    return [call.settlement for call in item.outcome.tool_calls]


@pytest.mark.slow
def test_to_each_turn_its_server_is_a_first_one(tmp_path: Path) -> None:
    """In an episode the second would be asked once more, and the turn go on without it (R6.2)."""
    server = faulty("--only-in", "2", str(tmp_path / "lives"), "--exit-at", "initialize")
    with assert_nothing_left(), ScriptedLlmServer(one_call_a_turn) as llm, runner(llm, server) as one:
        first, second, third = one.map([ASK] * 3, concurrency=1)
        assert settlements(first) == settlements(third) == ["returned"]
        assert isinstance(second.error, MCPServerStartupError)
        assert one.connection("faulty") == Untried(), "the runner's own turns know nothing of it"


@pytest.mark.slow
def test_what_the_runner_has_given_up_a_batch_tries() -> None:
    with assert_nothing_left(), ScriptedLlmServer(one_call_a_turn) as llm, runner(llm, faulty()) as one:
        one.remember("faulty", Disabled("the host has had enough of it"))
        items = list(one.map([ASK] * 2, concurrency=2))
        assert [settlements(item) for item in items] == [["returned"]] * 2
        assert list(one.disabled) == ["faulty"]


@pytest.mark.slow
def test_each_turn_may_sample_as_often_as_its_limits_say_whoever_else_runs(tmp_path: Path) -> None:
    """The first turn ends while the second one, which began beside it, has yet to call its tool."""
    both, over = threading.Barrier(2), threading.Event()

    def say(request: LlmRequest) -> LlmReply:
        if not any(message["role"] == "system" for message in request.messages):
            return text_reply("sampled")
        if len(request.messages) == 2:
            both.wait(60)
            if request.messages[1]["content"] == "late":
                over.wait(60)
        return one_call_a_turn(request)

    server = faulty("--ask", "sampling", "--record", str(tmp_path / "log-{pid}"))
    limits = TurnLimits(max_samplings=1)
    with assert_nothing_left(), ScriptedLlmServer(say) as llm, runner(llm, server, limits=limits) as one:
        items = one.map([ASK, TurnRequest[str](system="s", user="late")], concurrency=2)
        assert settlements(next(items)) == ["returned"]
        over.set()
        assert settlements(next(items)) == ["returned"]
    answers = [answer for log in tmp_path.glob("log-*") for answer in _answers(log)]
    assert [answer["result"]["content"]["text"] for answer in answers] == ["sampled"] * 2


def _answers(log: Path) -> list[dict[str, Any]]:
    return [said for line in log.read_text().splitlines() if "method" not in (said := json.loads(line))]


def test_what_the_endpoint_has_taught_one_turn_all_of_them_know() -> None:
    """They share it: a field that it refuses is sent to it once."""
    script: Script = lambda request: (  # noqa: E731 - a script is a function
        error_reply(400, "Unsupported parameter: 'temperature' is not supported with this model.")
        if "temperature" in request.body
        else text_reply("done")
    )
    with assert_nothing_left(), ScriptedLlmServer(script) as llm:
        settings = LlmSettings(base_url=llm.base_url, model="m", temperature=0.5, retry=NO_RETRY)
        with Runner(llm=settings) as one:
            assert all(item.outcome for item in one.map([ASK] * 3, concurrency=1))
        assert ["temperature" in request.body for request in llm.requests] == [True, False, False, False]
