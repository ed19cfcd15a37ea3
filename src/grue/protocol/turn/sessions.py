"""The part of the turn's machine that opens sessions: when the turn starts, and after a reconnect.

`tool_loop.step` calls these functions; they are pure.
"""

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.policy import unmatched_patterns
from grue.protocol.turn.approval import call
from grue.protocol.turn.asking import ask, force
from grue.protocol.turn.context import begun
from grue.protocol.turn.end import fail
from grue.protocol.turn.resuming import turn_after
from grue.protocol.turn.starting import (
    open_session,
    servers_at_start,
    with_tools_of,
    with_unstarted,
    without_tools_of,
)
from grue.protocol.turn.states import (
    AwaitingReconnect,
    AwaitingSessions,
    AwaitingSupport,
    Commands,
    Transition,
    Turn,
    without,
)


def begin(run: m.RunTurn) -> Transition:
    """Start the turn: check the model, open the sessions, or ask at once if no tools are wanted."""
    if run.resumed is not None:
        return _begin_again(run, run.resumed)
    turn = begun(run)
    if not run.servers or run.limits.max_tool_iterations < 1:
        return ask(turn, "only", turn.opening)
    turn = with_unstarted(turn)
    if run.support_check == "before":
        return AwaitingSupport(turn), (m.CheckToolSupport(),)
    return open_all(turn, asking=run.support_check == "beside")


def open_all(turn: Turn, *, asking: bool) -> Transition:
    """Open the session of every server that does not wait for a call; `asking` checks the model meanwhile."""
    opening = servers_at_start(turn)
    commands: Commands = tuple(open_session(turn.run, server) for server in opening)
    state = AwaitingSessions(turn, opening, turn.opening, asking)
    if asking:
        return state, (*commands, m.CheckToolSupport())
    following, more = when_all_reported(state)
    return following, (*commands, *more)


def _begin_again(run: m.RunTurn, resumed: m.Resumption) -> Transition:
    """Start a resumed turn: open the sessions, and then go on with the reply that it was parked at."""
    turn = with_unstarted(turn_after(run, resumed.parked))
    opening = servers_at_start(turn)
    following, commands = when_all_reported(AwaitingSessions(turn, opening, resumed.new))
    return following, (*(open_session(run, server) for server in opening), *commands)


def reopen(state: AwaitingReconnect) -> Transition:
    """Open the session of a server that has died again, now that the dead one is closed."""
    turn, server = state.turn, state.server
    turn = replace(
        turn,
        open=without(turn.open, server),
        serving_unlisted=without(turn.serving_unlisted, server),
        reconnected=True,
    )
    return AwaitingSessions(turn, (server,), state.new), (open_session(turn.run, server),)


def unsupported(state: AwaitingSupport | AwaitingSessions, event: m.ToolSupportChecked) -> Transition:
    """End the turn, because the model cannot call tools."""
    pending = state.pending if isinstance(state, AwaitingSessions) else ()
    failure = m.ToolsUnsupported(model=event.model, endpoint=event.endpoint, reason=event.reason)
    return fail(replace(state.turn, open=(*state.turn.open, *pending)), failure)


def opened(state: AwaitingSessions, event: m.SessionOpened) -> Transition:
    """Take over the tools of a session that has opened."""
    return when_all_reported(_reported(state, with_tools_of(state.turn, event), event.server))


def given_up(state: AwaitingSessions, event: m.McpDisabled) -> Transition:
    """Go on without the tools of a server."""
    return when_all_reported(_reported(state, without_tools_of(state.turn, event), event.server))


def _reported(state: AwaitingSessions, turn: Turn, server: m.ServerName) -> AwaitingSessions:
    return replace(state, turn=turn, pending=without(state.pending, server))


def when_all_reported(state: AwaitingSessions) -> Transition:
    """Send the first request once every session has reported and the model has been checked."""
    turn, resumed = state.turn, state.turn.resuming
    if state.pending or state.asking:
        return state, ()
    notes = unmatched_notes(turn) if not (turn.requests or turn.reconnected) else ()
    following, commands = _with_all_tools(state, resumed)
    return following, (*notes, *commands)


def unmatched_notes(turn: Turn) -> tuple[m.ServerNoted, ...]:
    """Return a note for each pattern of the policy and of the request that matches no tool of the turn.

    Nothing is known of the tools of a server that was given up, or that serves tools which it does not list.
    In a turn that offers only some tools, the policy's other patterns may be about the others.
    """
    run = turn.run
    if not run.binds_calls or turn.degraded or turn.serving_unlisted or not run.servers:
        return ()
    if run.tools is not None:
        where, patterns = "tools= of the request", run.tools
    else:
        where = "the tool policy"
        patterns = tuple(pattern for rule in run.tool_policy.rules for pattern in rule.tools)
    names = tuple(tool.name for tool in turn.tools)
    return tuple(
        m.ServerNoted(
            server=run.servers[0], kind="bad_tool", text=f"{where} has {pattern!r}, which matches no tool"
        )
        for pattern in unmatched_patterns(patterns, names)
    )


def _with_all_tools(state: AwaitingSessions, resumed: m.Resumption | None) -> Transition:
    turn = state.turn
    if resumed is not None and resumed.parked.calls:
        parked = resumed.parked
        return call(
            turn,
            parked.calls,
            settled=parked.settled,
            decisions=resumed.decisions,
            definitions=parked.definitions,
        )
    if turn.forced:
        return ask(turn, "forced", state.new)
    if turn.can_call and turn.budget_reached:
        return force(turn, "budget", state.new)
    if turn.can_call:
        return ask(turn, "loop", state.new)
    if turn.reconnected:
        return force(turn, "server_died", state.new)
    return ask(turn, "only", state.new)
