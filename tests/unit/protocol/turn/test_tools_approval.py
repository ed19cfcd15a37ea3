"""A reply that has to be approved: one question, the decisions, the park, and how a later process goes on."""

from typing import Any

import pytest
from msgspec.structs import replace
from turns import (
    DEADLINE,
    INTERRUPT,
    REFUSED,
    Walk,
    calls,
    changed,
    closed,
    died,
    disabled,
    opened,
    returned,
    run,
    text,
    timed_out,
    tool,
)

from grue.messages import (
    ApprovalPostponed,
    AskApproval,
    CallId,
    CallsDecided,
    CallTools,
    ConversationId,
    DecisionIgnored,
    FinalForced,
    HistoryReference,
    OpenSession,
    RequestCompletion,
    RequireAnswer,
    Resumption,
    RunTurn,
    SessionOpened,
    ToolDenied,
    ToolMessage,
    ToolRejected,
    ToolSkipped,
    TurnFailed,
    TurnParked,
    UserText,
)
from grue.policies import ApprovalQuestion, ContextPolicy, ToolAnnotations, ToolPolicy, ToolRule
from grue.protocol.tools.policy import (
    ANOTHER_CALL,
    ANSWERED,
    CONTRADICTED,
    DENIED_BY_PERSON,
    definition_digest,
)
from grue.protocol.tools.results import NOT_AS_DECIDED
from grue.protocol.turn.resuming import cut_off
from grue.protocol.turn.states import AwaitingApproval, AwaitingTools, TurnState
from grue.protocol.turn.tools import TOO_LATE

ASK: dict[str, Any] = {"tools": ("a.look", "b.think"), "verdict": "ask", "reason": "it is dear"}


def under(*rows: dict[str, Any], trusted: tuple[str, ...] = (), **begun: Any) -> RunTurn:
    policy = ToolPolicy(rules=tuple(ToolRule(**row) for row in rows), trusted=trusted)
    return replace(run("a", "b"), tool_policy=policy, **begun)


def asked(*names: str, rows: tuple[dict[str, Any], ...] = (ASK,)) -> Walk:
    return Walk(under(*rows), opened("a"), opened("b"), calls(*names))


def questions(walk: Walk) -> tuple[ApprovalQuestion, ...]:
    (question,) = walk.of(AskApproval)[-1:]
    return tuple(question.questions)


def decided(*decisions: Any) -> CallsDecided:
    return CallsDecided(decisions=decisions)


def told(walk: Walk) -> dict[str, str]:
    """The tool messages of the last request, by call."""
    request = walk.of(RequestCompletion)[-1]
    return {item.call_id: item.content for item in request.new if isinstance(item, ToolMessage)}


def sent(walk: Walk) -> list[tuple[str, dict[str, object]]]:
    return [(call.call_id, call.arguments) for batch in walk.of(CallTools) for call in batch.calls]


def test_all_calls_to_approve_are_one_question_and_nothing_runs_before_it_is_answered() -> None:
    walk = asked("a.think", "a.look", "b.think")
    assert [question.name for question in questions(walk)] == ["a.look", "b.think"]
    assert {question.reason for question in questions(walk)} == {"it is dear"}
    assert sent(walk) == []
    look, think = questions(walk)
    walk.send(decided(look.approve()))
    assert sent(walk) == []
    walk.send(decided(think.approve()))
    assert [call_id for call_id, _ in sent(walk)] == ["c1", "c2"]


@pytest.mark.parametrize("shown", [True, False])
def test_questions_carry_the_input_schemas_unless_the_trace_is_an_old_one(shown: bool) -> None:
    walk = Walk(under(ASK, show_schemas=shown), opened("a"), opened("b"), calls("a.look"))
    schema = tool("a.look").input_schema if shown else None
    assert [question.input_schema for question in questions(walk)] == [schema]


