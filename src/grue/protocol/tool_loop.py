"""The turn as a pure state machine: `step(state, event) -> (state, commands)`.

Come here to change what a turn does next. This module only decides: it does no I/O, reads no clock and does
not log. The agent actor feeds it events and carries out its commands. The rules:

1.  Each tool call of a reply gets exactly one tool message, in the order of the calls, before the next
    request: providers reject a conversation with an unanswered call.
2.  The calls of a reply are grouped into runs: consecutive calls to the same server. A run is sent as one
    batch, and the next run when every call of it is settled. A call to an unknown tool or with unreadable
    arguments is answered here and is not sent to any server.
3.  After a timeout the session skips the other calls of the batch, and this machine skips the runs that are
    not yet sent. The loop goes on, unless the policy forces the final answer.
4.  After a server died, the other calls of the reply are skipped and the final answer is forced. Under the
    policy `reconnect` the server is restarted instead, once in a turn, and only if an iteration is left in
    which the model could use it.
5.  Only loop requests offer tools, and only they leave the form of the reply free. Forced, repair and
    tool-less requests ask for the answer's schema and offer no tools.
6.  The final answer is forced after `max_tool_iterations` replies with tool calls, and after a reply with
    neither content nor calls. If a final reply is empty, calls tools or fails the host's check, the turn asks
    for one repair, and then uses the host's fallback: at most `max_tool_iterations` + 2 requests in all.
7.  A reached budget forces the final answer, after the calls of its reply. A spent one leaves no repair.
8.  If it is doubtful whether the model can call tools, the turn checks that before it opens a session.
    Otherwise it checks while the sessions open. The result is known before the first tool is offered.
9.  Every session that the turn opened is closed before the turn ends, however it ends. A deadline or an
    interruption can arrive in any state and ends the turn. Events that arrive after that are ignored. So is
    a second `SessionClosed`: a session that is cancelled reports its close without being asked.

The states (`turn_states.py`) are named for what they wait for. Commands are in order, each note for the trace
before the command that it explains. A pair that `step` does not list raises `IllegalEvent`.

```
Idle ─▶ AwaitingSupport ─▶ AwaitingSessions ─▶ AwaitingCompletion ◀──▶ AwaitingTools ─▶ AwaitingReconnect
                              ▲                       ▲ │                   │                │
                              │          repair, once │ ▼                   ▼                │
                              │                 AwaitingVerdict ─▶ AwaitingClose ─▶ Finished │
                              └──────────────────────────────────────────────────────────────┘
```
"""

from typing import TypeAlias

from msgspec.structs import replace

from grue.messages import (
    AnswerAccepted,
    AnswerRefused,
    BatchId,
    CallTools,
    CheckAnswer,
    CheckToolSupport,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    ConversationId,
    ConversationItem,
    DeadlineMissed,
    DeadlinePassed,
    FellBack,
    FinalForced,
    Interrupted,
    IterationStarted,
    McpDisabled,
    NoAnswer,
    OfferTools,
    OpenSession,
    OutcomeKind,
    RepairRequested,
    ReplyUnusable,
    RequestCompletion,
    RequireAnswer,
    RunTurn,
    ServerDied,
    ServerName,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolCall,
    ToolCallRecord,
    ToolReturned,
    ToolsChanged,
    ToolSkipped,
    ToolsUnsupported,
    ToolSupportChecked,
    ToolTimedOut,
    TurnCommand,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnFailure,
    TurnInterrupted,
    TurnNote,
    UserText,
)
from grue.protocol import tool_results
from grue.protocol.growing import Growing, Remaining
from grue.protocol.tool_calls import record_settlement, reject, skip, sort_calls, without_doubles
from grue.protocol.turn_states import (
    AwaitingClose,
    AwaitingCompletion,
    AwaitingReconnect,
    AwaitingSessions,
    AwaitingSupport,
    AwaitingTools,
    AwaitingVerdict,
    Finished,
    ForceReason,
    Idle,
    LiveState,
    Phase,
    Turn,
    TurnState,
    waiting_for,
    without,
)

