"""Servers that start when they are called: any order of start, list, drift, death, call and cancel."""

from arbitrary_turns import ArbitraryTurn, calling_turns
from example_counts import examples
from hypothesis import HealthCheck, given, settings

from grue.messages import (
    CallTools,
    CloseSession,
    McpDisabled,
    OfferTools,
    OpenSession,
    RequestCompletion,
    SessionOpened,
    StartupFailed,
    ToolMessage,
    TurnFailed,
)

turns = settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])


def waiting_servers(turn: ArbitraryTurn) -> set[str]:
    return {listing.server for listing in turn.run.when_called}


@given(calling_turns())
@turns
def test_a_server_starts_only_for_a_call_and_is_called_only_after_it_has_listed(turn: ArbitraryTurn) -> None:
    waiting, listed = waiting_servers(turn), set()
    named: set[str] = set()
    for entry in turn.log:
        body = entry.body
        if entry.way == "in" and getattr(body, "tool_calls", ()):
            named |= {call.name.partition(".")[0] for call in body.tool_calls}
        if isinstance(body, OpenSession) and body.server in waiting:
            assert body.server in named
        if isinstance(body, SessionOpened):
            listed.add(body.server)
        if isinstance(body, CallTools):
            assert body.server in listed
            assert all(call.definition for call in body.calls), "the session compares it with the list"


@given(calling_turns())
@turns
def test_no_more_servers_are_starting_than_the_limit_says(turn: ArbitraryTurn) -> None:
    waiting, starting = waiting_servers(turn), set()
    for entry in turn.log:
        match entry.body:
            case OpenSession(server=server) if server in waiting:
                starting.add(server)
                assert len(starting) <= turn.run.limits.starts_at_once
            case SessionOpened(server=server) | McpDisabled(server=server) | StartupFailed(server=server):
                starting.discard(server)


@given(calling_turns())
@turns
def test_every_call_is_answered_once_before_the_next_request(turn: ArbitraryTurn) -> None:
    for reply, _between, following in turn.rounds():
        if following is not None:
            answered = [item.call_id for item in following.new if isinstance(item, ToolMessage)]
            assert answered == [call.call_id for call in reply.tool_calls]


@given(calling_turns())
@turns
def test_every_session_that_was_opened_is_closed_and_no_other(turn: ArbitraryTurn) -> None:
    opened = [command.server for command in turn.went(OpenSession)]
    gone = {event.server for event in turn.came(McpDisabled, StartupFailed)}
    closed = {command.server for command in turn.went(CloseSession)}
    assert closed <= set(opened)
    assert set(opened) - gone <= closed


@given(calling_turns())
@turns
def test_the_list_that_is_offered_changes_only_if_a_server_lists_another_one(turn: ArbitraryTurn) -> None:
    offered = {
        listing.server: {tool.name: tool for tool in listing.tools} for listing in turn.run.when_called
    }
    drifted = False
    for entry in turn.log[1:]:
        match entry.body:
            case SessionOpened(server=server, tools=tools):
                # After a reconnect the list is offered anew in any case.
                before = offered.pop(server, None)
                drifted = drifted or before != {tool.name: tool for tool in tools}
            case McpDisabled():
                drifted = True
            case RequestCompletion(mode=OfferTools(tools=tools), request=request) if request > 1:
                assert tools is None or drifted
                drifted = False


@given(calling_turns())
@turns
def test_a_turn_ends_in_failure_for_a_server_only_if_that_server_failed(turn: ArbitraryTurn) -> None:
    if isinstance(turn.end, TurnFailed) and hasattr(turn.end.failure, "server"):
        failed = {event.server for event in turn.came(StartupFailed)}
        assert turn.end.failure.server in failed