def test_a_denial_is_answered_with_its_reason_and_skips_nothing_else() -> None:
    walk = asked("a.look", "a.think", "b.think")
    look, think = questions(walk)
    walk.send(decided(look.deny("too dear"), think.deny()), returned(2))
    assert [call_id for call_id, _ in sent(walk)] == ["c2"]
    assert told(walk) == {
        "c1": '{"error":"Tool call denied: too dear","content":null}',
        "c2": '{"content":"ok"}',
        "c3": f'{{"error":"Tool call denied: {DENIED_BY_PERSON}","content":null}}',
    }
    assert [note.batch for note in walk.of(ToolDenied)] == [1, 1]


def test_changed_arguments_are_sent_and_told() -> None:
    walk = asked("a.look")
    (look,) = questions(walk)
    walk.send(decided(look.change({"at": "the door"})), returned(1))
    assert sent(walk) == [("c1", {"at": "the door"})]
    note = 'The user changed the arguments of this call to {\\"at\\":\\"the door\\"}'
    assert told(walk) == {"c1": f'{{"note":"{note}","content":"ok"}}'}
    (record,) = walk.state.turn.records  # type: ignore[union-attr]  # it awaits the model again
    assert (record.arguments, record.changed_arguments) == ("{}", {"at": "the door"})


def test_changed_arguments_are_read_as_strictly_as_the_models() -> None:
    walk = asked("a.look")
    (look,) = questions(walk)
    deep: Any = {}
    for _ in range(200):
        deep = {"deeper": deep}
    walk.send(decided(look.change(deep)))
    assert sent(walk) == []
    assert "the user changed the arguments, but not to usable ones" in told(walk)["c1"]
    assert "nested more than" in told(walk)["c1"]


@pytest.mark.parametrize(
    "other",
    [{"name": "a.think"}, {"arguments_digest": "x"}, {"definition_digest": "x"}, {"call_id": "c9"}],
)
def test_a_decision_counts_only_for_its_call_arguments_and_definition(other: dict[str, str]) -> None:
    walk = asked("a.look")
    (look,) = questions(walk)
    walk.send(decided(replace(look.approve(), **other)))
    assert walk.last == (DecisionIgnored(call_id=CallId(other.get("call_id", "c1")), reason=ANOTHER_CALL),)
    assert isinstance(walk.state, AwaitingApproval)
    assert sent(walk) == []


@pytest.mark.parametrize(
    ("first", "second", "ignored"),
    [("deny", "approve", ANSWERED), ("approve", "deny", CONTRADICTED), ("approve", "change", CONTRADICTED)],
)
def test_a_call_is_denied_if_the_decisions_about_it_contradict_each_other(
    first: str, second: str, ignored: str
) -> None:
    walk = asked("a.look", "b.think")
    look, think = questions(walk)
    made = {"approve": look.approve(), "deny": look.deny("no"), "change": look.change({"at": "the door"})}
    walk.send(decided(made[first]), decided(made[second], think.approve()))
    noted, denied, batch = walk.last
    assert noted == DecisionIgnored(call_id=CallId("c1"), reason=ignored)
    assert isinstance(denied, ToolDenied)
    assert denied.reason == ("no" if "deny" in (first, second) else CONTRADICTED)
    assert [call.call_id for call in batch.calls] == ["c2"]


def test_the_same_decision_twice_is_one() -> None:
    walk = asked("a.look", "b.think")
    look, think = questions(walk)
    walk.send(decided(look.approve(), look.approve(), think.approve()))
    assert walk.last[0] == DecisionIgnored(call_id=CallId("c1"), reason=ANSWERED)
    assert [call_id for call_id, _ in sent(walk.send(returned(1)))] == ["c1", "c2"]


def test_a_late_decision_is_noted_and_changes_nothing() -> None:
    walk = asked("a.look")
    (look,) = questions(walk)
    walk.send(decided(look.approve()))
    before = walk.state
    walk.send(decided(look.deny()))
    assert walk.last == (DecisionIgnored(call_id=CallId("c1"), reason=TOO_LATE),)
    assert walk.state == before
    over = asked("a.look").send(INTERRUPT, closed("a"), closed("b"), decided(look.approve()))
    assert over.last == (DecisionIgnored(call_id=CallId("c1"), reason=TOO_LATE),)