FINAL_REQUEST = "Please provide your final action now without calling any more tools."
REPAIR_REQUEST = (
    "That reply cannot be used: {reason}\n"
    "Reply once more, with nothing but the answer in the form that was asked for, and call no tools."
)

DECLINED = "the model declined to answer: {words}"
Commands: TypeAlias = tuple[TurnCommand | TurnNote, ...]
Transition: TypeAlias = tuple[TurnState, Commands]


class IllegalEvent(Exception):  # noqa: N818 - a bug in the caller, named for what it met
    """The event cannot happen in this state; the text names both."""


def step(state: TurnState, event: TurnEvent) -> Transition:
    """Return the next state, and the commands to carry out, in order.

    Raises:
        IllegalEvent: The event cannot happen in this state.
    """
    match state, event:
        case Idle(), RunTurn():
            return _begin(event)
        case AwaitingSupport(turn=turn), ToolSupportChecked(supported=True):
            return _open_all(turn, asking=False)
        case AwaitingSessions(asking=True), ToolSupportChecked(supported=True):
            return _when_all_reported(replace(state, asking=False))
        case ((AwaitingSupport() | AwaitingSessions(asking=True)), ToolSupportChecked()):
            return _unsupported(state, event)
        case AwaitingSessions(pending=pending), SessionOpened(server=server) if server in pending:
            return _opened(state, event)
        case AwaitingSessions(pending=pending), McpDisabled(server=server) if server in pending:
            return _given_up(state, event)
        case AwaitingSessions(pending=pending), StartupFailed(server=server) if server in pending:
            others = without(pending, server)
            return _fail(replace(state.turn, open=(*state.turn.open, *others)), event.failure)
        case AwaitingCompletion(turn=turn, phase="loop"), CompletionReceived(usage=usage):
            return _loop_reply(turn.count(usage), event)
        case AwaitingCompletion(turn=turn, phase=phase), CompletionReceived(usage=usage):
            return _final_reply(turn.count(usage), phase, event)
        case AwaitingCompletion(turn=turn), CompletionFailed(failure=failure):
            return _fail(turn, failure)
        case AwaitingTools(batch=batch, pending=pending), (
            ToolReturned() | ToolTimedOut() | ToolSkipped() | ServerDied()
        ) if event.batch == batch and event.call_id in pending:
            return _settle(state, event)
        case AwaitingTools(turn=turn), ToolsChanged(server=server, tools=tools) if server in turn.open:
            return replace(state, turn=turn.relist(server, tools)), ()
        case AwaitingReconnect(turn=turn, server=server), SessionClosed() if event.server == server:
            turn = replace(turn, open=without(turn.open, server), reconnected=True)
            return AwaitingSessions(turn, (server,), state.new), (_open(turn.run, server),)
        case AwaitingVerdict(turn=turn), AnswerAccepted(answer=answer):
            return _complete(turn, answer, state.content)
        case AwaitingVerdict(turn=turn, phase=phase), AnswerRefused(reason=reason):
            return _refuse(turn, phase, reason, raw=state.content)
        case AwaitingClose(pending=pending), SessionClosed(server=server) if server in pending:
            return _closed(state, server)
        case AwaitingClose(turn=turn), SessionClosed(server=server) if server in turn.run.servers:
            return state, ()
        case ((AwaitingClose() | Finished()), _) if not isinstance(event, RunTurn | SessionClosed):
            return state, ()
        case _, DeadlinePassed() | TurnInterrupted() if isinstance(state, LiveState):
            return _abandon(state, event)
        case _:
            raise IllegalEvent(f"{type(event).__name__} in state {type(state).__name__}: {event}")


# --- Sessions ---


def _begin(run: RunTurn) -> Transition:
    turn = Turn(run=run)
    if not run.servers or run.limits.max_tool_iterations < 1:
        return _ask(turn, "only", turn.opening)
    if run.support_check == "before":
        return AwaitingSupport(turn), (CheckToolSupport(),)
    return _open_all(turn, asking=run.support_check == "beside")


def _open_all(turn: Turn, *, asking: bool) -> Transition:
    run = turn.run
    commands = tuple(_open(run, server) for server in run.servers)
    state = AwaitingSessions(turn, run.servers, turn.opening, asking)
    return state, (*commands, CheckToolSupport()) if asking else commands


