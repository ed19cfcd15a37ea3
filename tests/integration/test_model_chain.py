"""A chain of models: the next one is asked if one cannot be, at real endpoints on loopback."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from talks import WIRES, chatty, look

from grue import Conversation, FunctionTools, LlmSettings, RetryPolicy, Runner, TurnRequest
from grue.config.settings import GameConfiguration
from grue.config.wiring import llm_settings
from grue.errors import LLMError, MCPConfigError
from grue.fleet.host_settings import chosen_endpoint
from grue.messages import CompletionReceived, ModelPassedOver, RunTurn, TextDelta, ThoughtsDropped
from grue.policies import Budget, ContextPolicy, TurnLimits
from grue.protocol.chat_wire.formats import WireName
from grue.protocol.turn.prices import Price
from grue.testing import replay
from grue.testing.llm_server import (
    ContextWindow,
    LlmReply,
    LlmRequest,
    ScriptedLlmServer,
    error_reply,
    text_reply,
    tool_calls_reply,
)
from grue.tracing.reading import read_episode

ONCE = RetryPolicy(max_retries=1, initial_delay_s=0.0, jitter_factor=0.0)


def free_url() -> str:
    """Return the URL of a port that nobody listens at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def settings(base_url: str, model: str, **how: Any) -> LlmSettings:
    how.setdefault("retry", ONCE)
    return LlmSettings(base_url=base_url, model=model, api_key="key", **how)


def runner_of(*chain: LlmSettings, **how: Any) -> Runner:
    return Runner(llm=chain, servers={"house": FunctionTools({"look": look})}, **how)


def texts(request: LlmRequest, role: str) -> list[str]:
    """Return the texts of a role's messages; where a cache marker stands, a text is a part."""
    said = [message["content"] for message in request.messages if message["role"] == role]
    return [each if isinstance(each, str) else each[0]["text"] for each in said]


def bodies(path: Path) -> list[Any]:
    return [envelope.body for envelope in read_episode(path).envelopes]


@pytest.fixture
def second() -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(chatty) as server:
        yield server


@pytest.mark.parametrize("status", [500, 503, 429])
def test_the_next_model_is_asked_after_the_retries_of_the_first(
    tmp_path: Path, second: ScriptedLlmServer, status: int
) -> None:
    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(lambda _: error_reply(status, "Not now.")) as first:
        chain = (settings(first.base_url, "large"), settings(second.base_url, "small"))
        with runner_of(*chain, trace=path) as runner:
            outcome = runner.run_turn(TurnRequest[str](user="Question 1?"))
        assert outcome.response == "Answer 1."
        assert len(first.requests) == 2, "one try, and one retry"
    assert (outcome.requests, len(second.requests)) == (1, 1)
    said = bodies(path)
    (changed,) = (body for body in said if isinstance(body, ModelPassedOver))
    assert (changed.model, changed.address) == ("large", first.base_url)
    assert (changed.asks.model, changed.asks.address) == ("small", second.base_url)
    assert "Not now." in changed.reason
    assert [body.asks.model for body in said if isinstance(body, RunTurn) and body.asks] == ["large"]
    assert sum(isinstance(body, CompletionReceived) for body in said) == 1
    replay(path)