def test_a_timeouts_skip_voids_an_approval() -> None:
    walk = asked("a.think", "b.think")
    (think,) = questions(walk)
    walk.send(decided(think.approve()), timed_out(1), calls("b.think", first=3))
    assert [call_id for call_id, _ in sent(walk)] == ["c1"]
    assert [question.call_id for question in questions(walk)] == ["c3"]


def test_the_deadline_ends_the_wait_and_every_call_is_answered_in_the_records() -> None:
    walk = asked("nobody", "a.look").send(DEADLINE, closed("a"), closed("b"))
    assert isinstance(walk.end, TurnFailed)
    assert walk.end.failure.doing == "waiting for an approval of a.look"  # type: ignore[union-attr]
    assert [record.settlement for record in walk.end.tool_calls] == ["rejected"]


def test_a_conversation_has_an_answer_to_every_call_of_a_question_that_the_deadline_ended() -> None:
    past = HistoryReference(conversation=ConversationId("talk"), length=0, digest="")
    begun = replace(under(ASK), history=past)
    walk = Walk(begun, opened("a"), opened("b"), calls("nobody", "a.look"), DEADLINE)
    walk.send(closed("a"), closed("b"))
    assert [answer.call_id for answer in walk.end.untold] == ["c1", "c2"]
    assert "not called" in walk.end.untold[1].content


# --- Parallel calls ---

READING = ToolAnnotations(read_only=True)
PARALLEL: dict[str, Any] = {"read_only": True, "parallel": True}


def listing(server: str) -> SessionOpened:
    tools = (replace(tool(f"{server}.read"), annotations=READING), tool(f"{server}.write"))
    return SessionOpened(server=tools[0].server, tools=tools)


def reading(*names: str, **policy: Any) -> Walk:
    begun = replace(under(PARALLEL, trusted=("a", "b")), policy=run("a", **policy).policy)
    return Walk(begun, listing("a"), listing("b"), calls(*names))


def batches(walk: Walk) -> list[list[str]]:
    return [[call.call_id for call in batch.calls] for batch in walk.of(CallTools)]


def test_read_only_calls_run_at_the_same_time_at_several_servers_and_one_at_a_time_at_each() -> None:
    walk = reading("a.read", "b.read", "a.read", "a.write", "b.read")
    assert batches(walk) == [["c1"], ["c2"]]
    walk.send(returned(1))
    assert batches(walk)[2:] == [["c3"]]
    walk.send(returned(2, batch=2))
    assert batches(walk)[3:] == []  # a call that changes something waits for all before it
    walk.send(returned(3, batch=3))
    assert batches(walk)[3:] == [["c4"]]
    walk.send(returned(4, batch=4))
    assert batches(walk)[4:] == [["c5"]]
    walk.send(returned(5, batch=5))
    assert list(told(walk)) == ["c1", "c2", "c3", "c4", "c5"]


def test_a_parallel_call_does_not_join_the_batch_before_it() -> None:
    walk = reading("a.write", "a.read", "b.read").send(returned(1))
    assert batches(walk) == [["c1"], ["c2"], ["c3"]]


def test_after_a_timeout_calls_under_way_elsewhere_finish_and_no_other_is_sent() -> None:
    walk = reading("a.read", "b.read", "b.read", "a.read").send(timed_out(1))
    assert batches(walk) == [["c1"], ["c2"]]
    assert isinstance(walk.state, AwaitingTools)
    walk.send(returned(2, batch=2))
    assert told(walk)["c2"] == '{"content":"ok"}'
    assert [call_id for call_id, content in told(walk).items() if "timed out" in content] == [
        "c1",
        "c3",
        "c4",
    ]


def test_after_a_death_the_other_server_finishes() -> None:
    walk = reading("a.read", "b.read", "b.read").send(died(1), returned(2, batch=2))
    assert told(walk)["c2"] == '{"content":"ok"}'
    assert "no longer running" in told(walk)["c3"]