def _unsupported(state: AwaitingSupport | AwaitingSessions, event: ToolSupportChecked) -> Transition:
    pending = state.pending if isinstance(state, AwaitingSessions) else ()
    failure = ToolsUnsupported(model=event.model, endpoint=event.endpoint, reason=event.reason)
    return _fail(replace(state.turn, open=(*state.turn.open, *pending)), failure)


def _open(run: RunTurn, server: ServerName) -> OpenSession:
    return OpenSession(
        server=server,
        turn=run.turn,
        timeout_s=run.limits.server_startup_timeout_s,
        policy=run.policy,
    )


def _opened(state: AwaitingSessions, event: SessionOpened) -> Transition:
    turn = state.turn.relist(event.server, event.tools)
    turn = replace(turn, open=(*turn.open, event.server))
    return _when_all_reported(_reported(state, turn, event.server))


def _given_up(state: AwaitingSessions, event: McpDisabled) -> Transition:
    turn = state.turn.relist(event.server, ())
    turn = replace(turn, degraded=f"no tools from '{event.server}': {event.reason}")
    return _when_all_reported(_reported(state, turn, event.server))


def _reported(state: AwaitingSessions, turn: Turn, server: ServerName) -> AwaitingSessions:
    return replace(state, turn=turn, pending=without(state.pending, server))


def _when_all_reported(state: AwaitingSessions) -> Transition:
    turn = state.turn
    if state.pending or state.asking:
        return state, ()
    if turn.tools and turn.budget_reached:
        return _force(turn, "budget", state.new)
    if turn.tools:
        return _ask(turn, "loop", state.new)
    if turn.reconnected:
        return _force(turn, "server_died", state.new)
    return _ask(turn, "only", state.new)


# --- Asking the model ---


def _ask(
    turn: Turn,
    phase: Phase,
    new: tuple[ConversationItem, ...],
    notes: tuple[TurnNote, ...] = (),
) -> Transition:
    turn = replace(turn, requests=turn.requests + 1)
    mode: OfferTools | RequireAnswer = RequireAnswer(turn.run.answer)
    if phase == "loop":
        tools, doubles = without_doubles(turn.tools)
        mode = OfferTools(tools if turn.relisted else None)
        turn = replace(turn, tools=tools, relisted=False)
        most = turn.run.limits.max_tool_iterations
        notes = (*notes, *doubles, IterationStarted(iteration=turn.iterations + 1, max_iterations=most))
    request = RequestCompletion(
        conversation=ConversationId(f"turn-{turn.run.turn}"),
        request=turn.requests,
        new=new,
        mode=mode,
        stream=turn.run.stream,
    )
    return AwaitingCompletion(turn, phase), (*notes, request)


def _force(
    turn: Turn, reason: ForceReason, new: tuple[ConversationItem, ...], notes: tuple[TurnNote, ...] = ()
) -> Transition:
    turn = replace(turn, forced=reason)
    forced = FinalForced(reason=reason, iterations=turn.iterations)
    return _ask(turn, "forced", (*new, UserText(FINAL_REQUEST)), notes=(*notes, forced))


def _loop_reply(turn: Turn, reply: CompletionReceived) -> Transition:
    if reply.tool_calls:
        return _call(replace(turn, iterations=turn.iterations + 1), reply.tool_calls)
    if _has_text(reply.content):
        return _check(turn, "loop", reply.content)
    if reply.refusal:
        return _refuse(turn, "loop", DECLINED.format(words=reply.refusal), raw=reply.refusal)
    unusable = ReplyUnusable(finish_reason=reply.finish_reason, iteration=turn.iterations + 1)
    return _force(turn, "no_content", (), (unusable,))


def _final_reply(turn: Turn, phase: Phase, reply: CompletionReceived) -> Transition:
    if reply.tool_calls:
        return _refuse_calls(turn, phase, reply)
    if _has_text(reply.content):
        return _check(turn, phase, reply.content)
    if reply.refusal:
        return _refuse(turn, phase, DECLINED.format(words=reply.refusal), raw=reply.refusal)
    return _refuse(turn, phase, "the reply was empty", raw=reply.content)


