"""The part of the turn's machine that asks the model while the servers start, with presumed tools.

The rules:

- Only a turn's first request may offer presumed tools, and only if a server is still starting, the check of
  the model has succeeded, and the budget leaves a further request.
- Nothing follows from the reply before all servers have reported: no call, and no check of an answer. A
  server that fails to start ends the turn as without presuming, after the request's cost is counted.
- The reply stands if each of its calls names the same definition among the presumed tools and among the
  listed ones. Otherwise it is dropped, and the request is sent again with the listed tools.
- A failed request stands only if the lists are equal: the endpoint may have refused a presumed tool.
- A request that is under way is cancelled if no tool that it offers is as it was presumed.

`DropCompletion` is always answered by one `ReplyDropped`, and a reply that was on its way comes before that.
So it does not matter which of the two messages was sent first. `tool_loop.step` calls these functions; they
are pure.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.built_in import named_call
from grue.protocol.tools.calls import tool_of, without_doubles
from grue.protocol.turn.asking import ask, refused
from grue.protocol.turn.context import heard
from grue.protocol.turn.end import fail
from grue.protocol.turn.replies import loop_reply
from grue.protocol.turn.sessions import open_all, unmatched_notes, when_all_reported
from grue.protocol.turn.starting import changed_tools, with_tools_of, without_tools_of
from grue.protocol.turn.states import (
    AwaitingCompletion,
    AwaitingDrop,
    AwaitingSessions,
    AwaitingSupport,
    Commands,
    Presuming,
    Transition,
    Turn,
    TurnState,
    without,
)

_NAMED = 3
"""How many tools a reason names."""


def presume(state: TurnState, event: m.ToolsPresumed) -> Transition:
    """Send the first request with the presumed tools, or keep them until the model has been checked.

    A turn that waits for no session does not need them.
    """
    match state:
        case AwaitingSessions():
            return _ask_early(replace(state, presumed=event))
        case AwaitingSupport():
            return replace(state, presumed=event), ()
        case _:
            return state, ()


def supported(state: AwaitingSupport | AwaitingSessions) -> Transition:
    """Go on after the check of the model: open the sessions, ask early, or ask with what is listed."""
    following: TurnState
    commands: Commands = ()
    if isinstance(state, AwaitingSupport):
        following, commands = open_all(state.turn, asking=False)
        if isinstance(following, AwaitingSessions):
            following = replace(following, presumed=state.presumed)
    else:
        following, commands = when_all_reported(replace(state, asking=False))
    if not isinstance(following, AwaitingSessions):
        return following, commands
    asked, more = _ask_early(following)
    return asked, (*commands, *more)


def _ask_early(state: AwaitingSessions) -> Transition:
    """Send the first request with the presumed tools, if the turn may presume any now."""
    turn, presumed = state.turn, state.presumed
    if presumed is None or state.asking or not state.pending or not _may_ask(turn):
        return state, ()
    offering = turn
    for listing in presumed.listings:
        if listing.server in state.pending:
            offering = offering.relist(listing.server, listing.tools)
    if not offering.lists:
        return state, ()
    asked, commands = ask(offering, "loop", state.new)
    *notes, request = commands
    rewritten = any(isinstance(note, m.RewriteHistory) for note in notes)
    if not isinstance(asked, AwaitingCompletion) or rewritten or not isinstance(request, m.RequestCompletion):
        # What has to be cleared depends on the tools, so it waits for the list.
        return state, ()
    following = Presuming(
        turn=replace(asked.turn, tools=turn.tools, relisted=turn.relisted),
        pending=state.pending,
        offered=asked.turn.callable,
        ledger=asked.turn.ledger,
    )
    return following, (*notes, replace(request, presumed=True))


def _may_ask(turn: Turn) -> bool:
    goes_on_with_calls = turn.resuming is not None and bool(turn.resuming.parked.calls)
    return not (goes_on_with_calls or turn.forced or turn.reconnected or turn.budget_reached)


def step_early(state: Presuming | AwaitingDrop, event: m.TurnEvent) -> Transition | None:
    """Take the step of the two states of this module; `None`: this table does not list the pair."""
    match state, event:
        case Presuming(pending=pending), m.SessionOpened() | m.McpDisabled() if event.server in pending:
            return _reported(state, event)
        case Presuming(pending=pending), m.StartupFailed() if event.server in pending:
            return _not_started(state, event)
        case Presuming(reply=None), m.CompletionReceived() | m.CompletionFailed():
            return _replied(state, event)
        case AwaitingDrop(turn=turn), m.CompletionReceived(usage=usage):
            # It was on its way when it was dropped.
            return replace(state, turn=turn.count(usage)), ()
        case AwaitingDrop(), m.CompletionFailed():
            return state, ()
        case AwaitingDrop(), m.ReplyDropped():
            return _dropped(state, event)
        case AwaitingDrop(turn=turn), (m.SessionOpened() | m.McpDisabled() | m.StartupFailed()) if (
            event.server in turn.open
        ):
            # Another server did not start, and the turn will close this one.
            return state, ()
        case _:
            return None


def _reported(state: Presuming, event: m.SessionOpened | m.McpDisabled) -> Transition:
    """Note that a server has reported; the last one verifies what was presumed."""
    if isinstance(event, m.SessionOpened):
        turn = with_tools_of(state.turn, event)
    else:
        turn = without_tools_of(state.turn, event)
    pending = without(state.pending, event.server)
    following, commands = _when_verified(replace(state, turn=turn, pending=pending))
    return following, commands if pending else (*unmatched_notes(turn), *commands)


def _replied(state: Presuming, event: m.CompletionReceived | m.CompletionFailed) -> Transition:
    """Keep the reply until all servers have reported."""
    turn = heard(state.turn, event) if isinstance(event, m.CompletionReceived) else state.turn
    return _when_verified(replace(state, turn=turn, reply=event))


def _not_started(state: Presuming, event: m.StartupFailed) -> Transition:
    """End the turn, because a server did not start; what the request has cost is counted first."""
    others = without(state.pending, event.server)
    turn = replace(state.turn, open=(*state.turn.open, *others))
    if state.reply is not None:
        return fail(turn, event.failure, unread=True)
    drop = _drop(turn, f"the server '{event.server}' did not start")
    return AwaitingDrop(turn, event.failure), (drop,)


def _dropped(state: AwaitingDrop, event: m.ReplyDropped) -> Transition:
    """Count what the dropped request has cost; ask again with the listed tools, or end the turn."""
    turn = state.turn.count(event.usage)
    if state.failure is not None:
        return fail(turn, state.failure, unread=True)
    # The conversation has the request's texts already, and no reply.
    return when_all_reported(AwaitingSessions(turn, (), ()))


def _when_verified(state: Presuming) -> Transition:
    if state.pending:
        return state, ()
    tools, doubles = without_doubles(state.turn.tools)
    turn = replace(state.turn, tools=tools)
    changed = changed_tools(state.offered, turn.callable)
    if not changed and not turn.unlisted:
        return _go_on(replace(turn, relisted=False), state.reply, (_verified(turn),))
    match state.reply:
        case m.CompletionReceived(tool_calls=calls) if all(
            _is_kept(call, state.offered, turn) for call in calls
        ):
            return _go_on(turn, state.reply, (*doubles, _verified(turn, changed)))
        case None if turn.searching or len(changed) < len({tool.name for tool in (*state.offered, *tools)}):
            # Some tool is as it was presumed, and the reply may call no other one.
            return state, ()
        case _:
            names = ", ".join(changed[:_NAMED])
            more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
            drop = _drop(turn, f"not as presumed: {names}{more}")
            return AwaitingDrop(replace(turn, ledger=state.ledger)), (drop,)


def _go_on(
    turn: Turn, reply: m.CompletionReceived | m.CompletionFailed | None, notes: Commands
) -> Transition:
    """Do what follows from the reply, if there is one by now."""
    state = AwaitingCompletion(turn, "loop")
    match reply:
        case None:
            return state, notes
        case m.CompletionReceived():
            following, commands = loop_reply(turn, reply)
        case _:
            following, commands = refused(state, reply)
    return following, (*notes, *commands)


def _verified(turn: Turn, changed: tuple[str, ...] = ()) -> m.ToolsVerified:
    return m.ToolsVerified(request=turn.requests, changed=changed)


def _drop(turn: Turn, reason: str) -> m.DropCompletion:
    return m.DropCompletion(conversation=turn.conversation, request=turn.requests, reason=reason)


def _is_kept(call: m.ToolCall, offered: Iterable[m.ToolDefinition], turn: Turn) -> bool:
    """Return whether a call means what it would mean if the listed tools had been offered."""
    before = {tool.name: tool for tool in offered}
    now = {tool.name: tool for tool in turn.callable}
    name = named_call(call).name if turn.searching else call.name
    return before.get(name) == tool_of(name, now, turn.unlisted)
