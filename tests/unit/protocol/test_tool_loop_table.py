"""Every state x event pair of the turn machine: what is listed follows, what is not is illegal."""

from typing import Any, get_args

import pytest
from case_tables import each_case
from msgspec.structs import replace
from turns import (
    ACCEPTED,
    DEADLINE,
    INTERRUPT,
    REFUSED,
    Walk,
    calls,
    changed,
    closed,
    died,
    disabled,
    listing,
    llm_failed,
    names,
    opened,
    returned,
    run,
    skipped,
    startup_failed,
    support,
    text,
    timed_out,
)

from grue.messages import (
    ApprovalPostponed,
    CallsDecided,
    CompletionPostponed,
    ReplyDropped,
    Resumption,
    ServerSampled,
    ToolsPresumed,
    TurnEvent,
    TurnForked,
    TurnParked,
    Usage,
    WaitEnded,
)
from grue.policies import ContextItem, ContextPolicy, ToolPolicy, ToolRule, TurnLimits
from grue.protocol.tool_loop import IllegalEvent, step
from grue.protocol.turn.states import TurnState

BEGIN = run("a", "b", after_death="reconnect")
ASKED = (BEGIN, opened("a"), opened("b"))
CALLED = (*ASKED, calls("a.think", "a.look", "b.think"))
ONE_LEFT = (*CALLED, returned(1))
LAST_RUN = (*ONE_LEFT, returned(2))
RULES = ToolPolicy(rules=(ToolRule(tools=("a.look",), verdict="ask"),))
ASKING = (replace(BEGIN, tool_policy=RULES), *ASKED[1:], calls("a.think", "a.look", "b.think"))
(QUESTION,) = Walk(*ASKING).last[-1].questions
PARKED = TurnParked(turn=7, questions=(QUESTION,), calls=ASKING[-1].tool_calls, iterations=1)
SUMMARISED = replace(
    BEGIN,
    context=ContextPolicy(window_tokens=1000, reply_tokens=0),
    earlier=(ContextItem(tokens=50), ContextItem(tokens=900)),
)
PRESUMED = ToolsPresumed(listings=(listing("a"), listing("b")))
EARLY = (BEGIN, PRESUMED)
ONE_ROUND = run("a", limits=TurnLimits(max_tool_iterations=1))

POSTPONED = CompletionPostponed(request=1, item="run-7-1-digest")

LATER = replace(run("a", "b"), when_called=(listing("a"), listing("b")))

STATES: dict[str, TurnState] = {
    name: Walk(*events).state
    for name, events in {
        "Idle": (),
        "AwaitingSupport": (run("a", support_check="before"),),
        "AwaitingSessions": (BEGIN,),
        "AwaitingSessions, asking": (run("a", support_check="beside"),),
        "AwaitingSessions, only asking": (run("a", support_check="beside"), opened("a")),
        "AwaitingSessions, one left": (BEGIN, opened("a")),
        "Presuming": EARLY,
        "Presuming, one left": (*EARLY, opened("a")),
        "Presuming, answered": (*EARLY, opened("a"), calls("a.think")),
        "Presuming, all reported": (*EARLY, opened("a", "look"), opened("b")),
        "AwaitingDrop": (*EARLY, opened("a"), opened("b", "other"), calls("b.think")),
        "AwaitingDrop, failing": (*EARLY, startup_failed("a")),
        "AwaitingCompletion, loop": ASKED,
        "AwaitingCompletion, only": (run(),),
        "AwaitingCompletion, forced": (*ASKED, text(None)),
        "AwaitingCompletion, repair": (*ASKED, text("north"), REFUSED),
        "AwaitingApproval": ASKING,
        "AwaitingSummary": (SUMMARISED, opened("a"), opened("b")),
        "AwaitingTools": CALLED,
        "AwaitingTools, last of a run": ONE_LEFT,
        "AwaitingTools, last of all": LAST_RUN,
        "AwaitingTools, last round": (ONE_ROUND, opened("a"), calls("a.think")),
        "AwaitingTools, starting": (LATER, calls("a.think", "a.look", "b.think")),
        "AwaitingReconnect": (*ASKED, calls("a.think"), died(1)),
        "AwaitingVerdict, loop": (*ASKED, text("north")),
        "AwaitingVerdict, repair": (*ASKED, text("north"), REFUSED, text("south")),
        "Waiting": (*ASKED, POSTPONED),
        "Waiting, one left": (*ASKED, POSTPONED, closed("a")),
        "Waiting, without a process": (*ASKED, POSTPONED, closed("a"), closed("b")),
        "AwaitingClose": (*ASKED, text("north"), ACCEPTED),
        "AwaitingClose, one left": (*ASKED, text("north"), ACCEPTED, closed("a")),
        "Finished": (*ASKED, text("north"), ACCEPTED, closed("a"), closed("b")),
    }.items()
}