def test_an_endpoint_that_nobody_serves_and_one_that_breaks_off_are_passed_over(
    second: ScriptedLlmServer,
) -> None:
    def broken(request: LlmRequest) -> LlmReply:
        del request
        return replace(text_reply("Half an answer"), then="drop", after=0.5)

    with ScriptedLlmServer(broken) as first:
        chain = (
            settings(free_url(), "none"),
            settings(first.base_url, "broken"),
            settings(second.base_url, "ok"),
        )
        with runner_of(*chain) as runner:
            assert runner.run_turn(TurnRequest[str](user="Question 1?")).response == "Answer 1."
        assert len(first.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_ends_the_turn(second: ScriptedLlmServer, status: int) -> None:
    with ScriptedLlmServer(lambda _: error_reply(status, "No such model.")) as first:
        chain = (settings(first.base_url, "large"), settings(second.base_url, "small"))
        with runner_of(*chain) as runner, pytest.raises(LLMError, match="No such model"):
            runner.run_turn(TurnRequest[str](user="Question 1?", tools=False))
    assert not second.requests


def test_if_no_model_can_be_asked_the_error_names_all() -> None:
    one, two = free_url(), free_url()
    with runner_of(settings(one, "a"), settings(two, "b")) as runner, pytest.raises(LLMError) as error:
        runner.run_turn(TurnRequest[str](user="Question 1?"))
    assert "model 'b'" in str(error.value) or "b" in str(error.value)
    assert f"before that a at {one}" in str(error.value)


@pytest.mark.slow
def test_a_model_that_could_not_be_asked_is_left_alone_in_the_next_turns(
    tmp_path: Path, second: ScriptedLlmServer
) -> None:
    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(lambda _: error_reply(503, "Not now.")) as first:
        chain = (settings(first.base_url, "large"), settings(second.base_url, "small"))
        with runner_of(*chain, trace=path) as runner:
            talk = runner.conversation("Answer briefly.", name="talk")
            for number in range(1, 7):
                assert talk.ask(f"Question {number}?").response == f"Answer {number}."
        assert len(first.requests) == 2, "the first turn has found out"
    asked = [body.asks.model for body in bodies(path) if isinstance(body, RunTurn) and body.asks]
    assert asked == ["large", *["small"] * 5]
    assert not [request.refused for request in second.requests if request.refused]
    assert replay(path) == 6


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("other", WIRES)
def test_a_conversation_moves_in_the_middle_of_a_turn_with_all_that_was_said(
    tmp_path: Path, second: ScriptedLlmServer, wire: WireName, other: WireName
) -> None:
    def fails_after_calls(request: LlmRequest) -> LlmReply:
        return error_reply(503, "Not now.") if len(first.requests) > 3 else chatty(request)

    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(fails_after_calls) as first:
        chain = (
            settings(first.base_url, "large", wire=wire),
            settings(second.base_url, "small", wire=other),
        )
        with runner_of(*chain, trace=path) as runner:
            talk = runner.conversation("Answer briefly.", name="talk")
            for number in range(1, 6):
                assert talk.ask(f"Question {number}?").response == f"Answer {number}."
        plain = texts(first.requests[3], "user")
    moved = second.requests[0]
    assert texts(moved, "user") == plain == [f"Question {number}?" for number in range(1, 4)]
    assert texts(moved, "tool") == ["seen 3-a", "seen 3-b"]
    assert b"Reason 1" not in moved.raw, "thoughts of another model are not sent"
    assert not [request.refused for request in second.requests if request.refused]
    said = bodies(path)
    assert sum(isinstance(body, ModelPassedOver) for body in said) == 1
    dropped = [body for body in said if isinstance(body, ThoughtsDropped)]
    assert all(body.model == "small" for body in dropped)
    assert dropped or wire == "chat_completions", "what another model cannot read is left out, and said so"
    assert replay(path) == 5


def test_the_ids_of_the_first_models_calls_are_replaced_if_the_next_endpoint_refuses_them(
    second: ScriptedLlmServer,
) -> None:
    ids = ["functions.look:0", "functions.look:1"]

    def fails_after_calls(_: LlmRequest) -> LlmReply:
        if len(first.requests) > 1:
            return error_reply(503, "Not now.")
        return tool_calls_reply(("house.look", {"at": "a"}), ("house.look", {"at": "b"}), ids=ids)

    with ScriptedLlmServer(fails_after_calls) as first:
        chain = (
            settings(first.base_url, "large"),
            settings(second.base_url, "small", wire="messages"),
        )
        with runner_of(*chain) as runner:
            outcome = runner.run_turn(TurnRequest[str](user="Question 1?"))
    assert outcome.response == "Answer 1."
    assert [call.call_id for call in outcome.tool_calls] == ids
    assert texts(second.requests[0], "tool") == ["seen a", "seen b"]


def test_text_that_was_shown_before_the_first_model_broke_off_is_taken_back(
    second: ScriptedLlmServer,
) -> None:
    def broken(request: LlmRequest) -> LlmReply:
        del request
        return replace(text_reply("Half an answer, and no end."), then="drop", after=0.5)

    deltas: list[TextDelta] = []
    with ScriptedLlmServer(broken) as first:
        chain = (settings(first.base_url, "large"), settings(second.base_url, "small"))
        with runner_of(*chain) as runner:
            runner.run_turn(TurnRequest[str](user="Question 1?", on_delta=deltas.append, tools=False))
    text = ""
    for delta in deltas:
        text = "" if delta.restart else text + (delta.text if delta.part == "content" else "")
    assert text == "Answer 1."


def test_a_model_that_takes_no_tools_is_passed_over_by_requests_with_tools(second: ScriptedLlmServer) -> None:
    chain = (settings(free_url(), "a"), settings(second.base_url, "qwq"), settings(second.base_url, "c"))
    with runner_of(*chain) as runner:
        runner.run_turn(TurnRequest[str](user="Question 1?"))
    assert [json.loads(request.raw)["model"] for request in second.requests] == ["c"]


def test_a_later_turn_with_tools_does_not_begin_with_a_model_that_takes_none(
    tmp_path: Path, second: ScriptedLlmServer
) -> None:
    path = tmp_path / "trace.jsonl"
    chain = (settings(free_url(), "a"), settings(second.base_url, "qwq"), settings(second.base_url, "c"))
    with runner_of(*chain, trace=path) as runner:
        for tools in (True, True, False):
            runner.run_turn(TurnRequest[str](user="Question 1?", tools=tools))
    assert [json.loads(request.raw)["model"] for request in second.requests] == ["c", "c", "qwq"]
    begun = [body.asks.model for body in bodies(path) if isinstance(body, RunTurn) and body.asks]
    assert begun == ["a", "c", "qwq"]


@pytest.mark.slow
def test_after_a_summary_by_a_model_that_takes_no_tools_another_model_gets_the_tools(tmp_path: Path) -> None:
    def script(request: LlmRequest) -> LlmReply:
        if "replaced by your summary" in str(request.messages[-1]["content"]):
            return error_reply(503, "Not now.") if b'"a"' in request.raw else text_reply("Many rooms.")
        done = "Many rooms." in str(request.messages) or not request.tool_names
        return text_reply("done") if done else tool_calls_reply(("house.look", {"at": "here"}))

    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(script, window=ContextWindow(3_000)) as server:
        chain = [settings(server.base_url, model) for model in ("a", "qwq", "c")]
        policy = ContextPolicy(window_tokens=3_000, reply_tokens=500)
        servers = {"house": FunctionTools({"look": lambda at: "a room " * 900})}
        with Runner(llm=chain, servers=servers, context=policy, trace=path) as runner:
            assert runner.run_turn(TurnRequest[str](user="Look.")).kind == "answered"
        asked = [json.loads(request.raw) for request in server.requests]
    last = [(body["model"], "tools" in body) for body in asked[-4:]]
    assert last == [("a", False), ("a", False), ("qwq", False), ("c", True)]
    passed = [(body.model, body.asks.model) for body in bodies(path) if isinstance(body, ModelPassedOver)]
    assert passed == [("a", "qwq"), ("qwq", "c")]
    assert replay(path) == 1


def test_the_cost_of_each_reply_is_that_of_the_model_that_gave_it(tmp_path: Path) -> None:
    def costly(_: LlmRequest) -> LlmReply:
        if len(first.requests) > 1:
            return error_reply(503, "No.")
        return tool_calls_reply(("house.look", {"at": "here"}))

    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer(costly) as first, ScriptedLlmServer(lambda _: text_reply("done")) as second:
        price = {"*": Price(input=1_000_000.0, output=0.0)}, {"*": Price(input=2_000_000.0, output=0.0)}
        chain = (
            settings(first.base_url, "large", prices=price[0]),
            settings(second.base_url, "small", prices=price[1]),
        )
        with runner_of(*chain, trace=path) as runner:
            outcome = runner.run_turn(TurnRequest[str](user="Look."))
    usages = [body.usage for body in bodies(path) if isinstance(body, CompletionReceived)]
    assert [usage.cost_usd for usage in usages] == [
        usages[0].input_tokens * 1.0,
        usages[1].input_tokens * 2.0,
    ]
    assert outcome.usage.cost_usd == sum(usage.cost_usd or 0.0 for usage in usages)


def test_the_first_model_is_tried_again_without_retries_after_its_pause(
    second: ScriptedLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grue.protocol.turn.completion_attempts.PAUSE_S", 0.0)
    works = False

    def script(request: LlmRequest) -> LlmReply:
        return chatty(request) if works else error_reply(503, "Not now.")

    with ScriptedLlmServer(script) as first:
        chain = (settings(first.base_url, "large"), settings(second.base_url, "small"))
        with runner_of(*chain) as runner:
            ask = TurnRequest[str](user="Question 1?")
            seen = []
            for number in range(4):
                works = number > 1
                runner.run_turn(ask)
                seen.append((len(first.requests), len(second.requests)))
    assert seen == [(2, 1), (3, 2), (4, 2), (5, 2)]


def test_a_budget_of_requests_counts_a_request_once(second: ScriptedLlmServer) -> None:
    limits = TurnLimits(budget=Budget(requests=1))
    with runner_of(settings(free_url(), "a"), settings(second.base_url, "b"), limits=limits) as runner:
        assert runner.run_turn(TurnRequest[str](user="Question 1?", tools=False)).requests == 1


def test_what_was_learned_of_one_model_is_not_taken_for_another_of_that_name(
    tmp_path: Path, second: ScriptedLlmServer
) -> None:
    path = tmp_path / "talk.jsonl"
    up = False

    def script(request: LlmRequest) -> LlmReply:
        return chatty(request) if up else error_reply(503, "Not now.")

    with ScriptedLlmServer(script) as first:
        chain = (
            settings(first.base_url, "same", wire="messages"),
            settings(second.base_url, "same", wire="responses"),
        )
        with runner_of(*chain).conversation("Answer briefly.", path=path) as talk:
            assert talk.ask("Question 1?").response == "Answer 1."
        up = True
        with Conversation.load(path, runner_of(*chain)) as talk:
            assert talk.ask("Question 2?").response == "Answer 2."
        assert [request.path for request in first.requests] == ["/v1/messages"] * 3
    assert not [request.refused for request in (*first.requests, *second.requests) if request.refused]


def test_a_fleet_that_chooses_a_model_measures_that_one() -> None:
    chain = settings("http://127.0.0.1:1/v1", "a", then=(settings("http://127.0.0.1:2/v1", "b"),))
    assert chosen_endpoint(chain, None, None).then == chain.then
    assert chosen_endpoint(chain, "http://127.0.0.1:1/v1", "a").then == chain.then
    assert chosen_endpoint(chain, None, "other").then == ()
    assert chosen_endpoint(chain, "http://127.0.0.1:3/v1", None).then == ()


TOML = """
[tool.grue.llm]
client_base_url = "http://127.0.0.1:1/v1"
agent_model = "large"
wire_format = "responses"
extra_headers = { X-Team = "blue" }
extra_body = { large = true }

[tool.grue.retry]
max_retries = 2

[[tool.grue.llm.then]]
client_base_url = "http://127.0.0.1:2/v1"
agent_model = "small"
wire_format = "messages"

[[tool.grue.llm.then]]
agent_model = "cheap"
"""


def test_a_chain_is_read_from_toml_and_dropped_where_another_model_is_chosen(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(TOML)
    config = GameConfiguration.from_toml(path)
    llm = llm_settings(config)
    assert [
        (each.model, each.base_url, each.wire, each.extra_headers, each.extra_body) for each in llm.then
    ] == [
        ("small", "http://127.0.0.1:2/v1", "messages", {}, {}),
        ("cheap", "http://127.0.0.1:1/v1", "responses", {"X-Team": "blue"}, {}),
    ]
    assert [each.retry.max_retries for each in (llm, *llm.then)] == [2, 2, 2]
    config.ask(None, "large")
    assert len(config.then) == 2
    config.ask(None, "other")
    assert llm_settings(config).then == ()
    Runner.from_toml(path).close()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("agent_modl = 'x'", "table 2 has 'agent_modl'. Did you mean 'agent_model'?"),
        ("zzz = 'x'", "table 2 has 'zzz'."),
        ("wire_format = 'messages'", "should have an agent_model in each table: table 2 has none"),
        ("agent_model = 5", "has a table 2 that cannot be used: agent_model is 5"),
        ("agent_model = 'x'\nclient_base_url = 'y'", "client_base_url should be an http:// or https:// URL"),
    ],
)
def test_a_table_of_the_chain_that_cannot_be_used_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(TOML.replace('agent_model = "cheap"', line))
    with pytest.raises(MCPConfigError) as error:
        GameConfiguration.from_toml(path)
    assert why in str(error.value)
    assert ".." not in str(error.value).removeprefix(str(path))


def test_a_chain_has_no_chain_and_a_list_is_flat() -> None:
    one, two, three = (LlmSettings(base_url="http://127.0.0.1:1/v1", model=name) for name in "abc")
    with pytest.raises(MCPConfigError, match="wants the LlmSettings of the models that are asked next"):
        LlmSettings(model="x", then=(LlmSettings(model="y", then=(one,)),))
    with pytest.raises(MCPConfigError, match="wants the LlmSettings"):
        LlmSettings(model="x", then=("y",))  # type: ignore[arg-type]
    runner = Runner(llm=[one, LlmSettings(base_url="http://127.0.0.1:1/v1", model="m", then=(two, three))])
    endpoint = runner._wiring.endpoint
    assert endpoint is not None
    assert [each.settings.model for each in endpoint.chain] == ["a", "m", "b", "c"]
    with pytest.raises(MCPConfigError, match="llm= wants"):
        Runner(llm=[])
    secret = LlmSettings(model="x", then=(LlmSettings(model="y", api_key="k-123456789"),))
    assert secret.named_values() == {"api_key of model 2": "k-123456789"}
    assert "k-123456789" not in repr(secret)