@pytest.mark.parametrize("first", ["death", "timeout"])
def test_a_timeout_elsewhere_does_not_hide_a_death(first: str) -> None:
    walk = reading("a.read", "b.read")
    ends = [died(1), timed_out(2, batch=2)]
    walk.send(*(ends if first == "death" else reversed(ends)))
    assert [note.reason for note in walk.of(FinalForced)] == ["server_died"]


def test_many_parallel_calls_look_only_so_far_ahead() -> None:
    walk = reading(*["a.read"] * 40, "b.read")
    assert batches(walk) == [["c1"]]
    for number in range(1, 10):
        walk.send(returned(number, batch=number))
    assert ["c41"] in batches(walk)


# --- A subset of the tools ---


def test_a_subset_is_offered_and_nothing_else_can_be_called() -> None:
    walk = Walk(under(tools=("a.th*",)), opened("a"), opened("b"), calls("a.look", "b.think", "a.think"))
    (request,) = walk.of(RequestCompletion)
    assert [item.name for item in request.mode.tools] == ["a.think"]
    assert [note.name for note in walk.of(ToolRejected)] == ["a.look", "b.think"]
    assert [call_id for call_id, _ in sent(walk)] == ["c3"]
    walk.send(changed("a", "think", "look"), returned(3))
    assert [item.name for item in walk.of(RequestCompletion)[-1].mode.tools] == ["a.think"]


# --- Parking, and what a later process goes on with ---


def parked(*names: str) -> TurnParked:
    walk = asked(*names).send(ApprovalPostponed(expires_at=7.0), closed("a"), closed("b"))
    assert isinstance(walk.end, TurnParked)
    return walk.end


def resumed(where: Resumption, *events: Any) -> Walk:
    return Walk(under(ASK, resumed=where), *(events or (opened("a"), opened("b"))))


def test_a_park_holds_what_is_needed_to_go_on() -> None:
    end = parked("nobody", "a.think", "a.look")
    assert [question.call_id for question in end.questions] == ["c3"]
    assert [call.call_id for call in end.calls] == ["c1", "c2", "c3"]
    assert (end.turn, end.expires_at, end.iterations, end.requests) == (7, 7.0, 1, 1)
    assert (end.settled, end.tool_calls) == ((), ())


def test_a_resumed_turn_opens_its_sessions_and_goes_on_with_the_reply() -> None:
    end = parked("nobody", "a.think", "a.look")
    (look,) = end.questions
    walk = resumed(Resumption(parked=end, decisions=(look.approve(),)))
    assert [command.server for command in walk.of(OpenSession)] == ["a", "b"]
    assert [call_id for call_id, _ in sent(walk)] == ["c2", "c3"]
    walk.send(returned(2), returned(3))
    (request,) = walk.of(RequestCompletion)
    assert request.request == 2
    assert list(told(walk)) == ["c1", "c2", "c3"]


def in_conversation(**begun: Any) -> RunTurn:
    past = HistoryReference(conversation=ConversationId("talk"), length=0, digest="")
    return replace(under(ASK, **begun), history=past)


def test_a_park_says_what_its_conversation_answers_if_it_is_given_up() -> None:
    walk = Walk(in_conversation(), opened("a"), opened("b"), calls("a.look", "a.think", "b.think"))
    walk.send(decided(*(question.approve() for question in questions(walk))), returned(1))
    where = where_of(walk.state, "c1", "c2")
    untold = {item.call_id: item.content for item in where.parked.untold}
    assert untold["c1"] == '{"content":"ok"}'
    assert "interrupted; it may have taken effect" in untold["c2"]
    assert "not called: the turn ended before" in untold["c3"]
    again = Walk(in_conversation(resumed=where), opened("a"), INTERRUPT, closed("a"), closed("b"))
    assert isinstance(again.end, TurnFailed)
    assert again.end.untold == where.parked.untold, "what may have run is not called uncalled"


