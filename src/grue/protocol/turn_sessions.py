"""The part of the turn's machine that opens sessions: when the turn starts, and after a reconnect.

Come here to change what a turn does when a session opens, is given up or reports its tools. `tool_loop.step`
calls these functions; they are pure.
"""

from msgspec.structs import replace

from grue.messages import (
    CheckToolSupport,
    McpDisabled,
    OpenSession,
    Resumption,
    RunTurn,
    ServerName,
    SessionOpened,
    ToolsUnsupported,
    ToolSupportChecked,
)
from grue.protocol.turn_approval import call
from grue.protocol.turn_asking import ask, force
from grue.protocol.turn_context import begun
from grue.protocol.turn_end import fail
from grue.protocol.turn_resuming import turn_after
from grue.protocol.turn_states import (
    AwaitingReconnect,
    AwaitingSessions,
    AwaitingSupport,
    Commands,
    Transition,
    Turn,
    without,
)


def begin(run: RunTurn) -> Transition:
    """Start the turn: check the model, open the sessions, or ask at once if no tools are wanted."""
    if run.resumed is not None:
        return _begin_again(run, run.resumed)
    turn = begun(run)
    if not run.servers or run.limits.max_tool_iterations < 1:
        return ask(turn, "only", turn.opening)
    if run.support_check == "before":
        return AwaitingSupport(turn), (CheckToolSupport(),)
    return open_all(turn, asking=run.support_check == "beside")


def open_all(turn: Turn, *, asking: bool) -> tuple[AwaitingSessions, Commands]:
    """Open the session of every server; `asking` checks the model meanwhile."""
    run = turn.run
    commands: Commands = tuple(open_session(run, server) for server in run.servers)
    state = AwaitingSessions(turn, run.servers, turn.opening, asking)
    return state, (*commands, CheckToolSupport()) if asking else commands


def _begin_again(run: RunTurn, resumed: Resumption) -> Transition:
    """Start a resumed turn: open the sessions, and then go on with the reply that it was parked at."""
    state = AwaitingSessions(turn_after(run, resumed.parked), run.servers, resumed.new)
    if not run.servers:
        return when_all_reported(state)
    return state, tuple(open_session(run, server) for server in run.servers)


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


def unsupported(state: AwaitingSupport | AwaitingSessions, event: ToolSupportChecked) -> Transition:
    """End the turn, because the model cannot call tools."""
    pending = state.pending if isinstance(state, AwaitingSessions) else ()
    failure = ToolsUnsupported(model=event.model, endpoint=event.endpoint, reason=event.reason)
    return fail(replace(state.turn, open=(*state.turn.open, *pending)), failure)


def open_session(run: RunTurn, server: ServerName) -> OpenSession:
    """Return the command that opens the session of `server`."""
    return OpenSession(
        server=server, turn=run.turn, timeout_s=run.limits.startup_timeout_s(server), policy=run.policy
    )


def opened(state: AwaitingSessions, event: SessionOpened) -> Transition:
    """Take over the tools of a session that has opened."""
    return when_all_reported(_reported(state, with_tools_of(state.turn, event), event.server))


def with_tools_of(turn: Turn, event: SessionOpened) -> Turn:
    """Return the turn with a session that has opened, and its tools."""
    turn = turn.relist(event.server, event.tools)
    turn = replace(turn, open=(*turn.open, event.server))
    if event.serves_unlisted:
        turn = replace(turn, serving_unlisted=(*turn.serving_unlisted, event.server))
    return turn


def given_up(state: AwaitingSessions, event: McpDisabled) -> Transition:
    """Go on without the tools of a server."""
    return when_all_reported(_reported(state, without_tools_of(state.turn, event), event.server))


def without_tools_of(turn: Turn, event: McpDisabled) -> Turn:
    """Return the turn without the tools of a server that was given up."""
    turn = turn.relist(event.server, ())
    return replace(turn, degraded=f"no tools from '{event.server}': {event.reason}")


def _reported(state: AwaitingSessions, turn: Turn, server: ServerName) -> AwaitingSessions:
    return replace(state, turn=turn, pending=without(state.pending, server))


def when_all_reported(state: AwaitingSessions) -> Transition:
    """Send the first request once every session has reported and the model has been checked."""
    turn, resumed = state.turn, state.turn.resuming
    if state.pending or state.asking:
        return state, ()
    if resumed is not None and resumed.parked.calls:
        return call(turn, resumed.parked.calls, settled=resumed.parked.settled, decisions=resumed.decisions)
    if turn.forced:
        return ask(turn, "forced", state.new)
    if turn.can_call and turn.budget_reached:
        return force(turn, "budget", state.new)
    if turn.can_call:
        return ask(turn, "loop", state.new)
    if turn.reconnected:
        return force(turn, "server_died", state.new)
    return ask(turn, "only", state.new)