EVENTS: dict[str, Any] = {
    "RunTurn": run("a"),
    "RunTurn resumed": replace(BEGIN, resumed=Resumption(parked=PARKED)),
    "CallsDecided approved": CallsDecided(decisions=(QUESTION.approve(),)),
    "CallsDecided denied": CallsDecided(decisions=(QUESTION.deny("no"),)),
    "CallsDecided other call": CallsDecided(decisions=(replace(QUESTION, name="a.think").approve(),)),
    "ApprovalPostponed": ApprovalPostponed(),
    "SessionOpened a": opened("a"),
    "SessionOpened b": opened("b"),
    "SessionOpened stranger": opened("x"),
    "ToolsPresumed": PRESUMED,
    "ReplyDropped": ReplyDropped(request=1),
    "ServerSampled": ServerSampled(server="a", usage=Usage(input_tokens=1)),
    "ToolSupportChecked yes": support(True),
    "ToolSupportChecked no": support(False),
    "McpDisabled a": disabled("a"),
    "McpDisabled b": disabled("b"),
    "McpDisabled stranger": disabled("x"),
    "StartupFailed a": startup_failed("a"),
    "StartupFailed b": startup_failed("b"),
    "StartupFailed stranger": startup_failed("x"),
    "CompletionReceived calls": calls("a.think", first=11),
    "CompletionReceived text": text("north"),
    "CompletionReceived nothing": text(" "),
    "CompletionFailed": llm_failed(),
    "CompletionPostponed": POSTPONED,
    "ToolReturned c1": returned(1),
    "ToolReturned c2": returned(2),
    "ToolReturned c3, batch 2": returned(3, batch=2),
    "ToolReturned wrong batch": returned(1, batch=9),
    "ToolReturned unknown call": returned(99),
    "ToolTimedOut c1": timed_out(1),
    "ToolTimedOut c2": timed_out(2),
    "ToolTimedOut c3, batch 2": timed_out(3, batch=2),
    "ToolTimedOut wrong batch": timed_out(1, batch=9),
    "ToolTimedOut unknown call": timed_out(99),
    "ToolSkipped c1": skipped(1),
    "ToolSkipped c2": skipped(2),
    "ToolSkipped c3, batch 2": skipped(3, batch=2),
    "ToolSkipped wrong batch": skipped(1, batch=9),
    "ToolSkipped unknown call": skipped(99),
    "ServerDied c1": died(1),
    "ServerDied c2": died(2),
    "ServerDied c3, batch 2": died(3, batch=2, server="b"),
    "ServerDied wrong batch": died(1, batch=9),
    "ServerDied unknown call": died(99),
    "AnswerAccepted": ACCEPTED,
    "AnswerRefused": REFUSED,
    "SessionClosed a": closed("a"),
    "SessionClosed b": closed("b"),
    "SessionClosed stranger": closed("x"),
    "ToolsChanged a": changed("a"),
    "ToolsChanged b": changed("b"),
    "ToolsChanged stranger": changed("x"),
    "WaitEnded": WaitEnded(turn=7, request=1),
    "TurnForked": TurnForked(trace="t.jsonl", episode="e", turn=7, at=3),
    "DeadlinePassed": DEADLINE,
    "TurnInterrupted": INTERRUPT,
}