def test_a_park_carries_what_was_used_of_the_context_policy() -> None:
    policy = ContextPolicy(window_tokens=4000)
    walk = asked("a.look")
    turn = replace(walk.state.turn, summaries=1, overflowed=True, window=900)
    where = where_of(replace(walk.state, turn=turn))
    again = Walk(under(ASK, resumed=where, context=policy), opened("a"), opened("b"))
    assert (again.state.turn.summaries, again.state.turn.overflowed, again.state.turn.window) == (
        1,
        True,
        900,
    )
    fresh = Resumption(parked=replace(where.parked, window=None))
    assert Walk(under(ASK, resumed=fresh, context=policy), opened("a"), opened("b")).state.turn.window == 4000


def test_a_tool_that_changed_is_asked_about_again() -> None:
    (look,) = parked("a.look").questions
    other = replace(tool("a.look"), description="Look, and tell everybody.")
    listed = SessionOpened(server=other.server, tools=(other,))
    where = Resumption(parked=parked("a.look"), decisions=(look.approve(),))
    walk = resumed(where, listed, opened("b"))
    ignored, question = walk.last
    assert ignored == DecisionIgnored(call_id=CallId("c1"), reason=ANOTHER_CALL)
    assert question.questions[0].definition_digest != look.definition_digest
    assert sent(walk) == []


def test_a_decision_counts_in_a_resumed_turn_whose_policy_allows_the_call_by_now() -> None:
    end = parked("a.look", "b.think", "a.think")
    look, think = end.questions
    where = Resumption(parked=end, decisions=(look.deny("no"), think.change({"about": "doors"})))
    walk = Walk(under(resumed=where), opened("a"), opened("b"), returned(2), returned(3, batch=2))
    assert sent(walk) == [("c2", {"about": "doors"}), ("c3", {})]
    assert told(walk)["c1"] == '{"error":"Tool call denied: no","content":null}'
    assert walk.of(DecisionIgnored) == []


def test_a_call_that_nobody_is_asked_about_is_not_made_in_a_resumed_turn_if_its_tool_has_changed() -> None:
    end = parked("a.look", "a.think", "b.think")
    (look, think) = end.questions
    other = replace(tool("a.think"), description="Think, and tell everybody.")
    listed = SessionOpened(server=other.server, tools=(tool("a.look"), other))
    where = Resumption(parked=end, decisions=(look.approve(), think.approve()))
    walk = resumed(where, listed, opened("b"))
    assert [note.call_id for note in walk.of(ToolRejected)] == ["c2"]
    walk.send(returned(1), returned(3, batch=2))
    assert [call_id for call_id, _ in sent(walk)] == ["c1", "c3"]
    assert told(walk)["c2"] == f'{{"error":"Tool call failed: {NOT_AS_DECIDED}","content":null}}'


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("bound", [True, False])
def test_a_call_of_a_tool_that_has_changed_is_not_made_after_another_parking_unless_the_trace_is_old(
    bound: bool, killed: bool
) -> None:
    other = replace(tool("a.think"), description="Think, and tell everybody.")
    listed = SessionOpened(server=other.server, tools=(tool("a.look"), other))
    begun = under(ASK, binds_parked=bound, resumed=Resumption(parked=parked("a.look", "a.think")))
    walk = Walk(begun, listed, opened("b"))
    where = where_of(walk.state)
    if not killed:
        where = Resumption(parked=walk.send(ApprovalPostponed(), closed("a"), closed("b")).end)
    (look,) = where.parked.questions
    where = replace(where, decisions=(look.approve(),))
    again = Walk(replace(begun, resumed=where), listed, opened("b"))
    assert [call_id for call_id, _ in sent(again)] == (["c1"] if bound else ["c1", "c2"])
    assert [note.call_id for note in again.of(ToolRejected)] == (["c2"] if bound else [])


