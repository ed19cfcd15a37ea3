"""The part of the turn's machine that knows how servers start, at the turn's start or when they are called.

`RunTurn.when_called` names the servers that start when they are called, and the tools that the model is
offered of them until then. The rules:

- Such a server is started by the first reply that has calls for it, after the policy and a person have
  decided on all calls of that reply. The servers of one reply start at the same time, `starts_at_once` of
  them; a run of calls is sent when its server has started.
- What the server lists then takes the place of what the model was offered. If it is the same, the next
  request offers the same list, in the same order. If a tool has changed, the session does not send the calls
  of it (`actors/mcp_session.py`), the model reads that, and the next request offers the new list.
- If the server does not start, its calls are answered with the reason, and the turn goes on without its
  tools; or the turn fails, if the server is required.

`sessions.py` and `tools.py` call these functions; they are pure.
"""

from collections.abc import Iterable
from itertools import islice

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.calls import without_doubles
from grue.protocol.turn.states import AwaitingTools, Commands, Turn, without


def open_session(run: m.RunTurn, server: m.ServerName) -> m.OpenSession:
    """Return the command that opens the session of `server`."""
    return m.OpenSession(
        server=server, turn=run.turn, timeout_s=run.limits.startup_timeout_s(server), policy=run.policy
    )


def with_unstarted(turn: Turn) -> Turn:
    """Return the turn with the tools of the servers that start when they are called."""
    offered = {listing.server: listing.tools for listing in turn.run.when_called}
    return replace(turn.relist_all(offered), unstarted=tuple(offered)) if offered else turn


def servers_at_start(turn: Turn) -> tuple[m.ServerName, ...]:
    """Return the servers whose sessions are opened at the turn's start, in order."""
    return tuple(server for server in turn.run.servers if server not in turn.unstarted)


def with_tools_of(turn: Turn, event: m.SessionOpened) -> Turn:
    """Return the turn with a session that has opened, and its tools."""
    turn = turn.relist(event.server, event.tools)
    turn = replace(turn, open=(*turn.open, event.server))
    if event.serves_unlisted:
        turn = replace(turn, serving_unlisted=(*turn.serving_unlisted, event.server))
    return turn


def without_tools_of(turn: Turn, event: m.McpDisabled) -> Turn:
    """Return the turn without the tools of a server that was given up."""
    turn = turn.relist(event.server, ())
    return replace(turn, degraded=f"no tools from '{event.server}': {event.reason}")


def changed_tools(offered: Iterable[m.ToolDefinition], listed: Iterable[m.ToolDefinition]) -> tuple[str, ...]:
    """Return the names that do not have the same definition in both lists; their order does not matter."""
    before = {tool.name: tool for tool in offered}
    now = {tool.name: tool for tool in listed}
    return tuple(name for name in {**before, **now} if before.get(name) != now.get(name))


def start_called(state: AwaitingTools) -> tuple[AwaitingTools, Commands]:
    """Start the servers of calls that wait for them, as many as may be starting at the same time."""
    turn = state.turn
    if not turn.unstarted:
        return state, ()
    called = dict.fromkeys(run.server for run in state.unsent if run.server in turn.unstarted)
    room = max(1, turn.run.limits.starts_at_once) - len(state.starting)
    names = tuple(islice(called, max(0, room)))
    unstarted = tuple(server for server in turn.unstarted if server not in names)
    state = replace(state, turn=replace(turn, unstarted=unstarted), starting=(*state.starting, *names))
    return state, tuple(open_session(turn.run, name) for name in names)


def started(state: AwaitingTools, event: m.SessionOpened) -> tuple[AwaitingTools, m.ToolsVerified]:
    """Take over the tools of a server that was called; the next request offers them if they have changed."""
    offered, turn = state.turn, with_tools_of(state.turn, event)
    changed = changed_tools(offered.tools, without_doubles(turn.tools)[0])
    if not changed and not event.serves_unlisted:
        turn = replace(turn, tools=offered.tools, relisted=offered.relisted)
    state = replace(state, turn=turn, starting=without(state.starting, event.server))
    return state, m.ToolsVerified(request=turn.requests, changed=changed, server=event.server)