LOOP_REQUEST = "IterationStarted RequestCompletion"
FORCED = "FinalForced RequestCompletion"
CLOSE_BOTH = "CloseSession CloseSession"
CLOSE_ONE = "CloseSession"
DROP = "AwaitingDrop: DropCompletion"
UNSUMMARISED = f"AwaitingCompletion: SummaryFailed {LOOP_REQUEST}"
DEATH = "AwaitingReconnect: CloseSession"

# What follows, as "NextState: commands in order". A pair that stands nowhere here is illegal.
LISTED: dict[str, dict[str, str]] = {
    "Idle": {
        "RunTurn": "AwaitingSessions: OpenSession",
        "RunTurn resumed": "AwaitingSessions: OpenSession OpenSession",
    },
    "AwaitingSessions": {
        "SessionOpened a": "AwaitingSessions:",
        "SessionOpened b": "AwaitingSessions:",
        "McpDisabled a": "AwaitingSessions:",
        "McpDisabled b": "AwaitingSessions:",
        "StartupFailed a": "AwaitingClose: CloseSession",
        "StartupFailed b": "AwaitingClose: CloseSession",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "Presuming": {
        "SessionOpened a": "Presuming:",
        "SessionOpened b": "Presuming:",
        "McpDisabled a": "Presuming:",
        "McpDisabled b": "Presuming:",
        "StartupFailed a": DROP,
        "StartupFailed b": DROP,
        "CompletionReceived calls": "Presuming:",
        "CompletionReceived text": "Presuming:",
        "CompletionReceived nothing": "Presuming:",
        "CompletionFailed": "Presuming:",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "Presuming, one left": {
        "SessionOpened b": "AwaitingCompletion: ToolsVerified",
        "McpDisabled b": "Presuming:",
        "StartupFailed b": DROP,
        "CompletionReceived calls": "Presuming:",
        "CompletionReceived text": "Presuming:",
        "CompletionReceived nothing": "Presuming:",
        "CompletionFailed": "Presuming:",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "Presuming, answered": {
        "SessionOpened b": "AwaitingTools: ToolsVerified CallTools",
        "McpDisabled b": "AwaitingTools: ToolsVerified CallTools",
        "StartupFailed b": f"AwaitingClose: {CLOSE_ONE}",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "Presuming, all reported": {
        "CompletionReceived calls": DROP,
        "CompletionReceived text": "AwaitingVerdict: ToolsVerified CheckAnswer",
        "CompletionReceived nothing": f"AwaitingCompletion: ToolsVerified ReplyUnusable {FORCED}",
        "CompletionFailed": DROP,
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingDrop": {
        "CompletionReceived calls": "AwaitingDrop:",
        "CompletionReceived text": "AwaitingDrop:",
        "CompletionReceived nothing": "AwaitingDrop:",
        "CompletionFailed": "AwaitingDrop:",
        "ReplyDropped": f"AwaitingCompletion: {LOOP_REQUEST}",
        "SessionOpened a": "AwaitingDrop:",
        "SessionOpened b": "AwaitingDrop:",
        "McpDisabled a": "AwaitingDrop:",
        "McpDisabled b": "AwaitingDrop:",
        "StartupFailed a": "AwaitingDrop:",
        "StartupFailed b": "AwaitingDrop:",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingDrop, failing": {
        "CompletionReceived calls": "AwaitingDrop:",
        "CompletionReceived text": "AwaitingDrop:",
        "CompletionReceived nothing": "AwaitingDrop:",
        "CompletionFailed": "AwaitingDrop:",
        "ReplyDropped": f"AwaitingClose: {CLOSE_ONE}",
        "SessionOpened b": "AwaitingDrop:",
        "McpDisabled b": "AwaitingDrop:",
        "StartupFailed b": "AwaitingDrop:",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_ONE}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_ONE}",
    },
    "AwaitingSummary": {
        "CompletionReceived text": f"AwaitingCompletion: RewriteHistory {LOOP_REQUEST}",
        "CompletionReceived calls": UNSUMMARISED,
        "CompletionReceived nothing": UNSUMMARISED,
        "CompletionFailed": UNSUMMARISED,
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingSupport": {
        "ToolSupportChecked yes": "AwaitingSessions: OpenSession",
        "ToolSupportChecked no": "Finished: TurnFailed",
        "DeadlinePassed": "Finished: TurnFailed",
        "TurnInterrupted": "Finished: TurnFailed",
    },
    "AwaitingSessions, asking": {
        "ToolSupportChecked yes": "AwaitingSessions:",
        "ToolSupportChecked no": "AwaitingClose: CloseSession",
        "SessionOpened a": "AwaitingSessions:",
        "McpDisabled a": "AwaitingSessions:",
        "StartupFailed a": "Finished: TurnFailed",
        "DeadlinePassed": "AwaitingClose: CloseSession",
        "TurnInterrupted": "AwaitingClose: CloseSession",
    },
    "AwaitingSessions, only asking": {
        "ToolSupportChecked yes": f"AwaitingCompletion: {LOOP_REQUEST}",
        "ToolSupportChecked no": "AwaitingClose: CloseSession",
        "DeadlinePassed": "AwaitingClose: CloseSession",
        "TurnInterrupted": "AwaitingClose: CloseSession",
    },
    "AwaitingSessions, one left": {
        "SessionOpened b": f"AwaitingCompletion: {LOOP_REQUEST}",
        "McpDisabled b": f"AwaitingCompletion: {LOOP_REQUEST}",
        "StartupFailed b": "AwaitingClose: CloseSession",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingCompletion, loop": {
        "CompletionReceived calls": "AwaitingTools: CallTools",
        "CompletionReceived text": "AwaitingVerdict: CheckAnswer",
        "CompletionReceived nothing": f"AwaitingCompletion: ReplyUnusable {FORCED}",
        "CompletionFailed": f"AwaitingClose: {CLOSE_BOTH}",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingCompletion, only": {
        "CompletionReceived calls": "AwaitingCompletion: ToolSkipped RepairRequested RequestCompletion",
        "CompletionReceived text": "AwaitingVerdict: CheckAnswer",
        "CompletionReceived nothing": "AwaitingCompletion: RepairRequested RequestCompletion",
        "CompletionFailed": "Finished: TurnFailed",
        "DeadlinePassed": "Finished: TurnFailed",
        "TurnInterrupted": "Finished: TurnFailed",
    },
    "AwaitingCompletion, forced": {
        "CompletionReceived calls": "AwaitingCompletion: ToolSkipped RepairRequested RequestCompletion",
        "CompletionReceived text": "AwaitingVerdict: CheckAnswer",
        "CompletionReceived nothing": "AwaitingCompletion: RepairRequested RequestCompletion",
        "CompletionFailed": f"AwaitingClose: {CLOSE_BOTH}",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingCompletion, repair": {
        "CompletionReceived calls": f"AwaitingClose: ToolSkipped FellBack {CLOSE_BOTH}",
        "CompletionReceived text": "AwaitingVerdict: CheckAnswer",
        "CompletionReceived nothing": f"AwaitingClose: FellBack {CLOSE_BOTH}",
        "CompletionFailed": f"AwaitingClose: {CLOSE_BOTH}",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingApproval": {
        "CallsDecided approved": "AwaitingTools: CallTools",
        "CallsDecided denied": "AwaitingTools: ToolDenied CallTools",
        "CallsDecided other call": "AwaitingApproval: DecisionIgnored",
        "ApprovalPostponed": f"AwaitingClose: {CLOSE_BOTH}",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingTools, starting": {
        "SessionOpened a": "AwaitingTools: ToolsVerified CallTools",
        "SessionOpened b": "AwaitingTools: ToolsVerified",
        "McpDisabled a": "AwaitingTools: ToolSkipped ToolSkipped",
        "McpDisabled b": "AwaitingTools: ToolSkipped",
        "StartupFailed a": f"AwaitingClose: {CLOSE_ONE}",
        "StartupFailed b": f"AwaitingClose: {CLOSE_ONE}",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingTools": {
        "ToolReturned c1": "AwaitingTools:",
        "ToolReturned c2": "AwaitingTools:",
        "ToolTimedOut c1": "AwaitingTools: ToolSkipped",
        "ToolTimedOut c2": "AwaitingTools: ToolSkipped",
        "ToolSkipped c1": "AwaitingTools:",
        "ToolSkipped c2": "AwaitingTools:",
        "ServerDied c1": "AwaitingTools: ToolSkipped",
        "ServerDied c2": "AwaitingTools: ToolSkipped",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingTools, last of a run": {
        "ToolReturned c2": "AwaitingTools: CallTools",
        "ToolTimedOut c2": f"AwaitingCompletion: ToolSkipped {LOOP_REQUEST}",
        "ToolSkipped c2": "AwaitingTools: CallTools",
        "ServerDied c2": "AwaitingReconnect: ToolSkipped CloseSession",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingTools, last of all": {
        "ToolReturned c3, batch 2": f"AwaitingCompletion: {LOOP_REQUEST}",
        "ToolTimedOut c3, batch 2": f"AwaitingCompletion: {LOOP_REQUEST}",
        "ToolSkipped c3, batch 2": f"AwaitingCompletion: {LOOP_REQUEST}",
        "ServerDied c3, batch 2": DEATH,
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingTools, last round": {
        "ToolReturned c1": f"AwaitingCompletion: {FORCED}",
        "ToolTimedOut c1": f"AwaitingCompletion: {FORCED}",
        "ToolSkipped c1": f"AwaitingCompletion: {FORCED}",
        "ServerDied c1": f"AwaitingCompletion: {FORCED}",
        "DeadlinePassed": "AwaitingClose: CloseSession",
        "TurnInterrupted": "AwaitingClose: CloseSession",
    },
    "AwaitingReconnect": {
        "SessionClosed a": "AwaitingSessions: OpenSession",
        "DeadlinePassed": "AwaitingClose: CloseSession",
        "TurnInterrupted": "AwaitingClose: CloseSession",
    },
    "AwaitingVerdict, loop": {
        "AnswerAccepted": f"AwaitingClose: {CLOSE_BOTH}",
        "AnswerRefused": "AwaitingCompletion: RepairRequested RequestCompletion",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "AwaitingVerdict, repair": {
        "AnswerAccepted": f"AwaitingClose: {CLOSE_BOTH}",
        "AnswerRefused": f"AwaitingClose: FellBack {CLOSE_BOTH}",
        "DeadlinePassed": f"AwaitingClose: {CLOSE_BOTH}",
        "TurnInterrupted": f"AwaitingClose: {CLOSE_BOTH}",
    },
    "Waiting": {"SessionClosed a": "Waiting:", "SessionClosed b": "Waiting:"},
    "Waiting, one left": {"SessionClosed a": "Waiting:", "SessionClosed b": "Waiting: TurnWaits"},
    "Waiting, without a process": {"SessionClosed a": "Waiting:", "SessionClosed b": "Waiting:"},
    "AwaitingClose": {"SessionClosed a": "AwaitingClose:", "SessionClosed b": "AwaitingClose:"},
    "AwaitingClose, one left": {
        "SessionClosed a": "AwaitingClose:",
        "SessionClosed b": "Finished: TurnCompleted",
    },
    "Finished": {},
}
# Tools change between two batches only; the session says so before it settles the last call of one.
for _name, _row in LISTED.items():
    if _name.startswith("AwaitingTools") and _name != "AwaitingTools, starting":
        _row["ToolsChanged a"] = "AwaitingTools:"
        if _name != "AwaitingTools, last round":  # that one has the server a only
            _row["ToolsChanged b"] = "AwaitingTools:"

# A request to the model may wait for a batch. A later process goes on there, with servers not started.
for _name, _row in LISTED.items():
    if _name.startswith(("AwaitingCompletion", "AwaitingSummary")):
        _waits = ": TurnWaits" if _name == "AwaitingCompletion, only" else f": {CLOSE_BOTH}"
        _row.update({"CompletionPostponed": f"Waiting{_waits}", "WaitEnded": f"{_name.split(',')[0]}:"})
    if _name.startswith("Waiting"):
        _row["WaitEnded"] = "AwaitingCompletion:"

# Whatever else arrives once the end is decided is late, and changes nothing.
OVER = ("AwaitingClose", "Waiting", "Finished")
for _name, _row in LISTED.items():
    if _name.startswith(OVER):
        _late = (event for event in EVENTS if not event.startswith(("RunTurn", "SessionClosed")))
        _row.update({event: f"{_name.split(',')[0]}:" for event in _late if event not in _row})

# What may be presumed is sent right after `RunTurn`. A turn that waits for no session has no use for it.
for _name, _row in LISTED.items():
    if _name != "Idle":
        _row.setdefault("ToolsPresumed", f"{_name.split(',')[0]}:")
LISTED["AwaitingSessions"]["ToolsPresumed"] = f"Presuming: {LOOP_REQUEST}"
LISTED["AwaitingSessions, one left"]["ToolsPresumed"] = f"Presuming: {LOOP_REQUEST}"

# A decision that nothing waits for is noted.
for _name, _row in LISTED.items():
    if _name not in ("Idle", "AwaitingApproval"):
        _decided = (event for event in EVENTS if event.startswith("CallsDecided"))
        _row.update({event: f"{_name.split(',')[0]}: DecisionIgnored" for event in _decided})

# A server may ask the model at any time.
for _name, _row in LISTED.items():
    if _name != "Idle":
        _row.setdefault("ServerSampled", f"{_name.split(',')[0]}:")

# A fork begins wherever a turn is not over.
for _name, _row in LISTED.items():
    if _name != "Idle":
        _row.setdefault("TurnForked", f"{_name.split(',')[0]}:")

PAIRS = [(state, event) for state in STATES for event in EVENTS]
LEGAL = [(state, event) for state, event in PAIRS if event in LISTED[state]]
ILLEGAL = [pair for pair in PAIRS if pair not in LEGAL]


def test_the_table_is_complete() -> None:
    assert {type(state) for state in STATES.values()} == set(get_args(TurnState))
    assert {type(event) for event in EVENTS.values()} == set(get_args(TurnEvent))
    assert STATES.keys() == LISTED.keys()
    assert all(row.keys() <= EVENTS.keys() for row in LISTED.values())
    expected = {
        type(EVENTS[event]) for name, row in LISTED.items() if not name.startswith(OVER) for event in row
    }
    assert expected == set(get_args(TurnEvent)), "each event can come before the turn is over"
    for name, state in STATES.items():
        assert type(state).__name__ == name.split(",")[0]
    for name, event in EVENTS.items():
        assert type(event).__name__ == name.split(" ")[0]


@each_case("state, event", LEGAL)
def test_a_listed_pair_leads_on(state: str, event: str) -> None:
    following, commands = step(STATES[state], EVENTS[event])
    shown = f"{type(following).__name__}: {' '.join(names(commands))}".strip()
    assert shown == LISTED[state][event]


@each_case("state, event", ILLEGAL)
def test_every_other_pair_is_illegal_and_names_both(state: str, event: str) -> None:
    with pytest.raises(IllegalEvent) as error:
        step(STATES[state], EVENTS[event])
    assert type(STATES[state]).__name__ in str(error.value)
    assert type(EVENTS[event]).__name__ in str(error.value)


@each_case("state, event", [pair for pair in LEGAL if pair[0].startswith(("AwaitingClose", "Fin"))])
def test_what_is_late_changes_nothing(state: str, event: str) -> None:
    if not event.startswith(("SessionClosed", "CallsDecided", "ServerSampled")):
        assert step(STATES[state], EVENTS[event]) == (STATES[state], ())
