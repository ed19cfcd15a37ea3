"""What follows from presumed tools: each way in which they turn out to be right or wrong."""

import pytest
from msgspec.structs import replace
from turns import (
    DEADLINE,
    USAGE,
    Walk,
    calls,
    closed,
    died,
    disabled,
    empty,
    listing,
    llm_failed,
    names,
    opened,
    returned,
    run,
    startup_failed,
    support,
    text,
    tool,
)

from grue.messages import (
    CallTools,
    DeadlineMissed,
    DropCompletion,
    HistoryReference,
    LlmFailure,
    OfferTools,
    PresumedListing,
    ReplyDropped,
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RunTurn,
    ServerFailure,
    ServerNoted,
    SessionOpened,
    ToolsPresumed,
    ToolsVerified,
    TurnFailed,
    TurnParked,
    Usage,
)
from grue.policies import Budget, ContextItem, ContextPolicy, ToolPolicy, ToolRule, TurnLimits
from grue.protocol.turn.resuming import cut_off
from grue.protocol.turn.states import (
    AwaitingCompletion,
    AwaitingSessions,
    Presuming,
    progress_of,
    waiting_for,
)

BEGIN = run("a", "b")
PRESUMED = ToolsPresumed(listings=(listing("a"), listing("b")))
EARLY = (BEGIN, PRESUMED)
ESTIMATE = Usage(input_tokens=40, output_tokens=60)
GONE = ReplyDropped(request=1, usage=ESTIMATE)


def request(walk: Walk) -> RequestCompletion:
    (found,) = [command for command in walk.last if isinstance(command, RequestCompletion)]
    return found


def offered(walk: Walk) -> list[str]:
    mode = request(walk).mode
    assert isinstance(mode, OfferTools)
    assert mode.tools is not None
    return [each.name for each in mode.tools]


def out(walk: Walk) -> str:
    return " ".join(names(walk.last))


def reason(walk: Walk) -> str:
    (command,) = walk.last
    assert isinstance(command, DropCompletion)
    return command.reason


def reworded(server: str, name: str) -> SessionOpened:
    """A listing in which one tool has another description."""
    event = opened(server)
    tools = tuple(
        replace(each, description="Other words.") if each.tool == name else each for each in event.tools
    )
    return replace(event, tools=tools)


def test_the_first_request_offers_the_presumed_tools_in_the_order_of_the_servers() -> None:
    walk = Walk(BEGIN, ToolsPresumed(listings=(listing("b"), listing("a"))))
    assert request(walk).presumed
    assert offered(walk) == ["a.look", "a.think", "b.look", "b.think"]
    assert [item.text for item in request(walk).new] == ["You play.", "You are in a house."]


def test_equal_lists_go_on_whatever_their_order_and_are_not_offered_again() -> None:
    walk = Walk(*EARLY, opened("b", "think", "look"), opened("a"))
    assert walk.last == (ToolsVerified(request=1),)
    assert isinstance(walk.state, AwaitingCompletion)
    walk.send(calls("a.think"))
    walk.send(returned(1))
    assert request(walk).mode == OfferTools(None)


def test_a_tool_that_the_reply_does_not_call_may_have_changed_and_is_offered_next() -> None:
    walk = Walk(*EARLY, calls("a.think"), opened("a"), reworded("b", "look"))
    assert walk.last[0] == ToolsVerified(request=1, changed=("b.look",))
    assert isinstance(walk.last[1], CallTools)
    walk.send(returned(1))
    assert "b.look" in offered(walk)


def test_a_new_tool_is_offered_with_the_next_request() -> None:
    walk = Walk(*EARLY, calls("a.think"), opened("a", "look", "think", "sing"), opened("b"))
    assert walk.last[0] == ToolsVerified(request=1, changed=("a.sing",))
    walk.send(returned(1))
    assert "a.sing" in offered(walk)


@pytest.mark.parametrize(
    ("called", "event"),
    [
        ("b.look", reworded("b", "look")),
        ("b.look", opened("b", "think")),
        ("b.look", disabled("b")),
        ("b.sing", opened("b", "look", "think", "sing")),
    ],
)
def test_a_reply_that_calls_what_is_not_as_presumed_is_dropped(called: str, event: object) -> None:
    walk = Walk(*EARLY, calls(called, "a.think"), opened("a"), event)
    assert reason(walk).startswith("not as presumed: b.")
    walk.send(replace(GONE, usage=Usage()))
    again = request(walk)
    assert (again.request, again.new, again.presumed) == (2, (), False)
    assert isinstance(again.mode, OfferTools)
    assert progress_of(walk.state).usage == USAGE


def test_a_call_to_a_tool_that_neither_list_has_does_not_drop_the_reply() -> None:
    walk = Walk(*EARLY, calls("a.think", "nobody"), opened("a"), reworded("b", "look"))
    assert out(walk) == "ToolsVerified ToolRejected CallTools"


def test_a_request_under_way_is_cancelled_once_nothing_that_it_offers_stands() -> None:
    walk = Walk(*EARLY, empty("a"), disabled("b"))
    assert reason(walk) == "not as presumed: a.look, a.think, b.look and 1 more"
    walk.send(GONE)
    assert isinstance(request(walk).mode, RequireAnswer)
    assert progress_of(walk.state).usage == ESTIMATE


