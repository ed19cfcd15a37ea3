"""What turns cost, and a limit on the cost that has no effect is reported at the start."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from promises import GUARD_S

from grue import Budget, FunctionTools, LlmSettings, Price, RetryPolicy, Runner, TurnRequest
from grue.errors import ActorCrashed, BudgetSpent, TurnCancelled, TurnTimedOut
from grue.messages import CostUncounted, RunTurn, TextDelta
from grue.protocol.chat_wire.profiles import GENERIC
from grue.testing.llm_server import (
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    silence,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.prompt_cache import cached_prompts
from grue.tracing.reading import read_episode

ASKED = TurnRequest(system="s", user="u")
NEVER = replace(GENERIC, name="silent", reports_cost="never")


def costing(header: str) -> LlmReply:
    reply = text_reply("done")
    return replace(reply, headers={**reply.headers, "x-litellm-response-cost": header})


def played(reply: LlmReply, **settings: object) -> tuple[float | None, list[type], list[CostUncounted]]:
    """Run two turns; return the cost of the first, the first two kinds of messages, and the reports."""
    bodies: list[object] = []
    with ScriptedLlmServer([reply, reply]) as llm:
        endpoint = LlmSettings(base_url=llm.base_url, model="scripted", **settings)  # type: ignore[arg-type]
        with Runner(llm=endpoint, budget=Budget(cost_usd=1.0)) as runner:
            runner.recorder.add(lambda envelope, _line: bodies.append(envelope.body))
            outcome = runner.run_turn(ASKED)
            runner.run_turn(ASKED)
    reports = [body for body in bodies if isinstance(body, CostUncounted)]
    return outcome.usage.cost_usd, [type(body) for body in bodies[:2]], reports


@pytest.mark.parametrize(("header", "cost"), [("0.25", 0.25), ("0", 0.0), ("-1", None), ("free", None)])
def test_the_header_of_litellm_counts(header: str, cost: float | None) -> None:
    counted, _, reports = played(costing(header))
    assert counted == cost
    assert bool(reports) == (cost is None)


def test_a_limit_that_cannot_count_is_reported_before_the_first_turn_and_once() -> None:
    cost, first, reports = played(text_reply("done"), profile=NEVER)
    assert cost is None
    assert first[0] is CostUncounted
    assert reports == [CostUncounted(model="scripted", endpoint="silent", limit_usd=1.0)]


def test_an_observer_that_raises_at_the_report_is_named() -> None:
    def observe(envelope: Any, _line: bytes) -> None:
        if isinstance(envelope.body, CostUncounted):
            raise LookupError("boom")

    endpoint = LlmSettings(base_url="http://127.0.0.1:1", model="scripted", profile=NEVER)
    with Runner(llm=endpoint, budget=Budget(cost_usd=1.0)) as runner:
        runner.recorder.add(observe)
        with pytest.raises(ActorCrashed, match=r"in the observer .*observe"):
            runner.run_turn(ASKED)


def test_the_requests_of_a_turn_that_crashed_or_was_cancelled_count_in_the_episodes_budget() -> None:
    asked = threading.Event()

    def reply(request: LlmRequest) -> LlmReply:
        if len(llm.requests) < 2:
            return text_reply("done")
        asked.set()
        return silence()

    def refuse(_delta: TextDelta) -> None:
        raise LookupError("boom")

    with ScriptedLlmServer(reply) as llm:
        endpoint = LlmSettings(base_url=llm.base_url, model="scripted")
        with Runner(llm=endpoint, budget=Budget(requests=2)) as runner:
            with pytest.raises(ActorCrashed, match="on_delta"):
                runner.run_turn(TurnRequest("u", on_delta=refuse))
            assert runner.spent.requests == 1
            handle = runner.start_turn(ASKED)
            assert asked.wait(GUARD_S)
            handle.cancel()
            with pytest.raises(TurnCancelled):
                handle.result(GUARD_S)
            assert runner.spent.requests == 2
            with pytest.raises(BudgetSpent):
                runner.run_turn(ASKED)


@pytest.mark.parametrize("ends", ["at its time limit", "cancelled"])
def test_a_request_that_the_end_of_its_turn_has_cancelled_costs_its_prompt_and_its_longest_reply(
    ends: str,
) -> None:
    asked = threading.Event()

    def reply(_: LlmRequest) -> LlmReply:
        asked.set()
        return silence()

    with ScriptedLlmServer(reply) as llm:
        prices = {"scripted": Price(input=0.0, output=1000.0)}
        endpoint = LlmSettings(base_url=llm.base_url, model="scripted", prices=prices, max_tokens=1000)
        with Runner(llm=endpoint, budget=Budget(cost_usd=0.5)) as runner:
            if ends == "cancelled":
                handle = runner.start_turn(ASKED)
                assert asked.wait(GUARD_S)
                handle.cancel()
                with pytest.raises(TurnCancelled):
                    handle.result(GUARD_S)
            else:
                with pytest.raises(TurnTimedOut):
                    runner.run_turn(replace(ASKED, turn_timeout_s=0.3))
            assert runner.spent.usage.cost_usd == 1.0
            with pytest.raises(BudgetSpent):
                runner.run_turn(ASKED)


def test_a_reply_of_a_turn_that_ends_later_is_counted_once() -> None:
    with ScriptedLlmServer([tool_calls_reply(("t.wait", {})), text_reply("done")]) as llm:
        endpoint = LlmSettings(base_url=llm.base_url, model="scripted", max_tokens=1000)
        tools = FunctionTools({"wait": lambda: threading.Event().wait(2.0)})
        with Runner(llm=endpoint, servers={"t": tools}) as runner:
            with pytest.raises(TurnTimedOut) as failed:
                runner.run_turn(replace(ASKED, turn_timeout_s=0.5))
            assert "t.wait" in str(failed.value)
            assert 0 < runner.spent.tokens < 100


def test_an_unknown_endpoint_is_found_out_by_its_first_turn() -> None:
    _, first, reports = played(text_reply("done"))
    assert RunTurn in first
    assert [report.endpoint for report in reports] == ["generic"]


@pytest.mark.parametrize(
    "prices", [{"scripted": Price(input=1e6, output=0.0)}, {"*": Price(input=1e6, output=0.0)}]
)
def test_a_table_of_prices_makes_it_count(prices: Mapping[str, Price]) -> None:
    bodies: list[object] = []
    with ScriptedLlmServer([text_reply("done")]) as llm:
        endpoint = LlmSettings(base_url=llm.base_url, model="scripted", profile=NEVER, prices=prices)
        with Runner(llm=endpoint, budget=Budget(cost_usd=100.0)) as runner:
            runner.recorder.add(lambda envelope, _line: bodies.append(envelope.body))
            assert runner.run_turn(ASKED).usage.cost_usd == pytest.approx(10.0)
    assert not any(isinstance(body, CostUncounted) for body in bodies)


@pytest.mark.parametrize("priced", ["large", "backup"])
def test_the_model_of_a_chain_whose_cost_is_not_known_is_named(priced: str) -> None:
    """Also if the first one has a price, and if the other one has replied."""
    reports: list[CostUncounted] = []
    with ScriptedLlmServer([text_reply("done"), text_reply("done")]) as llm:
        away = LlmSettings(base_url="http://127.0.0.1:9/v1", model="large", retry=RetryPolicy(max_retries=0))
        chain = [away, LlmSettings(base_url=llm.base_url, model="backup")]
        for profile in (GENERIC, NEVER):
            both = [
                replace(each, profile=profile, prices={priced: Price(input=1.0, output=1.0)})
                for each in chain
            ]
            with Runner(llm=both, budget=Budget(cost_usd=1.0)) as runner:
                runner.recorder.watch({CostUncounted: reports.append})
                runner.run_turn(ASKED)
    unpriced = "backup" if priced == "large" else "large"
    assert {report.model for report in reports} == {unpriced}


def test_tokens_that_the_endpoint_does_not_report_are_estimated_so_that_limits_hold() -> None:
    reply = text_reply("done" * 100)
    reply = replace(reply, body=json.dumps(json.loads(reply.body) | {"usage": None}).encode())
    with ScriptedLlmServer([reply, reply]) as llm:
        prices = {"scripted": Price(input=1.0, output=5.0)}
        endpoint = LlmSettings(base_url=llm.base_url, model="scripted", prices=prices)
        with Runner(llm=endpoint, budget=Budget(tokens=100)) as runner:
            usage = runner.run_turn(ASKED).usage
            with pytest.raises(BudgetSpent, match="of 100 tokens"):
                runner.run_turn(ASKED)
    assert 50 < usage.output_tokens < 200
    assert usage.cost_usd == pytest.approx((usage.input_tokens + 5 * usage.output_tokens) / 1e6)


def test_tokens_are_estimated_too_if_the_endpoint_reports_only_the_cost(tmp_path: Path) -> None:
    reply = text_reply("Yes.")
    reply = replace(reply, body=json.dumps(json.loads(reply.body) | {"usage": {"cost": 0.1}}).encode())
    with ScriptedLlmServer([reply]) as llm, Runner(llm=llm.settings, trace=tmp_path / "t.jsonl") as runner:
        usage = runner.run_turn(ASKED).usage
    assert (usage.input_tokens > 0, usage.cost_usd) == (True, 0.1)
    prompts = list(cached_prompts(read_episode(tmp_path / "t.jsonl").envelopes))
    assert [each.input_tokens for each in prompts] == [0], "the endpoint has counted none"


def test_an_image_is_not_estimated_by_its_bytes() -> None:
    reply = text_reply("A cat.")
    reply = replace(reply, body=json.dumps(json.loads(reply.body) | {"usage": None}).encode())
    image = b"\x89PNG\r\n\x1a\n" + bytes(600_000)
    with ScriptedLlmServer([reply]) as llm, Runner(llm=llm.settings) as runner:
        usage = runner.run_turn(TurnRequest("What is it?", images=[image])).usage
    assert 1000 < usage.input_tokens < 2000
