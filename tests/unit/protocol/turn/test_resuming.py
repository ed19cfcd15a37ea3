"""Calls that an earlier process has sent, and that their servers work on as tasks, are not sent again."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import ACCEPTED, Walk, calls, died, opened, returned, run, text, timed_out, tool

from grue.messages import (
    ApprovalPostponed,
    AskApproval,
    CallId,
    CallsDecided,
    CallTools,
    CompletionPostponed,
    DeadlinePassed,
    HistoryReference,
    OpenTask,
    RequestCompletion,
    Resumption,
    RunTurn,
    ServerCall,
    ServerName,
    ToolMessage,
    ToolTask,
    TurnForked,
    TurnParked,
)
from grue.policies import FailurePolicy, ToolPolicy, ToolRule, TurnLimits
from grue.protocol.tool_loop import step
from grue.protocol.turn.resuming import can_fork_at, cut_off, tasks_of
from grue.protocol.turn.states import AwaitingClose, Idle, TurnState, Waiting

ASK = ToolRule(tools=("a.look",), verdict="ask", reason="it is dear", max_calls=2)
TASK = ToolTask(task_id="t1", poll_s=2.0)
SERVERS = ("a", "b")
HISTORY = HistoryReference(conversation="talk", length=4, digest="d")


def under(*rules: ToolRule, resumed: Resumption | None = None) -> RunTurn:
    return replace(run(*SERVERS), tool_policy=ToolPolicy(rules=rules, parking=True), resumed=resumed)


def began(*names: str, rules: tuple[ToolRule, ...] = ()) -> Walk:
    return Walk(under(*rules), *(opened(server) for server in SERVERS), calls(*names))


def task_of(
    call_id: str, server: str = "a", tool: str = "look", **arguments: object
) -> dict[CallId, OpenTask]:
    call = ServerCall(call_id=CallId(call_id), tool=tool, arguments=arguments, task=TASK)
    return {CallId(call_id): OpenTask(server=ServerName(server), call=call)}


def killed(walk: Walk, *called: str, tasks: dict[CallId, OpenTask]) -> Resumption:
    where = cut_off(walk.state, {CallId(name) for name in called}, tasks)
    assert where is not None
    return where


def resumed(where: Resumption, *rules: ToolRule, tools: tuple[str, ...] = ()) -> Walk:
    return Walk(under(*rules, resumed=where), *(opened(server, *tools) for server in SERVERS))


def sent(walk: Walk) -> list[tuple[str, ToolTask | None]]:
    return [(call.call_id, call.task) for batch in walk.of(CallTools) for call in batch.calls]


def told(walk: Walk) -> dict[str, str]:
    request = walk.of(RequestCompletion)[-1]
    return {item.call_id: item.content for item in request.new if isinstance(item, ToolMessage)}


def test_a_turn_that_waits_for_a_batch_goes_on_where_it_asked() -> None:
    walk = Walk(under(), *(opened(server) for server in SERVERS), CompletionPostponed(request=1, item="i"))
    assert isinstance(walk.state, Waiting)
    assert killed(walk, tasks={}) == cut_off(walk.state.then, ())


def test_the_call_of_a_task_goes_on_and_the_others_are_made() -> None:
    where = killed(began("a.look", "a.think", "b.look"), "c1", tasks=task_of("c1"))
    assert [each.call.call_id for each in where.tasks] == ["c1"]
    assert where.parked.settled == ()
    walk = resumed(where)
    walk.send(returned(1, batch=2), returned(2, batch=2), returned(3, batch=3))
    assert sent(walk) == [("c1", TASK), ("c2", None), ("c3", None)]
    assert set(told(walk)) == {"c1", "c2", "c3"}


def test_a_call_without_a_task_may_have_run() -> None:
    walk = began("a.look", "b.look")
    where = killed(walk, "c1", "c2", tasks=task_of("c1"))
    assert [(each.call_id, each.settlement) for each in where.parked.settled] == [("c2", "interrupted")]


def test_a_task_that_has_ended_is_not_asked_for() -> None:
    walk = began("a.look", "a.think")
    walk.send(returned(1))
    where = killed(walk, "c1", "c2", tasks=task_of("c1"))
    assert where.tasks == ()
    assert [each.call_id for each in where.parked.settled] == ["c1", "c2"]


def approved(*names: str, change: dict[str, object] | None = None) -> Walk:
    walk = began(*names, rules=(ASK,))
    for asked in walk.of(AskApproval):
        decisions = tuple(each.change(change) if change else each.approve() for each in asked.questions)
        walk.send(CallsDecided(decisions=decisions))
    return walk


def test_an_approved_call_is_neither_asked_about_nor_counted_again() -> None:
    where = killed(approved("a.look"), "c1", tasks=task_of("c1"))
    assert where.parked.used == {"a.look": 1}
    walk = resumed(where, ASK)
    assert walk.of(AskApproval) == []
    assert sent(walk) == [("c1", TASK)]
    walk.send(returned(1, batch=2), calls("a.look"))
    assert len(walk.of(AskApproval)) == 1


def test_the_arguments_that_a_person_changed_are_told_as_changed() -> None:
    where = killed(approved("a.look", change={"n": 2}), "c1", tasks=task_of("c1", n=2))
    (task,) = where.tasks
    assert task.changed_arguments == {"n": 2}
    for rules in ((ASK,), ()):
        walk = resumed(where, *rules)
        (batch,) = walk.of(CallTools)
        assert batch.calls[0].arguments == {"n": 2}
        walk.send(returned(1, batch=2))
        assert "changed the arguments of this call" in told(walk)["c1"]


def test_a_tool_that_is_no_longer_listed_still_has_its_task() -> None:
    where = killed(began("a.look"), "c1", tasks=task_of("c1"))
    walk = resumed(where, tools=("other",))
    assert sent(walk) == [("c1", TASK)]


def test_a_turn_that_is_killed_again_or_parks_keeps_its_tasks() -> None:
    where = killed(approved("a.think", "a.look"), "c1", tasks=task_of("c1", tool="think"))
    walk = resumed(where, ASK)
    assert [each.call_id for each in walk.of(AskApproval)[0].questions] == ["c2"]
    again = killed(walk, tasks={})
    assert again.tasks == where.tasks
    walk.send(ApprovalPostponed())
    assert killed(walk, tasks={}).tasks == where.tasks
    (parked,) = [each for each in (again.parked,) if isinstance(each, TurnParked)]
    assert tasks_of(under(ASK, resumed=where), parked) == where.tasks
    assert tasks_of(under(ASK), parked) == ()
    assert tasks_of(under(ASK, resumed=where), replace(parked, batches=9)) == ()


@pytest.mark.parametrize("end", [DeadlinePassed(limit_s=1.0), ApprovalPostponed()], ids=["cut", "parked"])
def test_a_conversation_is_told_that_a_task_may_have_taken_effect(end: Any) -> None:
    where = killed(approved("a.think", "a.look"), "c1", tasks=task_of("c1", tool="think"))
    asked = replace(under(ASK, resumed=where), history=HISTORY)
    walk = Walk(asked, *(opened(server) for server in SERVERS), end)
    assert untold(walk) == {"c1": True, "c2": False}


def test_a_conversation_is_told_so_of_a_task_whose_turn_to_be_sent_has_not_come() -> None:
    where = killed(began("a.look", "b.look"), "c2", tasks=task_of("c2", "b"))
    asked = replace(under(resumed=where), history=HISTORY, binds_calls=True)
    walk = Walk(asked, *(opened(server) for server in SERVERS))
    assert sent(walk) == [("c1", None)], "the task waits for it"
    walk.send(DeadlinePassed(limit_s=1.0))
    assert untold(walk) == {"c1": True, "c2": True}


def untold(walk: Walk) -> dict[str, bool]:
    """Return for each call whether the conversation is told that it may have taken effect."""
    assert isinstance(walk.state, AwaitingClose)
    return {each.call_id: "may have taken effect" in each.content for each in walk.state.end.untold}


def test_a_killed_turn_goes_on_with_the_tasks_of_its_second_part() -> None:
    where = killed(began("a.look"), "c1", tasks=task_of("c1"))
    walk = resumed(where)
    assert killed(walk, "c1", tasks=task_of("c1")).tasks == where.tasks


def interrupted(walk: Walk) -> Any:
    return {name for name, text in told(walk).items() if "interrupted; it may have taken effect" in text}


def test_a_task_that_cannot_be_asked_for_is_answered_as_interrupted() -> None:
    tasks = {**task_of("c2", "b"), **task_of("c3", "b")}
    for ending in (timed_out(1, batch=2), died(1, batch=2)):
        where = killed(began("a.look", "b.look", "b.look", "b.think"), "c2", "c3", tasks=tasks)
        walk = resumed(where)
        walk.send(ending)
        assert interrupted(walk) == {"c2", "c3"}
        assert "Skipped" in told(walk)["c4"]


def test_a_fork_takes_other_limits_policies_and_tools_and_keeps_the_rest() -> None:
    state: Any = Walk(run("a", "b"), opened("a"), opened("b")).state
    limits, policy = TurnLimits(max_tool_iterations=2), FailurePolicy(after_timeout="force")
    other = (tool("a.other"),)
    event = TurnForked(
        trace="t", episode="e", turn=7, at=3, limits=limits, policy=policy, listings={"a": other, "x": other}
    )
    forked: Any
    forked, commands = step(state, event)
    assert commands == ()
    assert (forked.turn.run.limits, forked.turn.run.policy) == (limits, policy)
    names = [each.name for each in forked.turn.tools]
    assert names[0] == "a.other"
    assert all(name.startswith("b.") for name in names[1:])
    same, _ = step(state, TurnForked(trace="t", episode="e", turn=7, at=3))
    assert same == state


def test_a_turn_can_be_forked_where_nothing_else_is_under_way() -> None:
    events = (
        run("a", "b"),
        opened("a"),
        opened("b"),
        calls("a.think", "b.think"),
        returned(1),
        returned(2, batch=2),
    )
    places: list[bool] = []
    state: TurnState = Idle()
    for event in (*events, text("north"), ACCEPTED):
        before = state
        state, commands = step(before, event)
        places.append(can_fork_at(before, state, commands))
    # Before the first request; at the reply with calls, but not between them; before the second request; at
    # the answer. When the answer is accepted, there is nothing left to decide.
    assert places == [False, False, True, True, False, True, True, False]