def test_a_request_under_way_is_waited_for_while_some_tool_stands() -> None:
    walk = Walk(*EARLY, opened("a"), disabled("b"))
    assert walk.last == ()
    assert waiting_for(walk.state) == "waiting for the model (request 1)"
    walk.send(calls("a.think"))
    assert isinstance(walk.last[1], CallTools)


def test_the_text_of_an_answer_stands_whichever_tools_there_are() -> None:
    walk = Walk(*EARLY, text("north"), empty("a"), disabled("b"))
    assert out(walk) == "ToolsVerified CheckAnswer"


def test_a_reply_on_its_way_when_it_was_dropped_is_paid_for() -> None:
    walk = Walk(*EARLY, empty("a"), empty("b"), calls("a.think"), replace(GONE, usage=Usage()))
    assert progress_of(walk.state).usage == USAGE
    walk = Walk(*EARLY, empty("a"), empty("b"), llm_failed(), replace(GONE, usage=Usage()))
    assert progress_of(walk.state).usage == Usage()


def test_r6_1_a_server_that_does_not_start_ends_the_turn_with_the_usage_counted() -> None:
    walk = Walk(*EARLY, opened("a"), calls("a.think"), startup_failed("b"))
    assert out(walk) == "CloseSession"
    early = Walk(*EARLY, startup_failed("a"))
    assert reason(early) == "the server 'a' did not start"
    early.send(opened("b"))
    early.send(GONE)
    assert out(early) == "CloseSession"
    for turn, usage in ((walk, USAGE), (early, ESTIMATE)):
        end = turn.state.end
        assert isinstance(end, TurnFailed)
        assert isinstance(end.failure, ServerFailure)
        assert (end.usage, end.requests) == (usage, 1)


def test_a_failed_completion_waits_for_the_sessions_and_a_server_that_does_not_start_wins() -> None:
    walk = Walk(*EARLY, llm_failed(), opened("a"))
    assert walk.last == ()
    assert waiting_for(walk.state) == "starting b"
    walk.send(opened("b"))
    assert isinstance(walk.state.end.failure, LlmFailure)
    walk = Walk(*EARLY, llm_failed(), opened("a"), startup_failed("b"))
    assert isinstance(walk.state.end.failure, ServerFailure)


def test_a_failed_completion_is_asked_again_if_the_tools_were_others() -> None:
    walk = Walk(*EARLY, llm_failed(), opened("a"), reworded("b", "look"))
    assert reason(walk) == "not as presumed: b.look"


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_completion_is_final_if_the_listed_tools_stand_unless_the_trace_is_old(late: bool) -> None:
    serving = replace(opened("b"), serves_unlisted=True)
    rest = (opened("a"), llm_failed()) if late else (llm_failed(), opened("a"))
    walk = Walk(replace(BEGIN, binds_parked=True), serving, PRESUMED, *rest)
    assert isinstance(walk.state.end.failure, LlmFailure)
    assert out(walk) == "ToolsVerified CloseSession CloseSession"
    assert reason(Walk(BEGIN, serving, PRESUMED, *rest)) == "not as presumed: "


def test_what_a_failed_completion_has_cost_is_counted_once() -> None:
    paid = replace(llm_failed(), usage=USAGE)
    went_on = Walk(*EARLY, paid, opened("a"), opened("b"))
    dropped = Walk(*EARLY, paid, opened("a"), reworded("b", "look"), replace(GONE, usage=Usage()))
    on_its_way = Walk(*EARLY, empty("a"), empty("b"), paid, replace(GONE, usage=Usage()))
    not_started = Walk(*EARLY, paid, startup_failed("b"))
    for walk in (went_on, dropped, on_its_way, not_started):
        assert progress_of(walk.state).usage == USAGE


def test_a_deadline_closes_the_sessions_that_are_starting_too() -> None:
    walk = Walk(*EARLY, opened("a"), DEADLINE)
    assert out(walk) == "CloseSession CloseSession"
    end = walk.state.end
    assert isinstance(end.failure, DeadlineMissed)
    assert end.failure.doing == "starting b and waiting for the model (request 1)"


def test_a_conversation_does_not_keep_a_reply_that_was_not_verified() -> None:
    begun = replace(BEGIN, history=HistoryReference(conversation="c", length=0, digest=""))
    walk = Walk(begun, PRESUMED, calls("a.think"), DEADLINE)
    assert walk.state.end.unread


def test_presuming_waits_for_the_check_of_the_model() -> None:
    beside = Walk(run("a", support_check="beside"), PRESUMED)
    assert beside.last == ()
    beside.send(support(True))
    assert request(beside).presumed
    before = Walk(run("a", support_check="before"), PRESUMED)
    assert before.last == ()
    before.send(support(True))
    assert out(before) == "OpenSession IterationStarted RequestCompletion"
    done = Walk(run("a", support_check="beside"), PRESUMED, opened("a"), support(True))
    assert not request(done).presumed


