"""Turns that search their tools, over real HTTP: what the model is sent, and what everything else sees."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grue import (
    FunctionTools,
    LlmSettings,
    Runner,
    ToolPolicy,
    ToolRule,
    ToolSearch,
    TurnLimits,
    TurnRequest,
)
from grue.errors import MCPConfigError
from grue.messages import ToolCalled
from grue.protocol.chat_wire.formats import FORMATS, WireName
from grue.testing import assert_prefix_stable, replay
from grue.testing.actor_harness import TraceWatch
from grue.testing.llm_server import LlmReply, ScriptedLlmServer, text_reply, tool_calls_reply
from grue.tool_sessions.tool_search import ToolIndex
from grue.tracing.counts import count_episode
from grue.tracing.reading import open_episode

TWO = ["find_tools", "call_tool"]


def numbered(number: int) -> Callable[..., str]:
    def act(at: str) -> str:
        return f"{number} at {at}"

    act.__name__, act.__doc__ = f"act{number}", f"Act in way number {number}."
    return act


def look(at: str) -> str:
    """Look at a thing in the house."""
    return f"seen {at}"


TOOLS = {f"act{number}": numbered(number) for number in range(60)} | {"look": look}


def find(query: str) -> tuple[str, str]:
    return "find_tools", json.dumps({"query": query})


def wrapped(name: str, **arguments: Any) -> tuple[str, str]:
    return "call_tool", json.dumps({"name": name, "arguments": arguments})


def runner_for(server: ScriptedLlmServer, wire: WireName = "chat_completions", **how: Any) -> Runner:
    llm = LlmSettings(base_url=server.base_url, model="scripted", wire=wire, api_key="key")
    how = {"servers": {"house": FunctionTools(TOOLS)}, "tool_search": ToolSearch(above=40), **how}
    return Runner(llm=llm, **how)


def replies(*rounds: tuple[str, str]) -> list[LlmReply]:
    return [*(tool_calls_reply(each) for each in rounds), text_reply("Done.")]


@pytest.mark.parametrize("wire", list(FORMATS))
def test_the_model_finds_a_tool_and_calls_it_and_the_turn_records_that_tool(
    tmp_path: Path, wire: WireName
) -> None:
    trace = tmp_path / "trace.jsonl"
    script = replies(find("look at a thing"), wrapped("house.look", at="lamp"))
    with ScriptedLlmServer(script) as server, runner_for(server, wire, trace=trace) as runner:
        outcome = runner.run_turn(TurnRequest(system="s", user="u"))
    assert [request.tool_names for request in server.requests] == [TWO] * 3
    found, called = outcome.tool_calls
    assert found.result.content["tools"][0]["name"] == "house.look"
    assert (called.name, called.arguments) == ("house.look", '{"at":"lamp"}')
    assert called.result.content == "seen lamp"
    assert "seen lamp" in json.dumps(server.requests[-1].body)
    assert replay(trace) == 1
    assert assert_prefix_stable(trace) == 3
    names = {tool.tool: (tool.calls, tool.returned) for tool in count_episode(open_episode(trace)).tools}
    assert names == {"find_tools": (1, 1), "house.look": (1, 1)}


def test_the_argument_check_is_that_of_the_real_tool() -> None:
    script = replies(wrapped("house.look", where="lamp"))
    with ScriptedLlmServer(script) as server, runner_for(server) as runner:
        (call,) = runner.run_turn(TurnRequest(user="u")).tool_calls
    assert (call.name, call.settlement) == ("house.look", "rejected")
    assert "invalid arguments" in str(call.result.error_message)


def test_a_person_is_asked_about_the_real_tool_with_its_arguments() -> None:
    asked: list[Any] = []

    def approve(questions: Any) -> Any:
        asked.extend(questions)
        return [question.change({"at": "door"}) for question in questions]

    policy = ToolPolicy(rules=(ToolRule(tools=("house.look",), verdict="ask"),))
    script = replies(wrapped("house.look", at="lamp"))
    with (
        ScriptedLlmServer(script) as server,
        runner_for(server, tool_policy=policy, approve=approve) as runner,
    ):
        (call,) = runner.run_turn(TurnRequest(user="u")).tool_calls
    assert [(question.name, question.arguments) for question in asked] == [("house.look", {"at": "lamp"})]
    assert call.result.content == "seen door"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"name": "house.lok"}', "there is no tool 'house.lok'"),
        ('{"arguments": {}}', "call_tool wants"),
        ("{}", "call_tool wants"),
        ('{"name": "house.look", "at": "door"}', "call_tool wants"),
    ],
)
def test_a_call_that_names_no_tool_is_answered_with_what_to_do(arguments: str, words: str) -> None:
    script = replies(("call_tool", arguments))
    with ScriptedLlmServer(script) as server, runner_for(server) as runner:
        (call,) = runner.run_turn(TurnRequest(user="u")).tool_calls
    assert call.result.is_error
    assert words in str(call.result.error_message)


@pytest.mark.parametrize("query", ["", " ", 7, None])
def test_a_search_without_words_is_an_error_that_says_what_is_wanted(query: Any) -> None:
    script = replies(("find_tools", json.dumps({"query": query})))
    with ScriptedLlmServer(script) as server, runner_for(server) as runner:
        (call,) = runner.run_turn(TurnRequest(user="u")).tool_calls
    assert "wants a query" in str(call.result.error_message)


def test_a_search_that_finds_nothing_names_the_tools() -> None:
    script = replies(find("zebra"))
    with ScriptedLlmServer(script) as server, runner_for(server) as runner:
        (call,) = runner.run_turn(TurnRequest(user="u")).tool_calls
    assert call.result.content["tools"] == []
    assert "house.act0, house.act1" in call.result.content["hint"]
    assert "and 1 more" in call.result.content["hint"]


def test_few_tools_are_offered_as_they_are_and_a_request_can_set_its_own() -> None:
    few = {"house": FunctionTools({"look": look})}
    with ScriptedLlmServer(replies()) as server, runner_for(server, servers=few) as runner:
        runner.run_turn(TurnRequest(user="u"))
    assert server.requests[0].tool_names == ["house.look"]
    with ScriptedLlmServer(replies()) as server, runner_for(server, tool_search=None) as runner:
        runner.run_turn(TurnRequest(user="u", tool_search=ToolSearch(above=1, always=("house.look",))))
    assert server.requests[0].tool_names == [*TWO, "house.look"]


@pytest.mark.slow
def test_a_conversation_keeps_its_prefix_while_the_tools_behind_it_change(tmp_path: Path) -> None:
    trace, tools = tmp_path / "trace.jsonl", dict(TOOLS)

    def connect(note: Any) -> Any:
        return FunctionTools(tools).connect("house", note=note)

    script = [
        *replies(find("look"), wrapped("house.look", at="a")),
        *replies(wrapped("house.listen", at="b")),
    ]
    with (
        ScriptedLlmServer(script) as server,
        runner_for(server, servers={"house": connect}, trace=trace) as runner,
    ):
        talk = runner.conversation("Be brief.")
        talk.ask("One?")
        tools["listen"] = look
        del tools["act7"]
        outcome = talk.ask("Two?")
    assert outcome.tool_calls[0].result.content == "seen b"
    assert assert_prefix_stable(trace) == 5
    assert replay(trace) == 2


def test_a_tool_written_as_text_is_called_through_call_tool_too() -> None:
    watch = TraceWatch()
    asked = {"name": "call_tool", "arguments": {"name": "house.look", "arguments": {"at": "x"}}}
    written = f"<tool_call>{json.dumps(asked)}</tool_call>"
    with ScriptedLlmServer([text_reply(written), text_reply("Done.")]) as server:
        llm = LlmSettings(base_url=server.base_url, model="scripted", api_key="key", text_tool_calls="run")
        servers = {"house": FunctionTools(TOOLS)}
        with Runner(llm=llm, servers=servers, tool_search=ToolSearch(), recorder=watch.recorder) as runner:
            outcome = runner.run_turn(TurnRequest(user="u"))
    assert [call.name for call in outcome.tool_calls] == ["house.look"]
    watch.happened(ToolCalled, server="house", tool="look", times=1)


def test_the_settings_are_read_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.grue.tool_search]\nabove = 0.1\nmost = 3\nalways = "files.*"\n')
    with Runner.from_toml(file) as runner:
        assert runner.tool_search == ToolSearch(above=0.1, most=3, always=("files.*",))
    for wrong, words in (
        ("above = -1", "above"),
        ("most = 0", "most is 0"),
        ("abov = 4", "Did you mean 'above'"),
    ):
        file.write_text(f"[tool.grue.tool_search]\n{wrong}\n")
        with pytest.raises(MCPConfigError, match=words):
            Runner.from_toml(file)


@pytest.mark.parametrize("above", [-1, 1.5, float("nan"), float("inf"), -0.1])
def test_a_threshold_that_is_neither_a_number_of_tools_nor_a_share_is_refused(above: float) -> None:
    with pytest.raises(MCPConfigError, match="a number of tools, or a share of the window"):
        ToolSearch(above=above)


def test_another_kind_of_setting_is_refused() -> None:
    with pytest.raises(MCPConfigError, match="tool_search= wants ToolSearch"):
        Runner(llm=LlmSettings(base_url="http://127.0.0.1:9/v1", model="m"), tool_search=40)  # type: ignore[arg-type]


def test_a_search_that_takes_too_long_is_a_tool_that_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(ToolIndex, "find", lambda *_: never.wait(20))
    script, limits = replies(find("look")), TurnLimits(tool_call_timeout_s=0.05)
    with ScriptedLlmServer(script) as server, runner_for(server, limits=limits) as runner:
        (call,) = runner.run_turn(TurnRequest(user="u")).tool_calls
    never.set()
    assert call.settlement == "timed_out"
