"""A turn that offers `find_tools` and `call_tool`: when it does, and what a call of them becomes."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import Walk, call, changed, listing, opened, returned, run

from grue import messages as m
from grue.policies import ContextPolicy, ToolPolicy, ToolRule, ToolSearch
from grue.protocol.tools.names import SERVER

TWO = ["find_tools", "call_tool"]


def searching(*servers: str, above: float = 1, always: tuple[str, ...] = (), **begun: Any) -> m.RunTurn:
    search = ToolSearch(above=above, always=always)
    begin = replace(run(*servers), tool_search=search, sorts_tools=True, binds_calls=True)
    return replace(begin, **begun)


def asked(*calls: tuple[str, str]) -> m.CompletionReceived:
    made = tuple(
        m.ToolCall(call_id=m.CallId(f"c{number}"), name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(calls, 1)
    )
    return m.CompletionReceived(request=1, tool_calls=made)


def wrapped(name: str, arguments: str = "{}") -> tuple[str, str]:
    return "call_tool", f'{{"name": "{name}", "arguments": {arguments}}}'


def offers(walk: Walk) -> list[list[str] | None]:
    modes = [each.mode for each in walk.of(m.RequestCompletion) if isinstance(each.mode, m.OfferTools)]
    return [None if mode.tools is None else [tool.name for tool in mode.tools] for mode in modes]


def sent(walk: Walk) -> list[tuple[str, list[str]]]:
    return [(each.server, [one.tool for one in each.calls]) for each in walk.of(m.CallTools)]


@pytest.mark.parametrize(
    ("above", "is_searched"),
    [(1, True), (2, False), (0, True), (0.00005, True), (0.5, False)],
)
def test_tools_are_searched_if_there_are_more_than_that_or_they_fill_more_of_the_window(
    above: float, is_searched: bool
) -> None:
    walk = Walk(searching("a", above=above), opened("a", "look", "take"))
    assert offers(walk) == [TWO if is_searched else ["a.look", "a.take"]]


def test_the_share_is_that_of_the_window_that_is_known() -> None:
    definitions = ContextPolicy(window_tokens=100), ContextPolicy(window_tokens=100_000)
    walks = [Walk(searching("a", above=0.1, context=each), opened("a")) for each in definitions]
    assert [offers(walk)[0] == TWO for walk in walks] == [True, False]


def test_tools_that_are_always_offered_stand_beside_the_two() -> None:
    walk = Walk(searching("a", always=("a.l*",)), opened("a", "take", "look"))
    assert offers(walk) == [[*TWO, "a.look"]]


def test_a_call_is_made_of_the_tool_that_it_names_and_recorded_as_that() -> None:
    walk = Walk(searching("a"), opened("a"), asked(wrapped("a.look", '{"at": 1}')), returned(1))
    assert sent(walk) == [("a", ["look"])]
    (record,) = walk.state.turn.records
    assert (record.name, record.arguments, record.settlement) == ("a.look", '{"at":1}', "returned")
    assert offers(walk) == [TWO, None]


@pytest.mark.parametrize(("bound", "server"), [(True, SERVER), (False, "a")])
def test_arguments_beside_the_name_call_the_tool_in_an_old_trace_only(bound: bool, server: str) -> None:
    elsewhere = asked(("call_tool", '{"name": "a.look", "at": 1}'))
    walk = Walk(searching("a", binds_arguments=bound), opened("a"), elsewhere)
    assert [each.server for each in walk.of(m.CallTools)] == [server]


def test_a_tool_may_be_called_by_its_own_name_too() -> None:
    walk = Walk(searching("a"), opened("a"), asked(("a.look", "{}")))
    assert sent(walk) == [("a", ["look"])]


def test_what_cannot_be_called_is_answered_by_the_built_in_tools_in_its_place() -> None:
    calls = asked(wrapped("a.gone"), ("find_tools", '{"query": "look"}'), wrapped("a.look"))
    walk = Walk(searching("a"), opened("a"), calls, returned(1), returned(2), returned(3, batch=2))
    assert sent(walk) == [(SERVER, ["call_tool", "find_tools"]), ("a", ["look"])]
    assert [record.name for record in walk.state.turn.records] == ["call_tool", "find_tools", "a.look"]


def test_an_unknown_name_is_answered_with_the_offered_tools_only() -> None:
    walk = Walk(
        searching("a", above=0), opened("a", *(f"t{number}" for number in range(300))), asked(("b.x", "{}"))
    )
    (rejected,) = walk.of(m.ToolRejected)
    assert rejected.error == "Unknown MCP tool: b.x. Available tools: find_tools, call_tool"


def test_the_policy_judges_the_tool_that_is_meant_and_no_built_in_one() -> None:
    policy = ToolPolicy(
        rules=(ToolRule(tools=("a.look",), verdict="ask"), ToolRule(tools=("*",), verdict="deny"))
    )
    calls = asked(wrapped("a.look", '{"at": 2}'), wrapped("a.think"), ("find_tools", '{"query": "x"}'))
    walk = Walk(searching("a", tool_policy=policy), opened("a"), calls)
    (question,) = walk.of(m.AskApproval)[0].questions
    assert (question.name, question.arguments) == ("a.look", {"at": 2})
    walk.send(m.CallsDecided(decisions=(question.approve(),)), returned(1))
    assert [note.name for note in walk.of(m.ToolDenied)] == ["a.think"]
    assert sent(walk) == [("a", ["look"]), (SERVER, ["find_tools"])]


def test_a_parked_turn_goes_on_searching() -> None:
    policy = ToolPolicy(rules=(ToolRule(tools=("a.look",), verdict="ask"),))
    begin = searching("a", tool_policy=policy)
    walk = Walk(begin, opened("a"), asked(wrapped("a.look"), ("find_tools", '{"query": "x"}')))
    walk.send(m.ApprovalPostponed(), m.SessionClosed(server=m.ServerName("a")))
    (parked,) = walk.of(m.TurnParked)
    assert parked.searching
    assert [each.name for each in parked.calls] == ["a.look", "find_tools"]
    again = replace(begin, resumed=m.Resumption(parked=parked, decisions=(parked.questions[0].approve(),)))
    walk = Walk(again, opened("a"))
    assert sent(walk) == [("a", ["look"])]
    walk.send(returned(1, batch=1), returned(2, batch=2))
    assert offers(walk) == [TWO]


def test_a_list_that_changes_is_not_offered_anew() -> None:
    begun = searching("a"), opened("a", "look", "take"), asked(wrapped("a.look"))
    walk = Walk(*begun, changed("a", "look", "other"), returned(1))
    assert offers(walk) == [TWO, None]
    walk.send(asked(wrapped("a.other")))
    assert sent(walk)[-1] == ("a", ["other"])


@pytest.mark.parametrize("kept", [True, False])
def test_a_presumed_reply_stands_if_the_tool_that_it_names_is_as_it_was(kept: bool) -> None:
    presumed = m.ToolsPresumed(listings=(listing("a", "look", "take"),))
    walk = Walk(searching("a"), presumed, asked(wrapped("a.look"), ("find_tools", '{"query": "x"}')))
    assert offers(walk) == [TWO]
    walk.send(opened("a", "look", "other") if kept else opened("a", "take", "other"))
    assert bool(walk.of(m.DropCompletion)) is not kept
    assert bool(walk.of(m.CallTools)) is kept


def test_a_request_with_presumed_tools_is_not_dropped_before_its_reply_though_all_have_changed() -> None:
    presumed = m.ToolsPresumed(listings=(listing("a", "look", "take"),))
    walk = Walk(searching("a"), presumed, opened("a", "x", "y"))
    assert not walk.of(m.DropCompletion)
    walk.send(asked(("find_tools", '{"query": "x"}')))
    assert sent(walk) == [(SERVER, ["find_tools"])]


def test_without_the_setting_these_names_are_those_of_any_unknown_tool() -> None:
    walk = Walk(
        replace(run("a"), sorts_tools=True),
        opened("a"),
        m.CompletionReceived(request=1, tool_calls=(call(1, "call_tool"),)),
    )
    assert len(walk.of(m.ToolRejected)) == 1