def _check(turn: Turn, phase: Phase, content: str | None) -> Transition:
    text = content or ""
    return AwaitingVerdict(turn, phase, text), (CheckAnswer(content=text),)


def _has_text(content: str | None) -> bool:
    return bool(content and content.strip())


# --- Tools ---


def _call(turn: Turn, calls: tuple[ToolCall, ...]) -> Transition:
    runs, rejected = sort_calls(calls, turn.tools)
    batch = BatchId(turn.batches + 1)
    if not runs:
        # The notes below use this number, and two replies must not share one.
        turn = replace(turn, batches=batch)
    notes, settled = reject(rejected, turn.iterations, batch)
    by_id = {call.call_id: call for call in calls}
    records = Growing[ToolCallRecord]().add(settled)
    return _next_run(AwaitingTools(turn, by_id, batch, Remaining(), Remaining(runs), records), notes)


def _next_run(state: AwaitingTools, notes: tuple[TurnNote, ...] = ()) -> Transition:
    """Send the next run of the reply, or go on when there is none left."""
    if not state.unsent:
        return _after_tools(state, notes)
    run = state.unsent.first
    turn = replace(state.turn, batches=state.turn.batches + 1)
    batch = BatchId(turn.batches)
    pending = Remaining(tuple(call.call_id for call in run.calls))
    state = replace(state, turn=turn, batch=batch, pending=pending, unsent=state.unsent.without(run))
    limits, policy = turn.run.limits, turn.run.policy
    command = CallTools(
        server=run.server,
        batch=batch,
        calls=run.calls,
        timeout_s=limits.tool_call_timeout_s,
        after_timeout="continue" if policy.after_timeout == "continue" else "skip",
    )
    return state, (*notes, command)


def _settle(
    state: AwaitingTools, event: ToolReturned | ToolTimedOut | ToolSkipped | ServerDied
) -> Transition:
    settled = record_settlement(state.calls[event.call_id], state.turn.iterations, event)
    pending = state.pending.without(event.call_id)
    state = replace(state, pending=pending, settled=state.settled.add([settled]))
    notes: tuple[TurnNote, ...] = ()
    match event:
        case ServerDied():
            state, notes = _skip_unsent(state, tool_results.SKIPPED_AFTER_DEATH)
            state = replace(state, broken="server_died")
        case ToolTimedOut() if state.turn.run.policy.after_timeout != "continue":
            state, notes = _skip_unsent(state, tool_results.SKIPPED_AFTER_TIMEOUT)
            state = replace(state, broken=state.broken or "tool_timeout")
        case _:
            pass
    if state.pending:
        return state, notes
    return _next_run(state, notes)


def _skip_unsent(state: AwaitingTools, reason: str) -> tuple[AwaitingTools, tuple[TurnNote, ...]]:
    unsent = {call.call_id for run in state.unsent for call in run.calls}
    calls = tuple(call for call in state.calls.values() if call.call_id in unsent)
    notes, records = skip(calls, state.turn.iterations, state.batch, reason)
    return replace(state, unsent=Remaining(), settled=state.settled.add(records)), notes


def _after_tools(state: AwaitingTools, notes: tuple[TurnNote, ...]) -> Transition:
    """Add the results to the conversation, in the order of the calls, and decide what the turn does next."""
    by_id = {record.call_id: record for record in state.settled}
    records = tuple(by_id[call_id] for call_id in state.calls)
    turn, new = state.turn.tell(records)
    policy = turn.run.policy
    used_up = turn.iterations >= turn.run.limits.max_tool_iterations
    if state.broken == "server_died":
        if policy.after_death == "reconnect" and not turn.reconnected and not used_up:
            server = turn.server_that_died(records)
            return AwaitingReconnect(turn, server, new), (*notes, CloseSession(server=server))
        return _force(turn, "server_died", new, notes)
    if state.broken == "tool_timeout" and policy.after_timeout == "force":
        return _force(turn, "tool_timeout", new, notes)
    if used_up:
        return _force(turn, "max_iterations", new, notes)
    if turn.budget_reached:
        return _force(turn, "budget", new, notes)
    # The server may have removed its last tool during the turn.
    return _ask(turn, "loop" if turn.tools else "only", new, notes=notes)


