"""What holds for every turn, whatever the model, the servers, the host's check and the clock do."""

import json
from typing import Any

from arbitrary_turns import ArbitraryTurn, arbitrary_turns
from example_counts import examples
from hypothesis import HealthCheck, given, settings

from grue.messages import (
    AnswerAccepted,
    CallTools,
    CheckAnswer,
    CheckToolSupport,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    DeadlinePassed,
    FinalForced,
    McpDisabled,
    OfferTools,
    OpenSession,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ServerDied,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolMessage,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolSupportChecked,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
    TurnInterrupted,
    Usage,
)
from grue.protocol.tools.results import SKIPPED_AFTER_TIMEOUT

turns = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])


def told(request: RequestCompletion) -> list[ToolMessage]:
    return [item for item in request.new if isinstance(item, ToolMessage)]


def settlements(entries: list[Any]) -> list[Any]:
    kinds = (ToolReturned, ToolTimedOut, ToolSkipped, ServerDied)
    return [entry.body for entry in entries if isinstance(entry.body, kinds)]


def sent(entries: list[Any]) -> list[str]:
    return [
        call.call_id for entry in entries if isinstance(entry.body, CallTools) for call in entry.body.calls
    ]


@given(arbitrary_turns())
@turns
def test_p2_every_turn_ends_in_one_outcome_or_one_failure(turn: ArbitraryTurn) -> None:
    assert len(turn.went(TurnCompleted, TurnFailed)) == 1
    assert isinstance(turn.end, TurnCompleted | TurnFailed)
    assert turn.end.requests == len(turn.went(RequestCompletion))
    if isinstance(turn.end, TurnCompleted):
        assert (turn.end.kind == "answered") == (turn.end.reason == "")


@given(arbitrary_turns())
@turns
def test_p2_an_outcome_is_the_answer_that_was_accepted_or_else_the_hosts_fallback(
    turn: ArbitraryTurn,
) -> None:
    accepted = turn.came(AnswerAccepted)
    asked = [entry.body.content for entry in turn.log if isinstance(entry.body, CheckAnswer)]
    if isinstance(turn.end, TurnFailed):
        assert turn.end.failure is not None
        order = [type(entry.body) for entry in turn.log]
        over = [order.index(kind) for kind in (DeadlinePassed, TurnInterrupted) if kind in order]
        assert not accepted or order.index(AnswerAccepted) > min(over), "only one that came too late is lost"
    elif turn.end.kind == "fallback":
        assert (turn.end.answer, not accepted) == (turn.run.fallback, True)
        assert turn.run.fallback is not None
    else:
        assert [verdict.answer for verdict in accepted] == [turn.end.answer]
        assert turn.end.raw_response == asked[-1]


@given(arbitrary_turns())
@turns
def test_p1_a_loop_request_offers_what_the_open_sessions_listed(turn: ArbitraryTurn) -> None:
    listed: dict[str, Any] = {}
    offered: Any = None
    for entry in turn.log:
        match entry.body:
            case SessionOpened(server=server, tools=tools):
                listed[server] = tools
            case CloseSession(server=server) | McpDisabled(server=server):
                listed.pop(server, None)
            case RequestCompletion(mode=OfferTools(tools=tools)):
                offered = offered if tools is None else tools
                assert offered == tuple(item for name in turn.run.servers for item in listed.get(name, ()))
                assert offered, "an offer of nothing is no offer"
            case _:
                pass


@given(arbitrary_turns())
@turns
def test_p3_each_call_is_answered_once_in_call_order_before_the_next_request(turn: ArbitraryTurn) -> None:
    answered = []
    for reply, _, request in turn.rounds():
        if request is not None:
            assert [item.call_id for item in told(request)] == [call.call_id for call in reply.tool_calls]
            answered += told(request)
    assert answered == [item for request in turn.went(RequestCompletion) for item in told(request)]


@given(arbitrary_turns())
@turns
def test_p6_every_session_that_opened_is_closed_once_before_the_turn_ends(turn: ArbitraryTurn) -> None:
    for server in turn.run.servers:
        state = "closed"
        for entry in turn.log:
            match entry.body:
                case OpenSession() as command if command.server == server:
                    assert state == "closed"
                    state = "opening"
                case SessionOpened() as event if event.server == server:
                    state = "open" if state == "opening" else state
                case McpDisabled() | StartupFailed() as event if event.server == server:
                    state = "closed" if state == "opening" else state
                case CallTools() as command if command.server == server:
                    assert state == "open", "the first OpenSession precedes every call"
                case CloseSession() as command if command.server == server:
                    assert state in ("opening", "open")
                    state = "closing"
                case SessionClosed() as event if event.server == server:
                    assert state == "closing"
                    state = "closed"
                case _:
                    pass
        assert state == "closed"


@given(arbitrary_turns())
@turns
def test_p14_tools_and_response_format_never_meet_and_the_loop_requires_no_answer(
    turn: ArbitraryTurn,
) -> None:
    modes = [request.mode for request in turn.went(RequestCompletion)]
    offers = [isinstance(mode, OfferTools) for mode in modes]
    assert offers == sorted(offers, reverse=True), "after a request for the answer no tools are offered"
    assert all(mode == RequireAnswer(turn.run.answer) for mode in modes if not isinstance(mode, OfferTools))
    assert len(offers) - sum(offers) <= 2


