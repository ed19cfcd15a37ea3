"""The part of the turn's machine that says where a parked or killed turn goes on.

Come here to change what is carried over to a later process. `turn_sessions.py` begins such a turn. These
functions are pure.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from grue.messages import CallId, OpenTask, Resumption, RunTurn, TurnParked
from grue.protocol import tool_results
from grue.protocol import turn_states as states
from grue.protocol.tool_calls import record
from grue.protocol.turn_approval import parked_at_questions
from grue.protocol.turn_context import begun
from grue.protocol.turn_end import answers_at_end
from grue.protocol.turn_progress import progress
from grue.protocol.turn_states import Turn, TurnState


def cut_off(
    state: TurnState, called: Collection[CallId], tasks: Mapping[CallId, OpenTask] | None = None
) -> Resumption | None:
    """Return where a turn goes on whose process was killed; `None`: it had ended, or cannot go on.

    A call that was sent and has no settlement may have taken effect. It is never sent again: its server is
    asked for the result, if it has made a task of the call, and else the answer says what is known. Calls
    that were not sent are judged again, and asked about again: their approval was for a process that is gone.

    Args:
        state: The state after the last event that the trace holds.
        called: The calls of which the trace says that they were sent.
        tasks: Those that their servers have made tasks of.
    """
    match state:
        case states.AwaitingClose(turn=turn, end=TurnParked() as parked):
            return Resumption(parked=parked, tasks=tuple(turn.open_tasks.values()))
        case states.AwaitingApproval(turn=turn):
            return Resumption(parked=parked_at_questions(state), tasks=tuple(turn.open_tasks.values()))
        case states.AwaitingTools():
            return _in_calls(state, called, tasks or {})
        case states.AwaitingSessions(turn=turn) if turn.resuming is not None:
            return replace(turn.resuming, decisions=())
        case states.AwaitingSessions(turn=turn, new=new) | states.AwaitingReconnect(turn=turn, new=new):
            return Resumption(parked=progress(turn), new=new)
        case states.AwaitingSummary(turn=turn, new=new):
            return Resumption(parked=progress(turn), new=new)
        case states.AwaitingSupport(turn=turn):
            return Resumption(parked=progress(turn), new=turn.opening)
        case (
            states.AwaitingCompletion(turn=turn)
            | states.AwaitingVerdict(turn=turn)
            | states.Presuming(turn=turn)
            | states.AwaitingDrop(turn=turn, failure=None)
        ):
            return Resumption(parked=progress(turn))
        case _:
            return None


def tasks_of(run: RunTurn, parked: TurnParked) -> tuple[OpenTask, ...]:
    """Return the tasks that a turn still has to be asked for, which was resumed and parked again."""
    resumed = run.resumed
    same_reply = resumed is not None and resumed.parked.batches == parked.batches
    return resumed.tasks if resumed is not None and same_reply else ()


def _in_calls(
    state: states.AwaitingTools, called: Collection[CallId], tasks: Mapping[CallId, OpenTask]
) -> Resumption:
    turn = state.turn
    done = {each.call_id: each for each in state.settled}
    open_tasks = {
        call_id: replace(tasks[call_id], changed_arguments=state.changed.get(call_id))
        for call_id in state.calls
        if call_id in tasks and call_id not in done
    }
    interrupted = tuple(
        record(call, turn.iterations, "interrupted", tool_results.failure(tool_results.INTERRUPTED))
        for call_id, call in state.calls.items()
        if call_id in called and call_id not in done and call_id not in open_tasks
    )
    sent = done.keys() | open_tasks.keys() | {each.call_id for each in interrupted}
    settled, unsent = (*done.values(), *interrupted), [name for name in state.calls if name not in sent]
    again = Counter(state.calls[call_id].name for call_id in unsent)
    parked = replace(
        progress(turn),
        calls=tuple(state.calls.values()),
        settled=settled,
        untold=answers_at_end(turn, state.calls, settled, unsent),
        used={name: max(0, count - again[name]) for name, count in turn.used.items()},
    )
    return Resumption(parked=parked, tasks=tuple(open_tasks.values()))


def turn_after(run: RunTurn, parked: TurnParked) -> Turn:
    """Return the turn as it was when it was parked, without its sessions."""
    turn = begun(run)
    if turn.ledger is not None and parked.calls:
        turn = replace(turn, ledger=turn.ledger.reply(None, parked.calls, 0))
    return replace(
        turn,
        iterations=parked.iterations,
        requests=parked.requests,
        batches=parked.batches,
        records=parked.tool_calls,
        usage=parked.usage,
        media_bytes=parked.media_bytes,
        forced=parked.forced,
        degraded=parked.degraded,
        reconnected=parked.reconnected,
        used=parked.used,
        summaries=parked.summaries,
        overflowed=parked.overflowed,
        window=turn.window if parked.window is None else parked.window,
    )
