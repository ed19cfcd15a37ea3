"""Servers that start when they are called: what starts them, and what follows from what they list then."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import (
    DEADLINE,
    Walk,
    calls,
    died,
    disabled,
    failure,
    listing,
    names,
    opened,
    returned,
    run,
    startup_failed,
    support,
    text,
    timed_out,
    tool,
)

from grue.messages import (
    CallsDecided,
    CallTools,
    CloseSession,
    DeadlineMissed,
    HistoryReference,
    OfferTools,
    OpenSession,
    OpenTask,
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RunTurn,
    ServerCall,
    ToolMessage,
    ToolsPresumed,
    ToolsVerified,
    ToolTask,
    TurnFailed,
    TurnParked,
)
from grue.policies import ToolAnnotations, ToolPolicy, ToolRule, TurnLimits
from grue.protocol.turn.resuming import cut_off
from grue.protocol.turn.states import AwaitingTools, waiting_for


def later(*servers: str, eager: tuple[str, ...] = (), **begun: Any) -> RunTurn:
    """A turn in which `servers` start when they are called, and the `eager` ones at its start."""
    command = run(*eager, *servers, **begun)
    return replace(command, when_called=tuple(map(listing, servers)))


def opens(walk: Walk) -> list[str]:
    return [command.server for command in walk.of(OpenSession)]


def called(walk: Walk) -> list[list[str]]:
    return [[call.call_id for call in command.calls] for command in walk.of(CallTools)]


def requests(walk: Walk) -> list[RequestCompletion]:
    return walk.of(RequestCompletion)


def told(walk: Walk) -> list[str]:
    return [item.content for item in requests(walk)[-1].new if isinstance(item, ToolMessage)]


def test_a_turn_that_calls_nothing_starts_nothing() -> None:
    walk = Walk(later("a", "b"), text("north"))
    assert names(walk.steps[0]) == ("IterationStarted", "RequestCompletion")
    offered = requests(walk)[0].mode
    assert isinstance(offered, OfferTools)
    assert offered.tools is not None
    assert [each.name for each in offered.tools] == ["a.look", "a.think", "b.look", "b.think"]
    assert not opens(walk)
    assert not requests(walk)[0].presumed


def test_only_a_called_server_starts_and_its_calls_wait_for_it() -> None:
    walk = Walk(later("a", "b"), calls("b.think", "b.look"))
    assert opens(walk) == ["b"]
    assert called(walk) == []
    assert waiting_for(walk.state) == "starting b"  # type: ignore[arg-type]
    walk.send(opened("b"))
    assert names(walk.last) == ("ToolsVerified", "CallTools")
    assert called(walk) == [["c1", "c2"]]
    walk.send(returned(1), returned(2))
    again = requests(walk)[1].mode
    assert isinstance(again, OfferTools)
    assert again.tools is None, "the list is as it was offered"
    walk.send(calls("b.look", first=3))
    assert opens(walk) == ["b"], "it has started already"


def test_the_order_of_a_listing_does_not_matter() -> None:
    walk = Walk(later("a"), calls("a.think"), opened("a", "think", "look"), returned(1))
    assert walk.of(ToolsVerified) == [ToolsVerified(request=1, server="a")]
    again = requests(walk)[1].mode
    assert isinstance(again, OfferTools)
    assert again.tools is None


@pytest.mark.parametrize("live", [("think",), ("think", "look", "new")])
def test_a_list_that_has_changed_is_offered_by_the_next_request(live: tuple[str, ...]) -> None:
    walk = Walk(later("a", "b"), calls("a.think"), opened("a", *live), returned(1))
    (verified,) = walk.of(ToolsVerified)
    assert verified.server == "a"
    assert len(verified.changed) == 1
    again = requests(walk)[1].mode
    assert isinstance(again, OfferTools)
    assert again.tools is not None
    assert [each.name for each in again.tools] == [*(f"a.{name}" for name in live), "b.look", "b.think"]


def test_first_calls_start_their_servers_at_the_same_time_and_are_sent_in_order() -> None:
    walk = Walk(later("a", "b", "c"), calls("a.think", "b.think", "a.look"))
    assert opens(walk) == ["a", "b"]
    assert called(walk) == []
    walk.send(opened("b"))
    assert called(walk) == [], "the calls of a come first"
    walk.send(opened("a"))
    assert called(walk) == [["c1"]]
    walk.send(returned(1), returned(2, batch=2), returned(3, batch=3))
    assert called(walk) == [["c1"], ["c2"], ["c3"]]
    assert len(requests(walk)) == 2


def test_parallel_calls_do_not_wait_for_each_others_servers() -> None:
    policy = ToolPolicy(rules=(ToolRule(parallel=True),), trusted=("a", "b"))
    offered = {
        name: (replace(tool(f"{name}.think"), annotations=ToolAnnotations(read_only=True)),) for name in "ab"
    }
    listings = tuple(replace(listing(name), tools=tools) for name, tools in offered.items())
    begun = replace(run("a", "b"), tool_policy=policy, when_called=listings)
    walk = Walk(begun, calls("a.think", "b.think"), replace(opened("b"), tools=offered["b"]))
    assert called(walk) == [["c2"]]
    walk.send(replace(opened("a"), tools=offered["a"]))
    assert called(walk) == [["c2"], ["c1"]]


def test_so_many_servers_are_starting_at_once_and_no_more() -> None:
    servers = tuple(f"s{number}" for number in range(7))
    limits = TurnLimits(starts_at_once=3)
    walk = Walk(later(*servers, limits=limits), calls(*(f"{server}.look" for server in servers)))
    assert opens(walk) == ["s0", "s1", "s2"]
    walk.send(opened("s2"))
    assert opens(walk) == ["s0", "s1", "s2", "s3"]
    walk.send(disabled("s0"), opened("s1"))
    assert opens(walk) == ["s0", "s1", "s2", "s3", "s4", "s5"]


def test_a_limit_below_one_still_starts_one_at_a_time() -> None:
    walk = Walk(later("a", "b", limits=TurnLimits(starts_at_once=0)), calls("a.look", "b.look"))
    assert opens(walk) == ["a"]


def test_calls_of_a_server_that_does_not_start_are_answered_and_the_others_are_made() -> None:
    walk = Walk(later("a", "b"), calls("a.think", "b.think"), disabled("a"), opened("b"))
    assert called(walk) == [["c2"]]
    walk.send(returned(2, batch=2))
    assert "the server 'a' did not start: it ended" in told(walk)[0]
    assert "ok" in told(walk)[1]
    again = requests(walk)[1].mode
    assert isinstance(again, OfferTools)
    assert again.tools is not None
    assert {each.server for each in again.tools} == {"b"}


def test_a_required_server_that_does_not_start_ends_the_turn() -> None:
    begun = replace(later("a", "b"), history=HistoryReference(conversation="c", length=0, digest=""))
    walk = Walk(begun, calls("a.think", "b.think"), startup_failed("a"))
    assert [command.server for command in walk.of(CloseSession)] == ["b"], "it is starting"
    assert isinstance(walk.state.end, TurnFailed)  # type: ignore[union-attr]
    assert walk.state.end.failure == failure("a")  # type: ignore[union-attr]
    assert [item.call_id for item in walk.state.end.untold] == ["c1", "c2"]  # type: ignore[union-attr]


def test_the_policy_and_a_person_decide_before_a_server_starts() -> None:
    ask = ToolPolicy(
        rules=(ToolRule(tools=("a.*",), verdict="ask"), ToolRule(tools=("b.*",), verdict="deny"))
    )
    walk = Walk(replace(later("a", "b"), tool_policy=ask), calls("a.think", "b.think"))
    assert names(walk.last)[-1] == "AskApproval"
    assert not opens(walk)
    questions = walk.last[-1].questions
    denied = Walk(replace(later("a", "b"), tool_policy=ask), calls("a.think", "b.think"))
    denied.send(CallsDecided(decisions=(questions[0].deny("no"),)))
    assert not opens(denied)
    assert len(requests(denied)) == 2
    walk.send(CallsDecided(decisions=(questions[0].approve(),)))
    assert opens(walk) == ["a"]


@pytest.mark.parametrize("settled", [timed_out(1), died(1, server="e")])
def test_after_a_failure_a_server_that_is_starting_is_waited_for_and_not_called(settled: Any) -> None:
    walk = Walk(later("a", eager=("e",)), opened("e"), calls("e.think", "a.think"), settled)
    assert opens(walk) == ["e", "a"]
    assert len(requests(walk)) == 1
    walk.send(opened("a"))
    assert called(walk) == [["c1"]]
    assert len(requests(walk)) == 2


def test_a_deadline_closes_what_is_starting() -> None:
    walk = Walk(later("a", "b"), calls("a.think"), DEADLINE)
    assert [command.server for command in walk.of(CloseSession)] == ["a"]
    end = walk.state.end  # type: ignore[union-attr]
    assert isinstance(end.failure, DeadlineMissed)
    assert end.failure.doing == "starting a"


def test_the_model_is_checked_first() -> None:
    before = Walk(later("a", support_check="before"), support(True))
    assert names(before.steps[0]) == ("CheckToolSupport",)
    assert len(requests(before)) == 1
    beside = Walk(later("a", support_check="beside"))
    assert names(beside.steps[0]) == ("CheckToolSupport",)
    assert not requests(beside)
    beside.send(support(True))
    assert len(requests(beside)) == 1
    assert not opens(beside)


def test_servers_that_start_at_once_are_presumed_beside_those_that_do_not() -> None:
    presumed = ToolsPresumed(listings=(listing("e"),))
    walk = Walk(later("a", eager=("e",)), presumed)
    assert opens(walk) == ["e"]
    assert requests(walk)[0].presumed
    walk.send(calls("a.think"), opened("e"))
    assert opens(walk) == ["e", "a"]
    assert walk.of(ToolsVerified) == [ToolsVerified(request=1)]
    with_check = Walk(later("a", eager=("e",), support_check="before"), presumed, support(True))
    assert requests(with_check)[0].presumed


def test_patterns_of_the_request_hold_for_them() -> None:
    walk = Walk(replace(later("a", "b"), tools=("a.look",)))
    offered = requests(walk)[0].mode
    assert isinstance(offered, OfferTools)
    assert offered.tools == (tool("a.look"),)


def test_a_turn_that_may_call_nothing_offers_nothing() -> None:
    walk = Walk(later("a", limits=TurnLimits(max_tool_iterations=0)))
    assert isinstance(requests(walk)[0].mode, RequireAnswer)
    assert not opens(walk)


def test_a_resumed_turn_starts_what_is_left_to_call() -> None:
    parked = TurnParked(turn=7, calls=calls("a.think").tool_calls, iterations=1)
    walk = Walk(replace(later("a", "b"), resumed=Resumption(parked=parked)))
    assert opens(walk) == ["a"]
    assert called(walk) == []
    walk.send(opened("a"))
    assert called(walk) == [["c1"]]


def test_a_task_of_a_server_that_does_not_start_may_have_taken_effect() -> None:
    sent = ServerCall(call_id="c1", tool="think", arguments={}, task=ToolTask(task_id="t"))
    parked = TurnParked(turn=7, calls=calls("a.think", "a.look").tool_calls, iterations=1)
    resumed = Resumption(parked=parked, tasks=(OpenTask(server="a", call=sent),))
    walk = Walk(replace(later("a"), resumed=resumed), disabled("a"))
    assert "interrupted" in told(walk)[0]
    assert "did not start" in told(walk)[1]


def test_a_turn_killed_while_a_server_was_starting_goes_on_with_the_calls() -> None:
    state = Walk(later("a"), calls("a.think")).state
    assert isinstance(state, AwaitingTools)
    resumption = cut_off(state, called=())
    assert resumption is not None
    assert [each.call_id for each in resumption.parked.calls] == ["c1"]
    assert resumption.parked.settled == ()
