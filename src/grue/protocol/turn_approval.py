"""The part of the turn's machine that judges a reply's tool calls and waits for a person where it has to.

Come here to change what happens between a reply with tool calls and the first call. The rules:

- The reply is judged as a whole before any of its calls is sent. All calls that have to be approved are one
  question, and nothing of the reply runs before every answer is in.
- A decision counts for one call, with its arguments and the definition of its tool. Any other decision is
  noted and ignored, as is one that comes too late.
- A denied call is answered with the reason. The other calls of the reply are made all the same.
- Changed arguments are read as strictly as those that a model writes, and a text tells the model of the
  change.
- A call that an earlier process has sent, and that its server works on as a task, was judged then. It is
  neither asked about nor counted again.
- If nobody answers now, the turn is parked: its sessions close, and it ends with `TurnParked`. A resumed turn
  judges the reply again, with the definitions that the servers list then.

`tool_loop.step` calls these functions; they are pure.
"""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue.messages import (
    ApprovalDecision,
    ApprovalPostponed,
    ApprovalQuestion,
    AskApproval,
    BatchId,
    CallId,
    CallsDecided,
    DecisionIgnored,
    JsonObject,
    OpenTask,
    ToolCall,
    ToolCallRecord,
    TurnNote,
    TurnParked,
)
from grue.protocol.growing import Growing
from grue.protocol.tool_arguments import read_arguments
from grue.protocol.tool_calls import ValidCall, deny, open_call, read_calls, reject
from grue.protocol.tool_policy import CallTerms, is_about, judge, question_about
from grue.protocol.turn_end import answers_at_end, close
from grue.protocol.turn_progress import progress
from grue.protocol.turn_states import (
    AwaitingApproval,
    JudgedCall,
    JudgedReply,
    Transition,
    Turn,
)
from grue.protocol.turn_tools import start_calls

DENIED_BY_PERSON = "the user does not allow it"
UNUSABLE_CHANGE = "the user changed the arguments, but not to usable ones: {fault}"
TOO_LATE = "it came after the question was closed"
ANOTHER_CALL = "it is about another call, other arguments or another definition of the tool"
ANSWERED = "the call has been decided on already"

_Decisions = Mapping[CallId, ApprovalDecision]


class _Denied(Struct, frozen=True):
    call: ToolCall
    reason: str


def call(
    turn: Turn,
    calls: tuple[ToolCall, ...],
    *,
    settled: tuple[ToolCallRecord, ...] = (),
    decisions: tuple[ApprovalDecision, ...] = (),
) -> Transition:
    """Judge the calls of a reply, and ask about them, send them, or answer those that no server gets.

    Args:
        turn: The turn.
        calls: All calls of the reply.
        settled: Those that are answered already, in a resumed turn.
        decisions: The answers to earlier questions about these calls.
    """
    done = {record.call_id for record in settled}
    # A tool that its server does not list cannot be in a subset.
    unlisted = turn.unlisted
    tasks = turn.open_tasks
    left = tuple(call for call in calls if call.call_id not in done and call.call_id not in tasks)
    valid, rejected = read_calls(left, turn.tools, unlisted)
    before = turn.used
    turn, judged = _judged(turn, valid)
    if tasks:
        judged = _in_order(calls, (*judged, *_under_way(calls, tasks)))
    rejections, rejected_records = reject(rejected, turn.iterations, BatchId(turn.batches + 1))
    answered = (*settled, *rejected_records)
    every = {call.call_id: call for call in calls}
    if not (turn.run.tool_policy.rules or decisions):
        # Most turns have no policy, and need not pay for one.
        reply = JudgedReply(calls=every, open=judged, settled=Growing[ToolCallRecord]().add(answered))
        return start_calls(turn, reply, _changed_before(turn), rejections)
    denials, denied_records = _denials(turn, judged)
    reply = JudgedReply(
        calls=every,
        open=tuple(each for each in judged if each.terms.verdict != "deny"),
        earlier=settled,
        settled=Growing[ToolCallRecord]().add((*answered, *denied_records)),
        used_before=before,
    )
    return _ask(turn, reply, decisions, (*rejections, *denials))


def _denials(
    turn: Turn, judged: tuple[JudgedCall, ...]
) -> tuple[tuple[TurnNote, ...], tuple[ToolCallRecord, ...]]:
    refused = tuple((each.valid.call, each.terms.reason) for each in judged if each.terms.verdict == "deny")
    return deny(refused, turn.iterations, BatchId(turn.batches + 1))


def _ask(
    turn: Turn, reply: JudgedReply, decisions: tuple[ApprovalDecision, ...], notes: tuple[TurnNote, ...]
) -> Transition:
    """Ask about the calls that no earlier decision answers; if there are none, have the calls made."""
    questions = _questions(turn, reply)
    accepted, ignored = _accepted(questions, {}, decisions)
    notes = (*notes, *ignored)
    state = AwaitingApproval(turn, reply, _without(questions, accepted), accepted)
    if not state.questions:
        return _send(turn, reply, accepted, notes)
    return state, (*notes, AskApproval(questions=state.questions))


def decide(state: AwaitingApproval, event: CallsDecided) -> Transition:
    """Take the decisions; when the last one is in, send the calls."""
    accepted, ignored = _accepted(state.questions, state.decisions, event.decisions)
    state = replace(state, questions=_without(state.questions, accepted), decisions=accepted)
    if state.questions:
        return state, ignored
    return _send(state.turn, state.reply, accepted, ignored)