# --- The answer ---


def _refuse_calls(turn: Turn, phase: Phase, reply: CompletionReceived) -> Transition:
    """Answer the tool calls of a reply to a request that offered no tools, without making the calls."""
    batch = BatchId(turn.batches + 1)
    notes, records = skip(reply.tool_calls, turn.iterations, batch, tool_results.SKIPPED_TOO_LATE)
    turn, new = replace(turn, batches=batch).tell(records)
    why = "it calls tools, which are no longer available"
    return _refuse(turn, phase, why, raw=reply.content, new=new, notes=notes)


def _refuse(
    turn: Turn,
    phase: Phase,
    reason: str,
    *,
    raw: str | None,
    new: tuple[ConversationItem, ...] = (),
    notes: tuple[TurnNote, ...] = (),
) -> Transition:
    if phase != "repair" and not turn.budget_spent:
        text = UserText(REPAIR_REQUEST.format(reason=reason))
        return _ask(turn, "repair", (*new, text), notes=(*notes, RepairRequested(reason=reason)))
    if phase != "repair":
        reason = f"{reason} (the budget leaves no second try)"
    if turn.run.fallback is None:
        return _fail(turn, NoAnswer(reason=reason, raw=raw), notes)
    end = _completed(turn, "fallback", turn.run.fallback, raw, reason)
    return _close(turn, end, (*notes, FellBack(reason=reason, raw_response=raw)))


def _complete(turn: Turn, answer: object, raw: str) -> Transition:
    kind: OutcomeKind = "forced" if turn.forced else "degraded" if turn.degraded else "answered"
    return _close(turn, _completed(turn, kind, answer, raw, turn.forced or turn.degraded))


def _completed(turn: Turn, kind: OutcomeKind, answer: object, raw: str | None, reason: str) -> TurnCompleted:
    return TurnCompleted(
        turn=turn.run.turn,
        kind=kind,
        answer=answer,
        raw_response=raw,
        reason=reason,
        iterations=turn.iterations,
        requests=turn.requests,
        tool_calls=turn.records,
        usage=turn.usage,
    )


# --- The end ---


def _fail(turn: Turn, failure: TurnFailure, notes: tuple[TurnNote, ...] = ()) -> Transition:
    end = TurnFailed(
        turn=turn.run.turn,
        failure=failure,
        iterations=turn.iterations,
        requests=turn.requests,
        tool_calls=turn.records,
        usage=turn.usage,
    )
    return _close(turn, end, notes)


def _close(turn: Turn, end: TurnCompleted | TurnFailed, notes: tuple[TurnNote, ...] = ()) -> Transition:
    if not turn.open:
        return Finished(), (*notes, end)
    closing = tuple(CloseSession(server=server) for server in turn.open)
    return AwaitingClose(turn, turn.open, end), (*notes, *closing)


def _closed(state: AwaitingClose, server: ServerName) -> Transition:
    pending = without(state.pending, server)
    if pending:
        return AwaitingClose(state.turn, pending, state.end), ()
    return Finished(), (state.end,)


def _abandon(state: LiveState, event: DeadlinePassed | TurnInterrupted) -> Transition:
    """End the turn from whatever state it is in; a call that is under way gets no record."""
    turn = state.turn
    match state:
        case AwaitingSessions(pending=pending):
            # Sessions that are still opening are closed as soon as they have opened.
            turn = replace(turn, open=(*turn.open, *pending))
        case AwaitingTools(settled=settled):
            turn = replace(turn, records=(*turn.records, *settled))
        case _:
            pass
    failure: TurnFailure
    if isinstance(event, DeadlinePassed):
        failure = DeadlineMissed(limit_s=event.limit_s, doing=waiting_for(state), kept_s=event.kept_s)
    else:
        failure = Interrupted(reason=event.reason)
    following, commands = _fail(turn, failure)
    if isinstance(state, AwaitingReconnect):
        # This session has already been told to close.
        commands = tuple(item for item in commands if item != CloseSession(server=state.server))
    return following, commands