def limited(**budget: int) -> RunTurn:
    return run("a", "b", limits=TurnLimits(budget=Budget(**budget)))


def test_nothing_is_presumed_where_the_budget_leaves_one_request() -> None:
    assert Walk(limited(requests=1), PRESUMED).last == ()
    assert request(Walk(limited(requests=2), PRESUMED)).presumed


def test_a_dropped_reply_may_use_the_budget_up_except_for_the_final_answer() -> None:
    walk = Walk(limited(requests=2), PRESUMED, empty("a"), opened("b", "other"), GONE)
    assert out(walk) == "FinalForced RequestCompletion"
    assert request(walk).request == 2


def test_nothing_is_presumed_of_servers_without_tools_or_after_all_have_reported() -> None:
    none = ToolsPresumed(listings=(listing("x"), PresumedListing(server="a", tools=(), source="runner")))
    assert Walk(BEGIN, none).last == ()
    assert Walk(BEGIN, opened("a"), opened("b"), PRESUMED).last == ()


def test_nothing_is_presumed_after_a_reconnect() -> None:
    begun = run("a", after_death="reconnect")
    presumed = ToolsPresumed(listings=(listing("a"),))
    walk = Walk(begun, presumed, calls("a.think"), opened("a"), died(1), closed("a"))
    assert "OpenSession" in out(walk)
    waiting = walk.state
    walk.send(presumed)
    assert (walk.state, walk.last) == (replace(waiting, presumed=presumed), ())


def test_what_a_server_has_listed_counts_more_than_what_was_presumed() -> None:
    walk = Walk(BEGIN, opened("a", "sing"), PRESUMED)
    assert offered(walk) == ["a.sing", "b.look", "b.think"]


def test_a_history_that_has_to_be_cleared_waits_for_the_list() -> None:
    policy = ContextPolicy(window_tokens=1000, reply_tokens=0)
    full = replace(BEGIN, context=policy, earlier=(ContextItem(tokens=50), ContextItem(tokens=900)))
    assert isinstance(Walk(full, PRESUMED).state, AwaitingSessions)
    stubs = replace(full, earlier=(ContextItem(tokens=50), ContextItem(tokens=900, stub="gone")))
    assert isinstance(Walk(stubs, PRESUMED).state, AwaitingSessions)
    room = replace(full, earlier=(ContextItem(tokens=50),))
    walk = Walk(room, PRESUMED, calls("b.look"), opened("a"), disabled("b"))
    assert isinstance(walk.state.turn.ledger, type(Walk(room).state.turn.ledger))
    assert walk.state.turn.ledger.items == Walk(room, PRESUMED).state.turn.ledger.items


def test_names_that_two_servers_list_are_noted_again_if_the_list_has_changed() -> None:
    double = replace(tool("b.look"), full_name="a.look")
    walk = Walk(*EARLY, calls("a.think"), opened("a"), SessionOpened(server="b", tools=(double,)))
    assert isinstance(walk.last[0], ServerNoted)
    assert out(walk) == "ServerNoted ToolsVerified CallTools"


def test_a_server_that_serves_more_than_it_lists_is_judged_by_the_calls() -> None:
    serving = replace(opened("b"), serves_unlisted=True)
    assert out(Walk(*EARLY, calls("a.think"), opened("a"), serving)) == "ToolsVerified CallTools"
    for new, named in ((True, "b.sing"), (False, "")):  # `False`: in an old trace
        walk = Walk(
            replace(BEGIN, binds_parked=new), PRESUMED, calls("b.sing", "b.sing"), opened("a"), serving
        )
        assert reason(walk) == f"not as presumed: {named}"


def test_a_resumed_turn_presumes_only_if_it_asks_first() -> None:
    asking = Resumption(parked=TurnParked(turn=7))
    assert request(Walk(replace(BEGIN, resumed=asking), PRESUMED)).presumed
    calling = Resumption(parked=TurnParked(turn=7, calls=calls("a.think").tool_calls))
    assert Walk(replace(BEGIN, resumed=calling), PRESUMED).last == ()


def test_a_turn_that_was_killed_while_it_presumed_asks_again() -> None:
    walk = Walk(*EARLY)
    assert isinstance(walk.state, Presuming)
    where = cut_off(walk.state, ())
    assert where is not None
    assert (where.new, where.parked.requests) == ((), 1)
    failing = Walk(*EARLY, startup_failed("a"))
    assert cut_off(failing.state, ()) is None
    dropping = Walk(*EARLY, empty("a"), empty("b"))
    assert cut_off(dropping.state, ()) is not None


def test_a_pattern_that_matches_no_tool_is_noted_when_all_servers_have_reported() -> None:
    policy = ToolPolicy(rules=(ToolRule(tools=("A.look",), verdict="deny"),))
    begun = replace(BEGIN, tool_policy=policy, binds_calls=True)
    walk = Walk(begun, *EARLY[1:], opened("a"))
    assert walk.of(ServerNoted) == []
    walk.send(opened("b"))
    walk.send(calls("a.think"))
    assert [note.text for note in walk.of(ServerNoted)] == [
        "the tool policy has 'A.look', which matches no tool"
    ]
