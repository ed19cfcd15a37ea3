"""The part of the turn's state machine that closes the sessions and reports how the turn ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from grue import messages as m
from grue.policies import TurnLimits
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.calls import Calls, record
from grue.protocol.tools.names import Servers
from grue.protocol.turn import states as s
from grue.protocol.turn.states import CallNotes, Notes, Transition, Turn, waiting_for, without

_ASKED = (s.AwaitingCompletion, s.Presuming, s.AwaitingDrop)
"""States in which the conversation may have, now or soon, a reply of the model that the turn has not used."""


def fail(turn: Turn, failure: m.TurnFailure, notes: Notes = (), *, unread: bool = False) -> Transition:
    """End the turn with `failure`. `unread`: the model may have sent a reply that the turn has not used."""
    end = m.TurnFailed(
        turn=turn.run.turn,
        failure=failure,
        iterations=turn.iterations,
        requests=turn.requests + turn.sampled,
        tool_calls=turn.records,
        usage=turn.usage,
        untold=turn.untold,
        unread=unread and turn.run.history is not None,
    )
    return close(turn, end, notes)


def close(turn: Turn, end: m.TurnEnd, notes: Notes = ()) -> Transition:
    """Close every open session, and report `end` when the last one is closed."""
    if not turn.open:
        return s.Finished(), (*notes, end)
    closing = tuple(m.CloseSession(server=server) for server in turn.open)
    return s.AwaitingClose(turn, turn.open, end), (*notes, *closing)


def sampled(state: s.LiveState | s.AwaitingClose, event: m.ServerSampled) -> s.TurnState:
    """Count a request of a server to the model, even if the turn's end has been decided on already."""
    turn = replace(state.turn, sampled=state.turn.sampled + 1).count(event.usage)
    if isinstance(state, s.AwaitingClose):
        end = replace(state.end, requests=state.end.requests + 1, usage=state.end.usage + event.usage)
        return replace(state, turn=turn, end=end)
    return replace(state, turn=turn)


def closed(state: s.AwaitingClose, server: m.ServerName) -> Transition:
    """Wait until the other sessions are closed; when the last one is closed, end the turn."""
    pending = without(state.pending, server)
    if pending:
        return s.AwaitingClose(state.turn, pending, state.end), ()
    return s.Finished(), (state.end,)


def abandon(state: s.LiveState, event: m.DeadlinePassed | m.TurnInterrupted) -> Transition:
    """End a turn whose time is up or that was interrupted. An unsettled call gets no `ToolCallRecord`."""
    turn = state.turn
    notes: CallNotes = ()
    match state:
        case s.Presuming(pending=pending) | s.AwaitingSessions(pending=pending):
            # Sessions that are still opening have to be closed too.
            turn = replace(turn, open=(*turn.open, *pending))
            if turn.resuming is not None:
                turn = replace(turn, told=turn.resuming.parked.untold)
        case s.AwaitingTools(starting=starting):
            turn, notes = with_calls_ended(state, starting)
        case s.AwaitingApproval(calls=calls, settled=settled, noted=notes):
            told = answers_at_end(turn, calls, settled, calls.keys() - turn.open_tasks.keys())
            turn = replace(turn, records=(*turn.records, *settled), told=told)
    failure: m.TurnFailure
    if isinstance(event, m.DeadlinePassed):
        failure = m.DeadlineMissed(limit_s=event.limit_s, doing=waiting_for(state), kept_s=event.kept_s)
    else:
        failure = m.Interrupted(reason=event.reason)
    following, commands = fail(turn, failure, notes, unread=isinstance(state, _ASKED))
    if isinstance(state, s.AwaitingReconnect):
        # Do not close the dead server's session again: this state began with the command to close it.
        commands = tuple(item for item in commands if item != m.CloseSession(server=state.server))
    return following, commands


def with_calls_ended(state: s.AwaitingTools, starting: Servers) -> tuple[Turn, CallNotes]:
    """Return the turn with its settled calls and `answers_at_end`, and the notes still to record."""
    turn = state.turn
    # A call with a task was sent by an earlier process, even if its run has not been sent again.
    unsent = {call.call_id for run in state.unsent for call in run.calls if call.task is None}
    turn = replace(
        turn,
        open=(*turn.open, *starting),  # a starting session is closed as soon as it has opened
        records=(*turn.records, *state.settled),
        told=answers_at_end(turn, state.calls, state.settled, unsent),
    )
    return turn, tuple(each.note for each in state.noted)


def answers_at_end(
    turn: Turn, calls: Calls, settled: Iterable[m.ToolCallRecord], unsent: Collection[m.CallId]
) -> tuple[m.ToolMessage, ...]:
    """Return an answer to each call of a reply, for the next turn; `()` without `RunTurn.history`."""
    if turn.run.history is None:
        return ()
    answers = {record.call_id: record for record in settled}
    for call_id, call in calls.items():
        if call_id not in answers:
            reason = tool_results.NOT_CALLED if call_id in unsent else tool_results.INTERRUPTED
            answers[call_id] = record(call, turn.iterations, "skipped", tool_results.failure(reason))
    return turn.tell(tuple(answers[call_id] for call_id in calls))[1]


PARKED = (  # fields that a `Turn` and its `TurnParked` share, and that are copied both ways
    *("iterations", "usage", "batches", "media_bytes", "forced", "degraded", "reconnected", "used"),
    *("summaries", "overflowed", "searching"),
)


def progress(turn: Turn) -> m.TurnParked:
    """Return the turn's progress as a `TurnParked`, without a reply whose calls are not all settled yet."""
    return m.TurnParked(
        turn=turn.run.turn,
        requests=turn.requests + turn.sampled,
        tool_calls=turn.records,
        window=turn.window,
        refers=turn.refers,
        **{name: getattr(turn, name) for name in PARKED},
    )


def kept_for_closing(limits: TurnLimits) -> float:
    """Return how many seconds of a turn's time limit are reserved for closing its sessions."""
    limit_s = limits.turn_timeout_s
    if limit_s is None:
        return 0.0
    if limits.teardown_s is None:
        return min(0.5, 0.1 * limit_s)
    return min(limits.teardown_s, limit_s / 2)