@given(arbitrary_turns())
@turns
def test_p16_every_call_is_settled_once_and_sent_to_its_server_unless_invalid(turn: ArbitraryTurn) -> None:
    for reply, following, request in turn.rounds():
        ids = [call.call_id for call in reply.tool_calls]
        rejected = [entry.body.call_id for entry in following if isinstance(entry.body, ToolRejected)]
        settled = [item.call_id for item in settlements(following)]
        here = [call_id for call_id in (*rejected, *settled) if call_id in ids]
        assert len(here) == len(set(here))
        assert not set(sent(following)) & set(rejected)
        assert len(sent(following)) == len(set(sent(following)))
        if request is not None:
            assert sorted(here) == sorted(ids)


def readable(arguments: str) -> bool:
    return arguments in ("", "{}", '{"x": 1}')


@given(arbitrary_turns())
@turns
def test_p16_a_valid_call_reaches_the_server_that_listed_it_as_the_model_made_it(turn: ArbitraryTurn) -> None:
    listed: dict[str, Any] = {}
    offered = False
    for entry in turn.log:
        if isinstance(entry.body, RequestCompletion):
            offered = isinstance(entry.body.mode, OfferTools)
            if offered and entry.body.mode.tools is not None:
                listed = {item.name: item for item in entry.body.mode.tools}
        elif isinstance(entry.body, CompletionReceived) and entry.body.tool_calls and offered:
            following = turn.after(entry)
            valid = {
                call.call_id: call
                for call in entry.body.tool_calls
                if call.name in listed and readable(call.arguments)
            }
            served = {
                call.call_id: (batch.server, call.tool, call.arguments)
                for batch in following
                if isinstance(batch, CallTools)
                for call in batch.calls
            }
            rejected = {item.call_id for item in following if isinstance(item, ToolRejected)}
            skipped = {item.call_id for item in following if isinstance(item, ToolSkipped)}
            assert rejected.isdisjoint(valid), "no valid call is answered without its server"
            for call_id, call in valid.items():
                tool = listed[call.name]
                expected = (tool.server, tool.tool, json.loads(call.arguments or "{}"))
                if call_id not in skipped or call_id in served:
                    assert served.get(call_id, expected if turn.interrupted else None) == expected


@given(arbitrary_turns())
@turns
def test_p17_one_batch_at_a_time_and_calls_go_out_in_order(turn: ArbitraryTurn) -> None:
    pending: set[str] = set()
    for entry in turn.log:
        match entry.body:
            case CallTools(calls=calls):
                assert not pending
                pending = {call.call_id for call in calls}
            case ToolReturned(call_id=call_id) | ToolTimedOut(call_id=call_id) | ServerDied(call_id=call_id):
                pending.discard(call_id)
            case ToolSkipped(call_id=call_id):
                pending.discard(call_id)
            case _:
                pass
    for reply, following, _ in turn.rounds():
        order = [call.call_id for call in reply.tool_calls]
        assert sent(following) == [call_id for call_id in order if call_id in sent(following)]


@given(arbitrary_turns())
@turns
def test_p19_the_last_settlement_yields_exactly_one_request(turn: ArbitraryTurn) -> None:
    waiting = False
    for entry in turn.log:
        if isinstance(entry.body, RequestCompletion):
            assert not waiting, "the model is asked again only when it has replied"
            waiting = True
        elif isinstance(entry.body, CompletionReceived | CompletionFailed):
            waiting = False
    batches = [command.batch for command in turn.went(CallTools)]
    assert batches == sorted(set(batches))


@given(arbitrary_turns())
@turns
def test_p20_after_content_without_calls_only_a_repair_may_follow(turn: ArbitraryTurn) -> None:
    entries = turn.log
    checks = [number for number, entry in enumerate(entries) if isinstance(entry.body, CheckAnswer)]
    for number in checks:
        later = [entry.body for entry in entries[number:]]
        assert not [body for body in later if isinstance(body, CallTools)]
        requests = [body for body in later if isinstance(body, RequestCompletion)]
        assert len(requests) <= 1
        assert all(isinstance(request.mode, RequireAnswer) for request in requests)


@given(arbitrary_turns())
@turns
def test_p21_each_failure_is_one_error_message(turn: ArbitraryTurn) -> None:
    for _, following, request in turn.rounds():
        if request is None:
            continue
        succeeded = {
            item.call_id
            for item in settlements(following)
            if isinstance(item, ToolReturned) and not item.result.is_error
        }
        for message in told(request):
            assert ("error" in json.loads(message.content)) == (message.call_id not in succeeded)