def ignore(event: CallsDecided) -> tuple[DecisionIgnored, ...]:
    """Return the notes about decisions that came too late."""
    return tuple(DecisionIgnored(call_id=CallId(each.call_id), reason=TOO_LATE) for each in event.decisions)


def park(state: AwaitingApproval, event: ApprovalPostponed) -> Transition:
    """Close the sessions, and end with what a later process needs to go on."""
    return close(state.turn, parked_at_questions(state, event.expires_at))


def parked_at_questions(state: AwaitingApproval, expires_at: float | None = None) -> TurnParked:
    """Return what a later process needs to ask the questions again, and go on with the answers."""
    reply = state.reply
    return replace(
        progress(state.turn),
        questions=_questions(state.turn, reply),
        calls=tuple(reply.calls.values()),
        settled=reply.earlier,
        expires_at=expires_at,
        used={**reply.used_before},
        untold=answers_at_end(state.turn, reply.calls, reply.earlier, reply.calls),
    )


def _questions(turn: Turn, reply: JudgedReply) -> tuple[ApprovalQuestion, ...]:
    asked = ((each.valid, each.terms.reason) for each in reply.open if each.terms.verdict == "ask")
    show = turn.run.show_schemas
    return tuple(
        question_about(valid.call.call_id, valid.tool, valid.arguments, reason, show_schema=show)
        for valid, reason in asked
    )


def _judged(turn: Turn, valid: tuple[ValidCall, ...]) -> tuple[Turn, tuple[JudgedCall, ...]]:
    policy = turn.run.tool_policy
    if not policy.rules:
        return turn, tuple(JudgedCall(each, CallTerms()) for each in valid)
    terms, used = judge(policy, (each.tool for each in valid), turn.used)
    return replace(turn, used=used), tuple(map(JudgedCall, valid, terms))


def _under_way(calls: tuple[ToolCall, ...], tasks: Mapping[CallId, OpenTask]) -> tuple[JudgedCall, ...]:
    return tuple(
        JudgedCall(open_call(call, tasks[call.call_id]), CallTerms())
        for call in calls
        if call.call_id in tasks
    )


def _in_order(calls: tuple[ToolCall, ...], judged: tuple[JudgedCall, ...]) -> tuple[JudgedCall, ...]:
    place = {call.call_id: number for number, call in enumerate(calls)}
    return tuple(sorted(judged, key=lambda each: place[each.valid.call.call_id]))


def _changed_before(turn: Turn) -> dict[CallId, JsonObject]:
    """Return the arguments that a person had changed before the calls were sent by an earlier process."""
    return {
        call_id: task.changed_arguments
        for call_id, task in turn.open_tasks.items()
        if task.changed_arguments is not None
    }


def _accepted(
    questions: Iterable[ApprovalQuestion], before: _Decisions, decisions: Iterable[ApprovalDecision]
) -> tuple[_Decisions, tuple[DecisionIgnored, ...]]:
    """Return all decisions that count so far, and a note for each one that does not."""
    asked = {question.call_id: question for question in questions}
    accepted = {**before}
    ignored: list[DecisionIgnored] = []
    for decision in decisions:
        call_id = CallId(decision.call_id)
        question = asked.get(call_id)
        if call_id in accepted:
            ignored.append(DecisionIgnored(call_id=call_id, reason=ANSWERED))
        elif question is None or not is_about(decision, question):
            ignored.append(DecisionIgnored(call_id=call_id, reason=ANOTHER_CALL))
        else:
            accepted[call_id] = decision
    return accepted, tuple(ignored)


def _without(questions: tuple[ApprovalQuestion, ...], decided: _Decisions) -> tuple[ApprovalQuestion, ...]:
    return tuple(question for question in questions if question.call_id not in decided)


def _send(turn: Turn, reply: JudgedReply, decisions: _Decisions, notes: tuple[TurnNote, ...]) -> Transition:
    """Answer the calls that were denied, and have the others made."""
    approved: list[JudgedCall] = []
    denied: list[tuple[ToolCall, str]] = []
    changed = _changed_before(turn)
    for each in reply.open:
        made_call = each.valid.call
        outcome = _decided(each, decisions.get(made_call.call_id))
        if isinstance(outcome, _Denied):
            denied.append((outcome.call, outcome.reason))
            continue
        approved.append(outcome)
        if outcome is not each:
            changed[made_call.call_id] = outcome.valid.arguments
    denials, records = deny(tuple(denied), turn.iterations, BatchId(turn.batches + 1))
    reply = replace(reply, open=tuple(approved), settled=reply.settled.add(records))
    return start_calls(turn, reply, changed, (*notes, *denials))


def _decided(each: JudgedCall, decision: ApprovalDecision | None) -> JudgedCall | _Denied:
    if decision is None or decision.verdict == "approve":
        return each
    if decision.verdict == "deny":
        return _Denied(each.valid.call, decision.reason or DENIED_BY_PERSON)
    arguments = read_arguments(msgspec.json.encode(decision.arguments).decode())
    if isinstance(arguments, str):
        return _Denied(each.valid.call, UNUSABLE_CHANGE.format(fault=arguments))
    return replace(each, valid=replace(each.valid, arguments=arguments))