def test_a_tool_that_was_asked_about_again_counts_as_it_was_then_if_the_policy_allows_it_by_now() -> None:
    listed = changed_opening("a.look")
    begun = under(ASK, binds_parked=True, resumed=Resumption(parked=parked("a.look")))
    end = Walk(begun, listed, opened("b"), ApprovalPostponed(), closed("a"), closed("b")).end
    (look,) = end.questions
    where = Resumption(parked=end, decisions=(look.approve(),))
    again = Walk(under(binds_parked=True, resumed=where), listed, opened("b"))
    assert [call_id for call_id, _ in sent(again)] == ["c1"]


@pytest.mark.parametrize("bound", [True, False])
def test_a_resumed_turn_is_degraded_only_by_servers_that_fail_again_unless_the_trace_is_old(
    bound: bool,
) -> None:
    walk = Walk(under(ASK), opened("a"), disabled("b", "gone"), calls("a.look"))
    end = walk.send(ApprovalPostponed(), closed("a")).end
    begun = under(ASK, binds_parked=bound, resumed=Resumption(parked=end))
    before = "no tools from 'b': gone"
    assert Walk(begun, opened("a"), opened("b")).state.turn.degraded == ("" if bound else before)
    failed = "no tools from 'b': it ended"
    twice = Walk(begun, opened("a"), disabled("b")).state.turn.degraded
    assert twice == (failed if bound else f"{before}; {failed}")


def test_a_killed_turn_remembers_the_definitions_that_its_calls_were_made_for() -> None:
    walk = Walk(under(), opened("a"), opened("b"), calls("a.look", "a.think"))
    walk.send(changed("a", "think"))
    parked = where_of(walk.state).parked
    assert parked.definitions == {name: definition_digest(tool(name)) for name in ("a.look", "a.think")}
    again = resumed(where_of(walk.state), changed_opening("a.think"), opened("b"))
    assert sent(again) == []


def changed_opening(name: str) -> SessionOpened:
    other = replace(tool(name), description="Another one.")
    return SessionOpened(server=other.server, tools=(other,))


def test_calls_are_bound_to_the_definitions_that_the_model_was_offered_unless_the_trace_is_old() -> None:
    for bound in (True, False):
        walk = Walk(under(binds_calls=bound), opened("a"), opened("b"), calls("a.look"))
        (batch,) = walk.of(CallTools)
        assert batch.calls[0].definition == (definition_digest(tool("a.look")) if bound else "")


def test_a_limit_counts_a_resumed_reply_once() -> None:
    row = {**ASK, "max_calls": 1}
    end = asked("a.look", rows=(row,)).send(ApprovalPostponed(), closed("a"), closed("b")).end
    (look,) = end.questions
    where = Resumption(parked=end, decisions=(look.approve(),))
    walk = Walk(under(row, resumed=where), opened("a"), opened("b"))
    assert [call_id for call_id, _ in sent(walk)] == ["c1"]


def where_of(state: TurnState, *called: str) -> Resumption:
    where = cut_off(state, {CallId(call_id) for call_id in called})
    assert where is not None
    return where


def test_a_call_that_was_sent_may_have_run_and_is_never_sent_again() -> None:
    walk = asked("a.look", "a.think", "a.think", "b.think")
    walk.send(decided(*(question.approve() for question in questions(walk))), returned(1))
    where = where_of(walk.state, "c1", "c2")
    assert [(each.call_id, each.settlement) for each in where.parked.settled] == [
        ("c1", "returned"),
        ("c2", "interrupted"),
    ]
    again = resumed(where)
    assert [question.call_id for question in questions(again)] == ["c4"]
    again.send(decided(questions(again)[0].approve()))
    again.send(returned(3, batch=2), returned(4, batch=3))
    assert [call_id for call_id, _ in sent(again)] == ["c3", "c4"]
    assert "interrupted; it may have taken effect" in told(again)["c2"]
    assert told(again)["c1"] == '{"content":"ok"}'


