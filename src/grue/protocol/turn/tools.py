"""The part of the turn's machine that has tool calls made: runs, settlements, and what follows them.

`tool_loop.step` calls these functions; they are pure.
"""

from collections.abc import Mapping
from itertools import islice

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.context.growing import Remaining
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.calls import Run, record_settlement, runs_of, skip
from grue.protocol.turn.asking import ask, force
from grue.protocol.turn.end import answers_at_end, fail
from grue.protocol.turn.starting import start_called, started, without_tools_of
from grue.protocol.turn.states import (
    AwaitingReconnect,
    AwaitingTools,
    Batch,
    CallNote,
    JudgedReply,
    PlacedNote,
    Transition,
    Turn,
    without,
)

_LOOK_AHEAD = 32
"""How many unsent calls are searched for one whose server is idle."""


def start_calls(
    turn: Turn, reply: JudgedReply, changed: Mapping[m.CallId, m.JsonObject], notes: tuple[m.TurnNote, ...]
) -> Transition:
    """Send the first run of a reply's calls, or go on if there is none.

    Args:
        turn: The turn.
        reply: The judged reply; all its open calls are to be made.
        changed: The arguments of calls that a person has changed.
        notes: Recorded before.
    """
    runs = runs_of(((each.valid, each.terms) for each in reply.open), bind=turn.run.binds_calls)
    if not runs:
        # The notes use this number, and two replies must not share one.
        turn = replace(turn, batches=turn.batches + 1)
    state = AwaitingTools(
        turn,
        reply.calls,
        (),
        Remaining(runs),
        reply.settled,
        changed=changed,
        tools=turn.callable,
        noted=_placed(reply),
    )
    following, commands = _send_runs(state)
    return following, (*notes, *commands)


def _placed(reply: JudgedReply) -> Remaining[PlacedNote]:
    """Return the notes of calls that nobody makes, each with how many calls are settled when it is due."""
    if not reply.noted:
        return Remaining()
    notes = {note.call_id: note for note in reply.noted}
    made = {each.valid.call.call_id for each in reply.open}
    placed: list[PlacedNote] = []
    settled = len(reply.settled)
    for call_id in reply.calls:
        settled += call_id in made
        if call_id in notes:
            placed.append(PlacedNote(settled, notes[call_id]))
    return Remaining(tuple(placed))


def _send_runs(state: AwaitingTools, notes: tuple[CallNote, ...] = ()) -> Transition:
    """Send the runs that may be sent now; go on with the turn if no call is left."""
    state, starts = start_called(state)
    state, due = _due(state)
    if notes and due:
        place = {call_id: number for number, call_id in enumerate(state.calls)}
        notes = tuple(sorted((*notes, *due), key=lambda note: place[note.call_id]))
    commands: list[m.TurnCommand | m.TurnNote] = [*(notes or due), *starts]
    while (run := _next_run(state)) is not None:
        state, command = _sent(state, run)
        commands.append(command)
    if state.under_way or state.starting:
        return state, tuple(commands)
    following, more = _after_tools(state)
    return following, (*commands, *more)


def _due(state: AwaitingTools) -> tuple[AwaitingTools, tuple[CallNote, ...]]:
    """Take out the notes whose place has come: as many calls are settled as stand before theirs."""
    noted, due = state.noted, list[CallNote]()
    while noted and noted.first.settled <= len(state.settled):
        due.append(noted.first.note)
        noted = noted.without(noted.first)
    return (replace(state, noted=noted), tuple(due)) if due else (state, ())


def _next_run(state: AwaitingTools) -> Run | None:
    """Return the run to send now, or `None` if it has to wait.

    Runs are sent one at a time and in order, except that a parallel one may be sent while other parallel ones
    are under way. A session serves one batch at a time, so the server of such a run has to be idle. And
    the server of a run has to have started.
    """
    if not state.unsent or not all(batch.parallel for batch in state.under_way):
        return None
    waiting = {*state.starting, *state.turn.unstarted}
    first = state.unsent.first
    if not state.under_way and first.server not in waiting:
        return first
    busy = {batch.server for batch in state.under_way} | waiting
    for run in islice(state.unsent, _LOOK_AHEAD):
        if not run.parallel:
            return None
        if run.server not in busy:
            return run
    return None


def called_first(
    state: AwaitingTools, event: m.SessionOpened | m.McpDisabled | m.StartupFailed
) -> Transition:
    """Go on after a server that was called has started, or has not."""
    match event:
        case m.SessionOpened():
            state, verified = started(state, event)
            following, commands = _send_runs(state)
            return following, (verified, *commands)
        case m.McpDisabled(server=server, reason=reason):
            turn = replace(without_tools_of(state.turn, event), batches=state.turn.batches + 1)
            state = replace(state, turn=turn, starting=without(state.starting, server))
            answer = tool_results.NOT_STARTED.format(server=server, reason=reason)
            state, notes = _skip_unsent(state, answer, m.BatchId(turn.batches), of=server)
            return _send_runs(state, notes)
        case _:
            others = without(state.starting, event.server)
            unsent = {call.call_id for run in state.unsent for call in run.calls}
            turn = replace(
                state.turn,
                open=(*state.turn.open, *others),
                records=(*state.turn.records, *state.settled),
                told=answers_at_end(state.turn, state.calls, state.settled, unsent),
            )
            return fail(turn, event.failure, tuple(each.note for each in state.noted))


