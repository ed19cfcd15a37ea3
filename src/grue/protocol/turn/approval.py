"""The part of the turn's machine that judges a reply's tool calls and waits for a person where it has to.

The rules:

- The reply is judged as a whole before any of its calls is sent. All calls that have to be approved are one
  question, and nothing of the reply runs before every answer is in.
- What a decision means, and for which call it counts, is in `decisions.py`. One that does not count is noted
  and ignored, as is one that comes too late.
- A call that nobody makes is noted in its place among those that are made.
- A denied call is answered with the reason. The other calls of the reply are made all the same.
- Changed arguments are read as strictly as those that a model writes, and a text tells the model of the
  change.
- A call that an earlier process has sent, and that its server works on as a task, was judged then. It is
  neither asked about nor counted again.
- If nobody answers now, the turn is parked: its sessions close, and it ends with `TurnParked`. A resumed turn
  judges the reply again, with the definitions that the servers list then. If the definition of a tool has
  changed, its question is asked again; a call that nobody is asked about is not made.

`tool_loop.step` calls these functions; they are pure.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ApprovalDecision, ApprovalQuestion
from grue.protocol.context.growing import Growing
from grue.protocol.decisions import Decisions, judged
from grue.protocol.decisions import settled as settled_decisions
from grue.protocol.tools.calls import Rejected, ValidCall, definitions_of, deny, open_call, read_calls, reject
from grue.protocol.tools.policy import CallTerms, definition_digest, judge, question_about
from grue.protocol.tools.results import NOT_AS_DECIDED
from grue.protocol.turn.end import answers_at_end, close
from grue.protocol.turn.progress import progress
from grue.protocol.turn.states import AwaitingApproval, CallNote, JudgedCall, JudgedReply, Transition, Turn
from grue.protocol.turn.tools import start_calls

TOO_LATE = "it came after the question was closed"

_NO_DEFINITIONS: Mapping[str, str] = {}


class _Denied(Struct, frozen=True):
    call: m.ToolCall
    reason: str


def call(
    turn: Turn,
    calls: tuple[m.ToolCall, ...],
    *,
    settled: tuple[m.ToolCallRecord, ...] = (),
    decisions: tuple[ApprovalDecision, ...] = (),
    definitions: Mapping[str, str] = _NO_DEFINITIONS,
) -> Transition:
    """Judge the calls of a reply, and ask about them, send them, or answer those that no server gets.

    Args:
        turn: The turn.
        calls: All calls of the reply.
        settled: Those that are answered already, in a resumed turn.
        decisions: The answers to earlier questions about these calls.
        definitions: Digests of the tools' definitions that the calls were made for, in a resumed turn.
    """
    done = {record.call_id for record in settled}
    # A tool that its server does not list cannot be in a subset.
    unlisted = turn.unlisted
    tasks = turn.open_tasks
    left = tuple(call for call in calls if call.call_id not in done and call.call_id not in tasks)
    valid, rejected = read_calls(left, turn.callable, unlisted, offered=turn.offered)
    before = turn.used
    turn, judged = _judged(turn, valid)
    if tasks:
        judged = _in_order(calls, (*judged, *_under_way(calls, tasks)))
    outdated = tuple(each.valid.call for each in judged if _is_outdated(each, definitions))
    judged = tuple(each for each in judged if each.valid.call not in outdated)
    rejected = (*rejected, *(Rejected(each, f"Tool call failed: {NOT_AS_DECIDED}") for each in outdated))
    rejections, rejected_records = reject(rejected, turn.iterations, m.BatchId(turn.batches + 1))
    answered = (*settled, *rejected_records)
    every = {call.call_id: call for call in calls}
    if not (turn.run.tool_policy.rules or decisions):
        # Most turns have no policy, and need not pay for one.
        reply = JudgedReply(calls=every, open=judged, settled=Growing[m.ToolCallRecord]().add(answered))
        reply, at_once = _noted(turn, reply, rejections)
        return start_calls(turn, reply, _changed_before(turn), at_once)
    denials, denied_records = _denials(turn, judged)
    refused: tuple[CallNote, ...] = (*rejections, *denials)
    reply = JudgedReply(
        calls=every,
        open=tuple(each for each in judged if each.terms.verdict != "deny"),
        earlier=settled,
        settled=Growing[m.ToolCallRecord]().add((*answered, *denied_records)),
        used_before=before,
    )
    reply, at_once = _noted(turn, reply, refused)
    return _ask(turn, reply, decisions, at_once)


def _noted(
    turn: Turn, reply: JudgedReply, notes: tuple[CallNote, ...]
) -> tuple[JudgedReply, tuple[CallNote, ...]]:
    """Keep the notes for their places in the reply; return those to record at once: all, in old traces."""
    if not turn.run.binds_calls:
        return reply, notes
    return replace(reply, noted=(*reply.noted, *notes)), ()


def _is_outdated(each: JudgedCall, definitions: Mapping[str, str]) -> bool:
    """Return whether nobody has decided about the tool as it is now: neither the model nor a person will."""
    if each.terms.verdict == "ask" or each.valid.task is not None:
        return False
    made_for = definitions.get(each.valid.tool.name)
    return made_for is not None and made_for != definition_digest(each.valid.tool)


def _denials(
    turn: Turn, judged: tuple[JudgedCall, ...]
) -> tuple[tuple[m.ToolDenied, ...], tuple[m.ToolCallRecord, ...]]:
    refused = tuple((each.valid.call, each.terms.reason) for each in judged if each.terms.verdict == "deny")
    return deny(refused, turn.iterations, m.BatchId(turn.batches + 1))


def _ask(
    turn: Turn, reply: JudgedReply, decisions: tuple[ApprovalDecision, ...], notes: tuple[m.TurnNote, ...]
) -> Transition:
    """Ask about the calls that no earlier decision answers; if there are none, have the calls made."""
    questions = _questions(turn, reply)
    accepted, ignored = settled_decisions(questions, decisions)
    notes = (*notes, *ignored)
    state = AwaitingApproval(turn, reply, _without(questions, accepted), accepted)
    if not state.questions:
        return _send(turn, reply, accepted, notes)
    return state, (*notes, m.AskApproval(questions=state.questions))


def decide(state: AwaitingApproval, event: m.CallsDecided) -> Transition:
    """Take the decisions; when the last one is in, send the calls."""
    accepted, ignored = settled_decisions(state.questions, event.decisions, state.decisions)
    state = replace(state, questions=_without(state.questions, accepted), decisions=accepted)
    if state.questions:
        return state, ignored
    return _send(state.turn, state.reply, accepted, ignored)


def ignore(event: m.CallsDecided) -> tuple[m.DecisionIgnored, ...]:
    """Return the notes about decisions that came too late."""
    return tuple(
        m.DecisionIgnored(call_id=m.CallId(each.call_id), reason=TOO_LATE) for each in event.decisions
    )


def park(state: AwaitingApproval, event: m.ApprovalPostponed) -> Transition:
    """Close the sessions, and end with what a later process needs to go on."""
    return close(state.turn, parked_at_questions(state, event.expires_at))


def parked_at_questions(state: AwaitingApproval, expires_at: float | None = None) -> m.TurnParked:
    """Return the message from which a later process asks the questions again and goes on."""
    reply = state.reply
    return replace(
        progress(state.turn),
        questions=_questions(state.turn, reply),
        calls=tuple(reply.calls.values()),
        settled=reply.earlier,
        expires_at=expires_at,
        used={**reply.used_before},
        definitions=definitions_of(reply.calls.values(), state.turn.callable, state.turn.unlisted),
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


def _under_way(calls: tuple[m.ToolCall, ...], tasks: Mapping[m.CallId, m.OpenTask]) -> tuple[JudgedCall, ...]:
    return tuple(
        JudgedCall(open_call(call, tasks[call.call_id]), CallTerms())
        for call in calls
        if call.call_id in tasks
    )


def _in_order(calls: tuple[m.ToolCall, ...], judged: tuple[JudgedCall, ...]) -> tuple[JudgedCall, ...]:
    place = {call.call_id: number for number, call in enumerate(calls)}
    return tuple(sorted(judged, key=lambda each: place[each.valid.call.call_id]))


def _changed_before(turn: Turn) -> dict[m.CallId, m.JsonObject]:
    """Return the arguments that a person had changed before the calls were sent by an earlier process."""
    return {
        call_id: task.changed_arguments
        for call_id, task in turn.open_tasks.items()
        if task.changed_arguments is not None
    }


def _without(questions: tuple[ApprovalQuestion, ...], decided: Decisions) -> tuple[ApprovalQuestion, ...]:
    return tuple(question for question in questions if question.call_id not in decided)


def _send(turn: Turn, reply: JudgedReply, decisions: Decisions, notes: tuple[m.TurnNote, ...]) -> Transition:
    """Answer the calls that were denied, and have the others made."""
    approved: list[JudgedCall] = []
    denied: list[tuple[m.ToolCall, str]] = []
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
    denials, records = deny(tuple(denied), turn.iterations, m.BatchId(turn.batches + 1))
    reply = replace(reply, open=tuple(approved), settled=reply.settled.add(records))
    reply, at_once = _noted(turn, reply, denials)
    return start_calls(turn, reply, changed, (*notes, *at_once))


def _decided(each: JudgedCall, decision: ApprovalDecision | None) -> JudgedCall | _Denied:
    if decision is None:  # nobody was asked
        return each
    found = judged(decision)
    if found.denied:
        return _Denied(each.valid.call, found.denied)
    if found.changed is None:
        return each
    return replace(each, valid=replace(each.valid, arguments=found.changed))