def test_a_limit_counts_calls_that_were_sent_before_the_kill() -> None:
    row = {"tools": ("a.look",), "max_calls": 3}
    walk = Walk(under(row), opened("a"), opened("b"), calls("a.look", "a.look", "a.look"))
    assert where_of(walk.state, "c1").parked.used == {"a.look": 1}


def test_a_turn_killed_before_a_decision_is_asked_again() -> None:
    walk = asked("a.look")
    where = where_of(walk.state)
    assert [question.call_id for question in where.parked.questions] == ["c1"]
    assert questions(resumed(where)) == questions(walk)


def test_a_turn_killed_while_it_parks_is_parked() -> None:
    walk = asked("a.look").send(ApprovalPostponed(expires_at=7.0))
    assert where_of(walk.state).parked.expires_at == 7.0


def test_a_turn_killed_while_it_waits_for_the_model_asks_it_again() -> None:
    walk = asked("a.think").send(returned(1))
    where = where_of(walk.state)
    assert (where.parked.requests, where.parked.calls) == (2, ())
    again = resumed(replace(where, new=(UserText("again"),)))
    (request,) = again.of(RequestCompletion)
    assert (request.request, request.new) == (3, (UserText("again"),))
    verdict = Walk(under(ASK), opened("a"), opened("b"), text("north"))
    assert where_of(verdict.state).parked.requests == 1


def test_a_forced_turn_stays_forced() -> None:
    walk = Walk(under(ASK), opened("a"), opened("b"), text(None))
    again = resumed(replace(where_of(walk.state), new=(UserText("again"),)))
    (request,) = again.of(RequestCompletion)
    assert isinstance(request.mode, RequireAnswer)


def test_a_turn_killed_before_its_first_request_begins_again() -> None:
    begun = under(ASK)
    opening = Walk(begun, opened("a"))
    where = where_of(opening.state)
    assert resumed(where).of(RequestCompletion)[0].new == where.new != ()
    support = Walk(replace(begun, support_check="before"))
    assert where_of(support.state).new == where.new


def test_a_resumed_turn_killed_before_its_servers_were_up_is_still_parked() -> None:
    end = parked("a.look")
    (look,) = end.questions
    walk = resumed(Resumption(parked=end, decisions=(look.approve(),)), opened("a"))
    assert where_of(walk.state) == Resumption(parked=end)


def test_a_turn_killed_at_a_reconnect_goes_on_with_the_results() -> None:
    begun = replace(under(ASK), policy=run("a", after_death="reconnect").policy)
    walk = Walk(begun, opened("a"), opened("b"), calls("a.think"), died(1))
    where = where_of(walk.state)
    assert [item.call_id for item in where.new if isinstance(item, ToolMessage)] == ["c1"]
    walk.send(closed("a"))
    assert where_of(walk.state).new == where.new


def test_a_turn_that_had_reconnected_before_it_was_parked_goes_on_with_its_reply() -> None:
    policy = run("a", after_death="reconnect").policy
    begun = replace(under(ASK), policy=policy)
    walk = Walk(begun, opened("a"), opened("b"), calls("a.think"), died(1), closed("a"), opened("a"))
    walk.send(calls("a.look", first=2), ApprovalPostponed(), closed("a"), closed("b"))
    assert walk.end.reconnected
    (look,) = walk.end.questions
    where = Resumption(parked=walk.end, decisions=(look.approve(),))
    again = Walk(replace(begun, resumed=where), opened("a"), opened("b"))
    assert [call_id for call_id, _ in sent(again)] == ["c2"]


def test_a_resumed_turn_that_reconnects_asks_the_model_afterwards() -> None:
    end = parked("a.look")
    (look,) = end.questions
    begun = under(ASK, resumed=Resumption(parked=end, decisions=(look.approve(),)))
    begun = replace(begun, policy=run("a", after_death="reconnect").policy)
    walk = Walk(begun, opened("a"), opened("b"), died(1), closed("a"))
    assert where_of(walk.state).new
    walk.send(opened("a"))
    assert [call_id for call_id, _ in sent(walk)] == ["c1"]
    assert len(walk.of(RequestCompletion)) == 1


