"""The part of the turn's machine that says where a parked or killed turn goes on.

Come here to change what is carried over to a later process. `turn_sessions.py` begins such a turn. These
functions are pure.
"""

from collections import Counter
from collections.abc import Collection

from msgspec.structs import replace

from grue.messages import CallId, Resumption, RunTurn, TurnParked
from grue.protocol import tool_results
from grue.protocol import turn_states as states
from grue.protocol.tool_calls import record
from grue.protocol.turn_approval import parked_at_questions
from grue.protocol.turn_context import begun
from grue.protocol.turn_end import answers_at_end
from grue.protocol.turn_progress import progress
from grue.protocol.turn_states import Turn, TurnState


def cut_off(state: TurnState, called: Collection[CallId]) -> Resumption | None:
    """Return where a turn goes on whose process was killed; `None`: it had ended, or cannot go on.

    A call that was sent and has no settlement may have taken effect. It is answered with that, and never sent
    again. Calls that were not sent are judged again, and asked about again: their approval was for a process
    that is gone.

    Args:
        state: The state after the last event that the trace holds.
        called: The calls of which the trace says that they were sent.
    """
    match state:
        case states.AwaitingClose(end=TurnParked() as parked):
            return Resumption(parked=parked)
        case states.AwaitingApproval():
            return Resumption(parked=parked_at_questions(state))
        case states.AwaitingTools():
            return Resumption(parked=_parked_in_calls(state, called))
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


def _parked_in_calls(state: states.AwaitingTools, called: Collection[CallId]) -> TurnParked:
    turn = state.turn
    done = {each.call_id: each for each in state.settled}
    interrupted = tuple(
        record(call, turn.iterations, "interrupted", tool_results.failure(tool_results.INTERRUPTED))
        for call_id, call in state.calls.items()
        if call_id in called and call_id not in done
    )
    sent = done.keys() | {each.call_id for each in interrupted}
    again = Counter(call.name for call_id, call in state.calls.items() if call_id not in sent)
    return replace(
        progress(turn),
        calls=tuple(state.calls.values()),
        settled=(*done.values(), *interrupted),
        untold=answers_at_end(turn, state.calls, (*done.values(), *interrupted), state.calls),
        used={name: max(0, count - again[name]) for name, count in turn.used.items()},
    )


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
