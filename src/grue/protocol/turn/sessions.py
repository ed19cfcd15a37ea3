"""The part of the turn's state machine that opens sessions and asks the model while servers still start.

Presumed tools (`ToolsPresumed`) are those that the starting servers will probably list. The rules for a
request that offers them:

- Only a turn's first request, or its first after a resumption, may offer them, and only if a server is still
  starting, no check of tool support is under way, and the budget leaves more than this request.
- Nothing follows from the reply before all servers have reported. A `StartupFailed` ends the turn.
- The reply is used if each called tool is listed as presumed; else it is dropped, and the request is sent
  again with the listed tools. A failed request is sent again too, unless all tools are as presumed.
- If the request is still under way when all servers have reported, it is cancelled if every tool that it
  offers has changed or is not listed, unless it offers `find_tools` (`Turn.searching`).

`DropCompletion` is always answered by one `ReplyDropped`, before which a reply may still arrive.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.context.history import Items
from grue.protocol.tools.built_in import named_call
from grue.protocol.tools.calls import tool_of, without_doubles
from grue.protocol.tools.names import is_built_in
from grue.protocol.tools.policy import UNMATCHED, unmatched_patterns
from grue.protocol.turn import states as s
from grue.protocol.turn import tools
from grue.protocol.turn.asking import ask, begun, force, heard, refused
from grue.protocol.turn.end import PARKED, fail
from grue.protocol.turn.states import Commands, Transition, Turn, TurnState, without


def begin(run: m.RunTurn) -> Transition:
    """Start the turn: check the model or open the sessions. A turn without tools asks the model at once."""
    if run.resumed is not None:
        turn = tools.with_unstarted(_turn_after(run, run.resumed.parked))
        return open_all(turn, run.resumed.new)
    turn = begun(run)
    if not run.servers or run.limits.max_tool_iterations < 1:
        return ask(turn, "only", turn.opening)
    turn = tools.with_unstarted(turn)
    if run.support_check == "before":
        return s.AwaitingSupport(turn), (m.CheckToolSupport(),)
    return open_all(turn, turn.opening, asking=run.support_check == "beside")


def open_all(turn: Turn, new: Items, *, asking: bool = False) -> Transition:
    """Open the sessions, then go on with `new`. `asking`: check meanwhile that the model can call tools."""
    opening = tuple(server for server in turn.run.servers if server not in turn.unstarted)
    commands: Commands = tuple(tools.open_session(turn.run, server) for server in opening)
    state = s.AwaitingSessions(turn, opening, new, asking)
    if asking:
        return state, (*commands, m.CheckToolSupport())
    following, more = when_all_reported(state)
    return following, (*commands, *more)


def _turn_after(run: m.RunTurn, parked: m.TurnParked) -> Turn:
    """Return the turn as it was when it was parked, without its sessions."""
    turn = begun(run)
    if parked.refers:
        turn = turn.referring()
    if turn.ledger is not None and parked.calls:
        turn = replace(turn, ledger=turn.ledger.reply(None, parked.calls, 0))
    turn = replace(
        turn,
        requests=parked.requests,
        records=parked.tool_calls,
        window=turn.window if parked.window is None else parked.window,
        **{name: getattr(parked, name) for name in PARKED},
    )
    # The servers are started again. Those that fail are reported again.
    return replace(turn, degraded="") if run.binds_parked else turn


def reopen(state: s.AwaitingReconnect) -> Transition:
    """Reopen the session of a server that has died, now that its old session is closed."""
    turn, server = state.turn, state.server
    turn = replace(
        turn,
        open=without(turn.open, server),
        serving_unlisted=without(turn.serving_unlisted, server),
        reconnected=True,
    )
    return s.AwaitingSessions(turn, (server,), state.new), (tools.open_session(turn.run, server),)


def unsupported(state: s.AwaitingSupport | s.AwaitingSessions, event: m.ToolSupportChecked) -> Transition:
    """End the turn, because the model cannot call tools."""
    pending = state.pending if isinstance(state, s.AwaitingSessions) else ()
    failure = m.ToolsUnsupported(model=event.model, endpoint=event.endpoint, reason=event.reason)
    return fail(replace(state.turn, open=(*state.turn.open, *pending)), failure)


def reported(state: s.AwaitingSessions, event: m.SessionOpened | m.McpDisabled) -> Transition:
    """Add the tools of a session that has opened, or go on without a disabled server."""
    turn, pending = tools.with_report(state.turn, event), without(state.pending, event.server)
    return when_all_reported(replace(state, turn=turn, pending=pending))


def when_all_reported(state: s.AwaitingSessions) -> Transition:
    """Go on with the turn or its parked calls, once all sessions and the check, if any, have reported."""
    if state.pending or state.asking:
        return state, ()
    turn = state.turn
    notes = unmatched_notes(turn) if not (turn.requests or turn.reconnected) else ()
    following, commands = _with_all_tools(state)
    return following, (*notes, *commands)


def unmatched_notes(turn: Turn) -> tuple[m.ServerNoted, ...]:
    """Return a note for each pattern that matches no tool, in `RunTurn.tools` if set, else in the policy.

    There are no notes if not all tools are known: a server is missing, or serves tools that it does not list.
    """
    run = turn.run
    if not run.binds_calls or turn.degraded or turn.serving_unlisted or not run.servers:
        return ()
    if run.tools is not None:
        where, patterns = "tools= of the request", run.tools
    else:
        where = "the tool policy"
        patterns = tuple(pattern for rule in run.tool_policy.rules for pattern in rule.tools)
    unmatched = unmatched_patterns(patterns, [tool.name for tool in turn.tools]) if patterns else ()
    return tuple(
        m.ServerNoted(server=run.servers[0], kind="bad_tool", text=f"{where} has {pattern!r}{UNMATCHED}")
        for pattern in unmatched
    )


def _with_all_tools(state: s.AwaitingSessions) -> Transition:
    turn, resumed = state.turn, state.turn.resuming
    if resumed is not None and resumed.parked.calls:
        return tools.call(turn, resumed.parked.calls, resumed)
    if turn.forced:
        return ask(turn, "forced", state.new)
    if turn.can_call and turn.budget_reached:
        return force(turn, "budget", state.new)
    if turn.can_call:
        return ask(turn, "loop", state.new)
    if turn.reconnected:
        return force(turn, "server_died", state.new)
    return ask(turn, "only", state.new)


_NAMED = 3  # the most tools that are named in the reason for which a reply is dropped


def presume(state: TurnState, event: m.ToolsPresumed) -> Transition:
    """Store the presumed tools while the turn starts, and send the first request now if that is allowed."""
    if not isinstance(state, s.AwaitingSessions | s.AwaitingSupport):
        return state, ()
    state = replace(state, presumed=event)
    return _ask_early(state) if isinstance(state, s.AwaitingSessions) else (state, ())


def supported(state: s.AwaitingSupport | s.AwaitingSessions) -> Transition:
    """Go on after the check has shown that the model can call tools."""
    if isinstance(state, s.AwaitingSupport):
        following, commands = open_all(state.turn, state.turn.opening)
    else:
        following, commands = when_all_reported(replace(state, asking=False))
    if not isinstance(following, s.AwaitingSessions):
        return following, commands
    asked, more = _ask_early(replace(following, presumed=state.presumed))
    return asked, (*commands, *more)


def _ask_early(state: s.AwaitingSessions) -> Transition:
    turn, presumed = state.turn, state.presumed
    goes_on_with_calls = turn.resuming is not None and bool(turn.resuming.parked.calls)
    cannot_ask = goes_on_with_calls or turn.forced or turn.reconnected or turn.budget_reached
    if presumed is None or state.asking or not state.pending or cannot_ask:
        return state, ()
    listings = {each.server: each.tools for each in presumed.listings if each.server in state.pending}
    offering = turn.relist(listings) if listings else turn
    if all(map(is_built_in, offering.tools)):
        return state, ()
    asked, commands = ask(offering, "loop", state.new)
    *notes, request = commands
    rewritten = any(isinstance(note, m.RewriteHistory) for note in notes)
    if rewritten or not (
        isinstance(asked, s.AwaitingCompletion) and isinstance(request, m.RequestCompletion)
    ):
        # The history has to be shortened first. How much depends on the tools that the servers will list.
        return state, ()
    following = s.Presuming(
        turn=replace(asked.turn, tools=turn.tools, relisted=turn.relisted),
        pending=state.pending,
        offered=asked.turn.callable,
        ledger=asked.turn.ledger,
    )
    return following, (*notes, replace(request, presumed=True))


def step_early(state: s.Presuming | s.AwaitingDrop, event: m.TurnEvent) -> Transition | None:
    """Return the transition for an event while tools are presumed; `None`: `tool_loop.step` decides."""
    match state, event:
        case s.Presuming(pending=pending), m.SessionOpened() | m.McpDisabled() if event.server in pending:
            turn, pending = tools.with_report(state.turn, event), without(pending, event.server)
            following, commands = _when_verified(replace(state, turn=turn, pending=pending))
            return following, commands if pending else (*unmatched_notes(turn), *commands)
        case s.Presuming(pending=pending), m.StartupFailed(server=server) if server in pending:
            turn = replace(state.turn, open=(*state.turn.open, *without(pending, server)))
            if state.reply is not None:
                return fail(turn, event.failure, unread=True)
            # Before the turn ends, drop the request that is under way, so that its cost is counted.
            return s.AwaitingDrop(turn, event.failure), (_drop(turn, f"the server '{server}' did not start"),)
        case s.Presuming(reply=None, turn=turn), m.CompletionReceived():
            return _when_verified(replace(state, turn=heard(turn, event), reply=event))
        case s.Presuming(reply=None, turn=turn), m.CompletionFailed(usage=usage):
            counted = replace(event, usage=m.Usage())  # `refused` would count the usage again
            return _when_verified(replace(state, turn=turn.count(usage), reply=counted))
        case s.AwaitingDrop(turn=turn), m.CompletionReceived(usage=usage) | m.CompletionFailed(usage=usage):
            # The reply was on its way when the agent sent `DropCompletion`. Only its usage counts.
            return replace(state, turn=turn.count(usage)), ()
        case s.AwaitingDrop(failure=failure), m.ReplyDropped(usage=usage):
            turn = state.turn.count(usage)
            if failure is not None:
                return fail(turn, failure, unread=True)
            # No new texts: the dropped request has already added the turn's texts to the conversation.
            return when_all_reported(s.AwaitingSessions(turn, (), ()))
        case s.AwaitingDrop(turn=turn), (m.SessionOpened() | m.McpDisabled() | m.StartupFailed()) if (
            event.server in turn.open
        ):
            # The turn is about to end, because another server did not start, and will close this session too.
            return state, ()
        case _:
            return None


def _when_verified(state: s.Presuming) -> Transition:
    if state.pending:
        return state, ()
    listed, doubles = without_doubles(state.turn.tools)
    turn = replace(state.turn, tools=listed)
    changed = tools.changed_tools(state.offered, turn.callable)
    verified = m.ToolsVerified(request=turn.requests, changed=changed)
    failed = turn.run.binds_parked and isinstance(state.reply, m.CompletionFailed)
    if not changed and (failed or not turn.unlisted):
        return _go_on(replace(turn, relisted=False), state.reply, (verified,))
    match state.reply:
        case m.CompletionReceived(tool_calls=calls) if all(
            _is_kept(call, state.offered, turn) for call in calls
        ):
            return _go_on(turn, state.reply, (*doubles, verified))
        case None if turn.searching or len(changed) < len({tool.name for tool in (*state.offered, *listed)}):
            # Wait for the reply, which can be used if it calls only unchanged tools.
            return state, ()
        case reply:
            if not changed and turn.run.binds_parked and isinstance(reply, m.CompletionReceived):
                others = (call for call in reply.tool_calls if not _is_kept(call, state.offered, turn))
                changed = tuple(dict.fromkeys(turn.meant(call).name for call in others))
            names = ", ".join(changed[:_NAMED])
            more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
            drop = _drop(turn, f"not as presumed: {names}{more}")
            return s.AwaitingDrop(replace(turn, ledger=state.ledger)), (drop,)


def _go_on(
    turn: Turn, reply: m.CompletionReceived | m.CompletionFailed | None, notes: Commands
) -> Transition:
    state = s.AwaitingCompletion(turn, "loop")
    match reply:
        case None:
            return state, notes
        case m.CompletionReceived():
            following, commands = tools.loop_reply(turn, reply)
        case _:
            following, commands = refused(state, reply)
    return following, (*notes, *commands)


def _drop(turn: Turn, reason: str) -> m.DropCompletion:
    return m.DropCompletion(conversation=turn.run.conversation, request=turn.requests, reason=reason)


def _is_kept(call: m.ToolCall, offered: Iterable[m.ToolDefinition], turn: Turn) -> bool:
    before = {tool.name: tool for tool in offered}
    now = {tool.name: tool for tool in turn.callable}
    name = named_call(call, bind=turn.run.binds_arguments).name if turn.searching else call.name
    return before.get(name) == tool_of(name, now, turn.unlisted)
