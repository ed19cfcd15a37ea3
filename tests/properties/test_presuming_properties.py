"""Turns that presume what their servers list: any order of reply, reports, failures, deadline and cancel."""

from typing import Any

from arbitrary_turns import ArbitraryTurn, presuming_turns
from example_counts import examples
from hypothesis import HealthCheck, given, settings

from grue.messages import (
    CallTools,
    CheckAnswer,
    CheckToolSupport,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    DropCompletion,
    McpDisabled,
    OfferTools,
    OpenSession,
    ReplyDropped,
    RequestCompletion,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolRejected,
    ToolSkipped,
    ToolSupportChecked,
    ToolsVerified,
    TurnCompleted,
    TurnFailed,
    TurnParked,
    Usage,
)

turns = settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
REPORTS = SessionOpened | McpDisabled | StartupFailed
ACTS = CallTools | CheckAnswer | ToolRejected | ToolSkipped


def presumed(turn: ArbitraryTurn) -> list[RequestCompletion]:
    return [request for request in turn.went(RequestCompletion) if request.presumed]


def dropped_replies(turn: ArbitraryTurn) -> set[int]:
    return {command.request for command in turn.went(DropCompletion)}


def told(request: RequestCompletion) -> list[Any]:
    return [item.call_id for item in request.new if hasattr(item, "call_id")]


@given(presuming_turns())
@turns
def test_nothing_follows_from_a_reply_before_all_sessions_have_reported(turn: ArbitraryTurn) -> None:
    waiting = set(turn.run.servers)
    for entry in turn.log:
        if isinstance(entry.body, REPORTS):
            waiting.discard(entry.body.server)
        if isinstance(entry.body, ACTS):
            assert not waiting or not presumed(turn)


@given(presuming_turns())
@turns
def test_only_the_first_request_presumes_and_at_most_one_reply_is_dropped(turn: ArbitraryTurn) -> None:
    requests = turn.went(RequestCompletion)
    assert [request.request for request in requests] == list(range(1, len(requests) + 1))
    assert [request.request for request in presumed(turn)] in ([], [1])
    drops = turn.went(DropCompletion)
    assert len(drops) <= len(presumed(turn))
    if not turn.interrupted:
        assert len(turn.came(ReplyDropped)) == len(drops)
        verified = turn.went(ToolsVerified)
        assert len(verified) + len(drops) == len(presumed(turn)) or isinstance(turn.end, TurnFailed)
    kept = [request for request in requests if request.request not in dropped_replies(turn)]
    assert len(kept) <= turn.run.limits.max_tool_iterations + 2


@given(presuming_turns())
@turns
def test_a_request_is_sent_only_when_the_one_before_is_answered_or_dropped(turn: ArbitraryTurn) -> None:
    waiting = False
    for entry in turn.log:
        match entry.body:
            case RequestCompletion():
                assert not waiting
                waiting = True
            case CompletionReceived() | CompletionFailed() | ReplyDropped():
                waiting = False
            case _:
                pass


@given(presuming_turns())
@turns
def test_p16_calls_go_to_tools_that_were_offered_with_the_definition_that_is_listed(
    turn: ArbitraryTurn,
) -> None:
    listed: dict[str, Any] = {}
    offered: dict[str, Any] = {}
    for entry in turn.log:
        match entry.body:
            case SessionOpened(tools=tools):
                listed |= {item.name: item for item in tools}
            case RequestCompletion(mode=OfferTools(tools=tools)) if tools is not None:
                offered = {item.name: item for item in tools}
            case CallTools(server=server, calls=calls):
                for call in calls:
                    name = f"{server}.{call.tool}"
                    assert listed[name] == offered[name]


@given(presuming_turns())
@turns
def test_p3_p16_no_call_of_a_dropped_reply_is_made_or_told(turn: ArbitraryTurn) -> None:
    calls = {
        call.call_id
        for reply in turn.came(CompletionReceived)
        if reply.request in dropped_replies(turn)
        for call in reply.tool_calls
    }
    assert calls.isdisjoint(call.call_id for batch in turn.went(CallTools) for call in batch.calls)
    assert calls.isdisjoint(call_id for request in turn.went(RequestCompletion) for call_id in told(request))
    assert calls.isdisjoint(record.call_id for record in turn.end.tool_calls)


@given(presuming_turns())
@turns
def test_p6_every_session_is_closed_once_and_the_turn_ends_once(turn: ArbitraryTurn) -> None:
    open_now: set[str] = set()
    for entry in turn.log:
        match entry.body:
            case OpenSession(server=server):
                assert server not in open_now
                open_now.add(server)
            case McpDisabled(server=server) | StartupFailed(server=server) | SessionClosed(server=server):
                open_now.discard(server)
            case CloseSession(server=server):
                assert server in turn.run.servers
    assert not open_now
    assert len(turn.went(TurnCompleted, TurnFailed, TurnParked)) == 1


@given(presuming_turns())
@turns
def test_every_reply_is_paid_for_dropped_or_not(turn: ArbitraryTurn) -> None:
    # When the turn closes its sessions to end, it waits for no reply. One closed before is opened again.
    acts = [n for n, entry in enumerate(turn.log) if isinstance(entry.body, OpenSession | RequestCompletion)]
    over = [n for n, entry in enumerate(turn.log) if isinstance(entry.body, CloseSession) and n > acts[-1]]
    heard = turn.log[: min(over, default=len(turn.log))]
    spent = Usage()
    for entry in heard:
        if isinstance(entry.body, CompletionReceived | ReplyDropped):
            spent += entry.body.usage
    assert turn.end.usage == spent
    assert turn.end.requests == len(turn.went(RequestCompletion))


@given(presuming_turns())
@turns
def test_r12_5_no_tool_is_presumed_before_the_model_is_known_to_take_tools(turn: ArbitraryTurn) -> None:
    asked, known = turn.went(CheckToolSupport), False
    for entry in turn.log:
        match entry.body:
            case ToolSupportChecked(supported=supported):
                known = supported
            case OpenSession():
                assert known or turn.run.support_check != "before"
            case RequestCompletion(mode=OfferTools()):
                assert known or not asked


@given(presuming_turns())
@turns
def test_a_budget_of_one_request_is_never_spent_on_presumed_tools(turn: ArbitraryTurn) -> None:
    budget = turn.run.limits.budget
    requests = turn.went(RequestCompletion)
    if budget.requests is not None:
        assert len(requests) <= max(budget.requests, 1)
        assert budget.requests > 1 or not presumed(turn)