def test_a_turn_that_had_ended_cannot_go_on() -> None:
    walk = Walk(under(ASK), opened("a"), opened("b"), text("north"), REFUSED, text("x"), REFUSED)
    assert cut_off(walk.state, set()) is None
    assert cut_off(walk.send(closed("a"), closed("b")).state, set()) is None


def test_a_resumed_turn_without_servers_goes_on_without_them() -> None:
    begun = replace(under(ASK, resumed=Resumption(parked=parked("a.look"))), servers=())
    walk = Walk(begun)
    assert "Unknown MCP tool" in told(walk)["c1"]


MIXED = ("a.look", "x.unknown", "b.think", "a.look", "y.unknown")
"""Calls of which the second and the last one cannot be made."""


def noted(walk: Walk) -> list[str]:
    """The calls that were settled without a server, and the batches that were sent, in their order."""
    kinds = (ToolRejected, ToolDenied, ToolSkipped, CallTools)
    return [
        f"send {item.calls[0].call_id}" if isinstance(item, CallTools) else item.call_id
        for item in walk.of(*kinds)
    ]


def test_a_call_that_cannot_be_made_is_noted_in_its_place_unless_the_trace_is_old() -> None:
    walk = Walk(under(binds_calls=True), opened("a"), opened("b"), calls(*MIXED))
    assert noted(walk) == ["send c1"]
    walk.send(returned(1))
    assert noted(walk) == ["send c1", "c2", "send c3"]
    walk.send(returned(3, batch=2), returned(4, batch=3))
    assert noted(walk) == ["send c1", "c2", "send c3", "send c4", "c5"]
    assert list(told(walk)) == ["c1", "c2", "c3", "c4", "c5"]
    assert noted(Walk(under(), opened("a"), opened("b"), calls(*MIXED))) == ["c2", "c5", "send c1"]


def test_denied_and_rejected_calls_are_noted_in_their_places() -> None:
    rows = ({"tools": ("b.think",), "verdict": "deny", "reason": "no"}, {**ASK, "tools": ("a.look",)})
    walk = Walk(under(*rows, binds_calls=True), opened("a"), opened("b"), calls(*MIXED))
    assert noted(walk) == []
    first, second = questions(walk)
    other = replace(first.deny(), call_id="c9")
    walk.send(decided(other, first.deny(), second.approve()))
    assert [each.call_id for each in walk.of(DecisionIgnored)] == ["c9"]
    assert noted(walk) == ["c1", "c2", "c3", "send c4"]
    walk.send(returned(4))
    assert noted(walk) == ["c1", "c2", "c3", "send c4", "c5"]


def test_skipped_and_rejected_calls_are_noted_in_their_places() -> None:
    walk = Walk(under(binds_calls=True), opened("a"), opened("b"), calls(*MIXED))
    walk.send(timed_out(1))
    assert noted(walk) == ["send c1", "c2", "c3", "c4", "c5"]


def test_a_turn_that_is_interrupted_notes_the_calls_whose_place_has_not_come() -> None:
    walk = Walk(under(binds_calls=True), opened("a"), opened("b"), calls(*MIXED), INTERRUPT)
    assert noted(walk) == ["send c1", "c2", "c5"]
    ask = Walk(under(ASK, binds_calls=True), opened("a"), opened("b"), calls(*MIXED), INTERRUPT)
    assert noted(ask) == ["c2", "c5"]


def test_a_parked_turn_notes_a_call_that_cannot_be_made_when_it_goes_on() -> None:
    walk = Walk(under(ASK, binds_calls=True), opened("a"), opened("b"), calls(*MIXED))
    end = walk.send(ApprovalPostponed(), closed("a"), closed("b")).end
    assert noted(walk) == []
    where = Resumption(parked=end, decisions=tuple(each.approve() for each in end.questions))
    again = Walk(under(ASK, binds_calls=True, resumed=where), opened("a"), opened("b"), returned(1))
    assert noted(again) == ["send c1", "c2", "send c3"]
