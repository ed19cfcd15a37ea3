"""What a turn notes when its sessions have opened: patterns that match no tool."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import Walk, calls, changed, disabled, opened, returned, run

from grue.messages import (
    McpDisabled,
    OfferTools,
    RepairRequested,
    RequestCompletion,
    RunTurn,
    ServerName,
    ServerNoted,
    SessionOpened,
    ToolRejected,
    ToolSkipped,
)
from grue.policies import ToolPolicy, ToolRule


def under(*patterns: str, **begun: Any) -> RunTurn:
    policy = ToolPolicy(rules=tuple(ToolRule(tools=(each,), verdict="deny") for each in patterns))
    return replace(run("a", "b"), tool_policy=policy, binds_calls=True, **begun)


def noted(walk: Walk) -> list[str]:
    return [note.text for note in walk.of(ServerNoted)]


@pytest.mark.parametrize("pattern", ["A.look", "a.lok", "FILES.rm", "a.look ", "look", ""])
def test_a_pattern_of_the_policy_that_matches_no_tool_is_noted_once(pattern: str) -> None:
    walk = Walk(under(pattern, pattern, "b.*", "*", "a.look"), opened("a"), opened("b"))
    assert noted(walk) == [f"the tool policy has {pattern!r}, which matches no tool"]


def test_a_pattern_of_the_request_that_matches_no_tool_is_noted_and_those_of_the_policy_are_not() -> None:
    walk = Walk(under("c.*", tools=("a.look", "b.lok")), opened("a"), opened("b"))
    assert noted(walk) == ["tools= of the request has 'b.lok', which matches no tool"]


def test_nothing_is_said_of_tools_that_are_not_known() -> None:
    unlisted = SessionOpened(server=opened("b").server, tools=(), serves_unlisted=True)
    assert noted(Walk(under("b.other"), opened("a"), unlisted)) == []
    assert noted(Walk(replace(under("c.*"), binds_calls=False), opened("a"), opened("b"))) == []
    assert noted(Walk(replace(under("c.*"), servers=()))) == []


def offers(walk: Walk) -> list[list[str] | None]:
    modes = [request.mode for request in walk.of(RequestCompletion) if isinstance(request.mode, OfferTools)]
    return [None if mode.tools is None else [tool.name for tool in mode.tools] for mode in modes]


@pytest.mark.parametrize("sorts", [False, True])
def test_tools_are_offered_in_one_order_unless_the_trace_is_an_old_one(sorts: bool) -> None:
    walk = Walk(replace(run("b", "a"), sorts_tools=sorts), opened("a", "take", "look"), opened("b", "z", "y"))
    listed = ["b.z", "b.y", "a.take", "a.look"]
    assert offers(walk) == [sorted(listed) if sorts else listed]


@pytest.mark.parametrize("sorts", [False, True])
def test_a_list_that_comes_in_another_order_is_not_offered_again(sorts: bool) -> None:
    begun = replace(run("a"), sorts_tools=sorts), opened("a", "look", "take"), calls("a.look")
    walk = Walk(*begun, changed("a", "take", "look"), returned(1))
    assert offers(walk)[1] == (None if sorts else ["a.take", "a.look"])
    walk = Walk(*begun, changed("a", "take"), returned(1))
    assert offers(walk)[1] == ["a.take"]


def test_a_call_of_a_server_that_could_not_be_started_is_answered_with_the_reason() -> None:
    walk = Walk(run("a", "b"), opened("a"), disabled("b", "it ended with status 1"), calls("b.look"))
    (answer,) = walk.of(ToolRejected)
    says = "Unknown MCP tool: b.look. The server 'b' could not be used: it ended with status 1. Available "
    assert answer.error.startswith(says)
    (told,) = (
        item for request in walk.of(RequestCompletion) for item in request.new if hasattr(item, "call_id")
    )
    assert says in told.content


@pytest.mark.parametrize("name", ["a.lok", "c__look", "bb.look"])
def test_a_call_that_cannot_be_of_the_missing_server_is_answered_as_ever(name: str) -> None:
    walk = Walk(run("a", "b"), opened("a"), disabled("b"), calls(name))
    assert "could not be used" not in walk.of(ToolRejected)[0].error


@pytest.mark.parametrize("name", ["b__look", "b/look", "look"])
def test_a_name_in_another_form_is_answered_with_the_reason_too(name: str) -> None:
    walk = Walk(run("a", "b"), opened("a", "think"), disabled("b"), calls(name))
    assert "The server 'b' could not be used: it ended" in walk.of(ToolRejected)[0].error


def test_the_reason_joins_what_is_said_of_each_missing_server() -> None:
    walk = Walk(run("a", "b"), disabled("a", "'x' was not found."), disabled("b", "it ended"))
    assert walk.state.turn.degraded == "no tools from 'a': 'x' was not found; no tools from 'b': it ended"
    last = McpDisabled(server=ServerName("a"), reason="It ended.", last_words="no rates")
    assert last.why == "It ended. Its last line on stderr: no rates"


def test_calls_in_a_turn_whose_only_server_is_missing_are_answered_with_the_reason() -> None:
    walk = Walk(run("b"), disabled("b", "no such file"), calls("b.look"))
    (skipped,) = walk.of(ToolSkipped)
    assert skipped.reason == "not called: no tools from 'b': no such file"
    (repair,) = walk.of(RepairRequested)
    assert repair.reason == "it calls tools, and there are none: no tools from 'b': no such file"
