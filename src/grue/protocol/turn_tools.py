"""The part of the turn's machine that has tool calls made: runs, settlements, and what follows them.

Come here to change when a run of calls is sent, which calls are skipped, or what the turn does once all calls
of a reply are settled. `tool_loop.step` calls these functions; they are pure.
"""

from msgspec.structs import replace

from grue.messages import (
    BatchId,
    CallTools,
    CloseSession,
    ServerDied,
    ToolCall,
    ToolCallRecord,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnNote,
)
from grue.protocol import tool_results
from grue.protocol.growing import Growing, Remaining
from grue.protocol.tool_calls import ValidCall, deny, read_calls, record_settlement, reject, runs_of, skip
from grue.protocol.tool_policy import CallTerms, judge
from grue.protocol.turn_asking import ask, force
from grue.protocol.turn_states import AwaitingReconnect, AwaitingTools, Transition, Turn

NOBODY_TO_ASK = "it needs an approval, and there is nobody to ask"


def call(turn: Turn, calls: tuple[ToolCall, ...]) -> Transition:
    """Answer the calls that no server gets, and send the first run of the others.

    The reply is judged as a whole first: nothing is sent before the policy has seen every call.
    """
    valid, rejected = read_calls(calls, turn.tools, turn.serving_unlisted)
    turn, allowed, denied = _judged(turn, valid)
    runs = runs_of(allowed)
    batch = BatchId(turn.batches + 1)
    if not runs:
        # The notes below use this number, and two replies must not share one.
        turn = replace(turn, batches=batch)
    rejections, rejected_records = reject(rejected, turn.iterations, batch)
    denials, denied_records = deny(denied, turn.iterations, batch)
    by_id = {call.call_id: call for call in calls}
    records = Growing[ToolCallRecord]().add((*rejected_records, *denied_records))
    state = AwaitingTools(turn, by_id, batch, Remaining(), Remaining(runs), records)
    return _next_run(state, (*rejections, *denials))


def _judged(
    turn: Turn, valid: tuple[ValidCall, ...]
) -> tuple[Turn, tuple[ValidCall, ...], tuple[tuple[ToolCall, str], ...]]:
    """Return the calls that the policy allows, and those that it denies, with the reasons."""
    policy = turn.run.tool_policy
    if not policy.rules:
        return turn, valid, ()
    terms, used = judge(policy, (each.tool for each in valid), turn.used)
    judged = tuple(zip(valid, terms, strict=True))
    allowed = tuple(each for each, term in judged if term.verdict == "allow")
    denied = tuple((each.call, _why(term)) for each, term in judged if term.verdict != "allow")
    return replace(turn, used=used), allowed, denied


def _why(terms: CallTerms) -> str:
    return terms.reason if terms.verdict == "deny" else NOBODY_TO_ASK


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


def settle(state: AwaitingTools, event: ToolReturned | ToolTimedOut | ToolSkipped | ServerDied) -> Transition:
    """Record how a call ended; after the last of its run, send the next run or ask the model."""
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
        return force(turn, "server_died", new, notes)
    if state.broken == "tool_timeout" and policy.after_timeout == "force":
        return force(turn, "tool_timeout", new, notes)
    if used_up:
        return force(turn, "max_iterations", new, notes)
    if turn.budget_reached:
        return force(turn, "budget", new, notes)
    # The server may have removed its last tool during the turn.
    return ask(turn, "loop" if turn.tools else "only", new, notes=notes)