@given(arbitrary_turns())
@turns
def test_p22_skips_never_cross_a_batch_boundary(turn: ArbitraryTurn) -> None:
    for reply, following, _ in turn.rounds():
        ids = {call.call_id for call in reply.tool_calls}
        for item in settlements(following):
            if isinstance(item, ToolSkipped):
                assert item.call_id in ids
        ends = (ServerDied,) if turn.run.policy.after_timeout == "continue" else (ServerDied, ToolTimedOut)
        broken = next((n for n, entry in enumerate(following) if isinstance(entry.body, ends)), None)
        assert broken is None or not sent(following[broken:]), "what ends a batch ends all of it"
    sent_later = set()
    for reply, following, _ in reversed(turn.rounds()):
        assert not sent_later & {call.call_id for call in reply.tool_calls}
        sent_later |= set(sent(following))


@given(arbitrary_turns())
@turns
def test_p23_after_a_failure_that_is_no_timeout_the_next_call_is_sent(turn: ArbitraryTurn) -> None:
    for reply, following, request in turn.rounds():
        ended_batch = any(isinstance(item, ToolTimedOut | ServerDied) for item in settlements(following))
        too_late = not isinstance(request_before(turn, reply).mode, OfferTools)
        if request is None or ended_batch or too_late:
            continue
        rejected = {entry.body.call_id for entry in following if isinstance(entry.body, ToolRejected)}
        assert sent(following) == [c.call_id for c in reply.tool_calls if c.call_id not in rejected]


def request_before(turn: ArbitraryTurn, reply: CompletionReceived) -> RequestCompletion:
    position = next(number for number, entry in enumerate(turn.log) if entry.body is reply)
    return [entry.body for entry in turn.log[:position] if isinstance(entry.body, RequestCompletion)][-1]


@given(arbitrary_turns())
@turns
def test_p24_p25_a_timeout_ends_its_batch_and_says_how_long_it_waited(turn: ArbitraryTurn) -> None:
    for _, following, request in turn.rounds():
        late = [n for n, entry in enumerate(following) if isinstance(entry.body, ToolTimedOut)]
        if not late:
            continue
        if turn.run.policy.after_timeout != "continue":
            assert len(late) == 1
            after = following[late[0] + 1 :]
            assert sent(after) == []
            assert {item.reason for item in settlements(after)} <= {SKIPPED_AFTER_TIMEOUT}
        if request is not None:
            timed_out = {following[n].body.call_id for n in late}
            words = [json.loads(item.content) for item in told(request) if item.call_id in timed_out]
            assert words == [{"error": "Tool call timed out after 30s", "content": None}] * len(late)


@given(arbitrary_turns())
@turns
def test_a_turn_makes_at_most_max_tool_iterations_plus_two_requests(turn: ArbitraryTurn) -> None:
    requests = turn.went(RequestCompletion)
    assert len(requests) <= turn.run.limits.max_tool_iterations + 2
    assert [request.request for request in requests] == list(range(1, len(requests) + 1))
    offers = [request for request in requests if isinstance(request.mode, OfferTools)]
    assert len(offers) <= turn.run.limits.max_tool_iterations


@given(arbitrary_turns())
@turns
def test_a_reached_budget_asks_for_no_more_than_the_final_answer(turn: ArbitraryTurn) -> None:
    budget = turn.run.limits.budget
    spent = Usage()
    for entry in turn.log:
        match entry.body:
            case CompletionReceived(usage=usage):
                spent += usage
            case RequestCompletion(mode=mode, request=number):
                reached = (
                    (budget.tokens is not None and spent.input_tokens + spent.output_tokens >= budget.tokens)
                    or (budget.cost_usd is not None and (spent.cost_usd or 0) >= budget.cost_usd)
                    or (budget.requests is not None and number >= budget.requests)
                )
                assert not (reached and isinstance(mode, OfferTools))
                assert budget.requests is None or number <= budget.requests
            case _:
                pass
    finals = [item for item in turn.went(RequestCompletion) if isinstance(item.mode, RequireAnswer)]
    if turn.went(FinalForced) and turn.went(FinalForced)[0].reason == "budget" and budget.requests is None:
        assert len(finals) == 1, "a spent budget leaves no repair"


@given(arbitrary_turns())
@turns
def test_r12_5_no_tool_is_offered_before_the_model_is_known_to_take_tools(turn: ArbitraryTurn) -> None:
    asked, known = turn.went(CheckToolSupport), False
    assert len(asked) <= 1
    for entry in turn.log:
        match entry.body:
            case ToolSupportChecked(supported=supported):
                known = supported
            case OpenSession():
                assert known or turn.run.support_check != "before"
            case RequestCompletion(mode=OfferTools()):
                assert known or not asked
            case _:
                pass
    if turn.run.support_check == "before" and not known:
        assert not turn.went(OpenSession) or not turn.run.servers


@given(arbitrary_turns())
@turns
def test_the_end_records_every_answered_call_in_order(turn: ArbitraryTurn) -> None:
    answered = [item.call_id for request in turn.went(RequestCompletion) for item in told(request)]
    recorded = [item.call_id for item in turn.end.tool_calls]
    assert recorded[: len(answered)] == answered
    assert len(recorded) == len(set(recorded))
    assert isinstance(turn.log[0].body, RunTurn)