def _sent(state: AwaitingTools, run: Run) -> tuple[AwaitingTools, m.CallTools]:
    turn = replace(state.turn, batches=state.turn.batches + 1)
    number = m.BatchId(turn.batches)
    pending = Remaining(tuple(call.call_id for call in run.calls))
    under_way = (*state.under_way, Batch(number, run.server, pending, run.parallel))
    limits, policy = turn.run.limits, turn.run.policy
    command = m.CallTools(
        server=run.server,
        batch=number,
        calls=run.calls,
        timeout_s=limits.tool_call_timeout_s,
        after_timeout="continue" if policy.after_timeout == "continue" else "skip",
    )
    return replace(state, turn=turn, under_way=under_way, unsent=state.unsent.without(run)), command


def settle(
    state: AwaitingTools, event: m.ToolReturned | m.ToolTimedOut | m.ToolSkipped | m.ServerDied
) -> Transition:
    """Record how a call ended; after the last of its run, send the next run or ask the model.

    After a timeout or a death the calls that are not sent yet are skipped. Those that are under way at other
    servers are waited for.
    """
    call_id = event.call_id
    settled = record_settlement(
        state.calls[call_id], state.turn.iterations, event, state.changed.get(call_id)
    )
    under_way = _without_call(state.under_way, event)
    state = replace(state, under_way=under_way, settled=state.settled.add([settled]))
    notes: tuple[CallNote, ...] = ()
    match event:
        case m.ServerDied():
            state, notes = _skip_unsent(state, tool_results.SKIPPED_AFTER_DEATH, event.batch)
            state = replace(state, broken="server_died", died=event.server)
        case m.ToolTimedOut() if state.turn.run.policy.after_timeout != "continue":
            state, notes = _skip_unsent(state, tool_results.SKIPPED_AFTER_TIMEOUT, event.batch)
            state = replace(state, broken=state.broken or "tool_timeout")
        case _:
            pass
    return _send_runs(state, notes)


def _without_call(
    under_way: tuple[Batch, ...], event: m.ToolReturned | m.ToolTimedOut | m.ToolSkipped | m.ServerDied
) -> tuple[Batch, ...]:
    """Return the batches without a call that is settled, and without a batch that this completes."""
    left = (
        replace(batch, pending=batch.pending.without(event.call_id)) if batch.number == event.batch else batch
        for batch in under_way
    )
    return tuple(batch for batch in left if batch.pending)


def _skip_unsent(
    state: AwaitingTools, reason: str, batch: m.BatchId, *, of: m.ServerName | None = None
) -> tuple[AwaitingTools, tuple[CallNote, ...]]:
    """Answer the calls that are not sent yet with `reason`: all of them, or those of one server."""
    skipped = tuple(run for run in state.unsent if of is None or run.server == of)
    left = tuple(run for run in state.unsent if of is not None and run.server != of)
    unsent = {call.call_id: call for run in skipped for call in run.calls}
    notes: tuple[CallNote, ...] = ()
    records: tuple[m.ToolCallRecord, ...] = ()
    for sent_before, answer in ((False, reason), (True, tool_results.INTERRUPTED)):
        calls = tuple(
            call
            for call_id, call in state.calls.items()
            if call_id in unsent and (unsent[call_id].task is not None) == sent_before
        )
        noted, recorded = skip(calls, state.turn.iterations, batch, answer)
        notes, records = (*notes, *noted), (*records, *recorded)
    return replace(state, unsent=Remaining(left), settled=state.settled.add(records)), notes


def _after_tools(state: AwaitingTools) -> Transition:
    """Add the results to the conversation, in the order of the calls, and decide what the turn does next."""
    by_id = {record.call_id: record for record in state.settled}
    records = tuple(by_id[call_id] for call_id in state.calls)
    turn, new = state.turn.tell(records)
    policy = turn.run.policy
    used_up = turn.iterations >= turn.run.limits.max_tool_iterations
    if state.died is not None:
        if policy.after_death == "reconnect" and not turn.reconnected and not used_up:
            return AwaitingReconnect(turn, state.died, new), (m.CloseSession(server=state.died),)
        return force(turn, "server_died", new)
    if state.broken == "tool_timeout" and policy.after_timeout == "force":
        return force(turn, "tool_timeout", new)
    if used_up:
        return force(turn, "max_iterations", new)
    if turn.budget_reached:
        return force(turn, "budget", new)
    # The server may have removed its last tool during the turn.
    return ask(turn, "loop" if turn.can_call else "only", new)
