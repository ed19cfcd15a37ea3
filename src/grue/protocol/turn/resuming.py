"""The part of the turn's state machine for turns that are parked, killed, waiting for a batch, or forks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.calls import definitions_of, record
from grue.protocol.turn import states as s
from grue.protocol.turn.end import answers_at_end, progress
from grue.protocol.turn.states import LiveState, Transition, TurnState, without
from grue.protocol.turn.tools import parked_at_questions


def cut_off(
    state: TurnState, called: Collection[m.CallId], tasks: Mapping[m.CallId, m.OpenTask] | None = None
) -> m.Resumption | None:
    """Return where a killed process's turn goes on; `None`: it had not begun, or was answered or had failed.

    A sent call (`called`) without a settlement may have taken effect, so it is not sent again: the turn asks
    for the result of its MCP task, or tells the model of the interruption. Unsent calls are judged once more.
    """
    match state:
        case s.AwaitingClose(turn=turn, end=m.TurnParked() as parked):
            return m.Resumption(parked=parked, tasks=tuple(turn.open_tasks.values()))
        case s.AwaitingApproval(turn=turn):
            return m.Resumption(parked=parked_at_questions(state), tasks=tuple(turn.open_tasks.values()))
        case s.Waiting(then=then):
            return cut_off(then, called, tasks)
        case s.AwaitingTools():
            return _in_calls(state, called, tasks or {})
        case s.AwaitingSessions(turn=turn) if turn.resuming is not None:
            return replace(turn.resuming, decisions=())
        case s.AwaitingSessions() | s.AwaitingReconnect() | s.AwaitingSummary():
            return m.Resumption(parked=progress(state.turn), new=state.new)
        case s.AwaitingSupport(turn=turn):
            return m.Resumption(parked=progress(turn), new=turn.opening)
        case s.AwaitingCompletion() | s.AwaitingVerdict() | s.Presuming() | s.AwaitingDrop(failure=None):
            return m.Resumption(parked=progress(state.turn))
        case _:
            return None


def tasks_of(run: m.RunTurn, parked: m.TurnParked) -> tuple[m.OpenTask, ...]:
    """Return the unfinished MCP tasks with which a turn was resumed; none if it has made calls since."""
    resumed = run.resumed
    return () if resumed is None or resumed.parked.batches != parked.batches else resumed.tasks


def _in_calls(
    state: s.AwaitingTools, called: Collection[m.CallId], tasks: Mapping[m.CallId, m.OpenTask]
) -> m.Resumption:
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
        definitions=definitions_of(state.calls.values(), state.tools, turn.unlisted),
        used={name: max(0, count - again[name]) for name, count in turn.used.items()},
    )
    return m.Resumption(parked=parked, tasks=tuple(open_tasks.values()))


def postponed(state: s.AwaitingCompletion | s.AwaitingSummary, event: m.CompletionPostponed) -> Transition:
    """Close the sessions: no process has to run until the reply comes from the provider's batch."""
    waiting = s.Waiting(state, state.turn.open, event.item)
    if not waiting.pending:
        return waiting, (_waits(waiting),)
    return waiting, tuple(m.CloseSession(server=server) for server in waiting.pending)


def closed_to_wait(state: s.Waiting, server: m.ServerName) -> Transition:
    """Remove `server`, whose session has closed, from `pending`. After the last one, report `TurnWaits`."""
    state = replace(state, pending=without(state.pending, server))
    return state, () if state.pending else (_waits(state),)


def _waits(state: s.Waiting) -> m.TurnWaits:
    turn = state.turn
    return m.TurnWaits(turn=turn.run.turn, request=turn.requests, item=state.item)


def waited(
    state: s.Waiting | s.AwaitingCompletion | s.AwaitingSummary,
) -> s.AwaitingCompletion | s.AwaitingSummary:
    """Return the state in which a later process waits for the reply: no session is open."""
    then = state.then if isinstance(state, s.Waiting) else state
    turn = then.turn
    return replace(then, turn=replace(turn, open=(), unstarted=(*turn.unstarted, *turn.open)))


_NOT_ALL_REPORTED = (s.Idle, s.Presuming, s.AwaitingDrop, s.AwaitingSessions)
_ACTS = (m.RequestCompletion, m.CallTools, m.AskApproval, m.CheckAnswer)


def can_fork_at(before: TurnState, after: TurnState, commands: Iterable[m.TurnCommand | m.TurnNote]) -> bool:
    """Return whether a turn can be forked at an event: one of `_ACTS` follows it, and nothing else runs."""
    if isinstance(after, _NOT_ALL_REPORTED):
        return False
    if isinstance(before, s.AwaitingTools) and isinstance(after, s.AwaitingTools):
        return False  # other tool calls of the same reply may still be running
    return any(isinstance(command, _ACTS) for command in commands)


def forked(state: LiveState, event: m.TurnForked) -> TurnState:
    """Return the state with the fork's limits, failure policy and tools."""
    turn, run = state.turn, state.turn.run
    run = replace(run, limits=event.limits or run.limits, policy=event.policy or run.policy)
    turn = replace(turn, run=run)
    listings = {server: tools for server, tools in event.listings.items() if server in turn.open}
    return replace(state, turn=turn.relist(listings) if listings else turn)
