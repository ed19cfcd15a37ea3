"""The turn as a pure state machine: `step(state, event) -> (state, commands)`.

Come here to change what a turn does next. `step` is the table of the machine; its parts stand beside it, in
`turn_sessions.py`, `turn_presuming.py`, `turn_asking.py`, `turn_replies.py`, `turn_tools.py` and
`turn_end.py`. They only decide: they do no I/O, read no clock and do not log. The agent actor feeds events to
`step` and carries out its commands. The rules:

1.  Each tool call of a reply gets exactly one tool message, in the order of the calls, before the next
    request: providers reject a conversation with an unanswered call.
2.  The calls of a reply are grouped into runs: consecutive calls to the same server. A run is sent as one
    batch, and the next run when every call of it is settled. A call to an unknown tool or with unreadable
    arguments is answered here and is not sent to any server.
    Before that, the policy judges the reply as a whole: a denied call is answered here, and if a call has to
    be approved, none is sent before a person has decided on all of them (`turn_approval.py`). Calls that the
    policy calls parallel may run at the same time, each at another server.
3.  After a timeout the session skips the other calls of the batch, and this machine skips the runs that are
    not yet sent; calls under way at other servers finish. The loop goes on, unless the policy forces the
    final answer.
4.  After a server died, the other calls of the reply are skipped and the final answer is forced. Under the
    policy `reconnect` the server is restarted instead, once in a turn, and only if an iteration is left in
    which the model could use it.
5.  Only loop requests offer tools, and only they leave the form of the reply free. Forced, repair and
    tool-less requests ask for the answer's schema and offer no tools.
6.  The final answer is forced after `max_tool_iterations` replies with tool calls, and after a reply with
    neither content nor calls. If a final reply is empty, calls tools or fails the host's check, the turn asks
    for one repair, and then uses the host's fallback: at most `max_tool_iterations` + 2 requests in all. A
    `ContextPolicy` may add its `max_summaries`, and one more after an overflow, and a presumed listing one.
7.  A reached budget forces the final answer, after the calls of its reply. A spent one leaves no repair.
8.  If it is doubtful whether the model can call tools, the turn checks that before it opens a session.
    Otherwise it checks while the sessions open. The result is known before the first tool is offered.
9.  With a `ContextPolicy`, each request is made to fit into the context window before it is sent
    (`context_fit.py`). History changes only by a `RewriteHistory`. A summary is requested beside the
    conversation; if none comes, the turn goes on without it.
10. With presumed tools (`ToolsPresumed`) the first request is sent while the sessions open. Nothing follows
    from its reply before all of them have reported. A reply that calls tools which are not as presumed is
    dropped (`turn_presuming.py`), at most one a turn.
11. Every session that the turn opened is closed before the turn ends, however it ends. A deadline or an
    interruption can arrive in any state and ends the turn. Events that arrive after that are ignored. So is
    a second `SessionClosed`: a session that is cancelled reports its close without being asked.

The states (`turn_states.py`) are named for what they wait for. Commands are in order, each note for the trace
before the command that it explains. A pair that `step` does not list raises `IllegalEvent`.

```
                                               AwaitingSummary
                                                      │ ▲ no room
                                                      ▼ │
Idle ─▶ AwaitingSupport ─▶ AwaitingSessions ─▶ AwaitingCompletion ◀──▶ AwaitingTools ─▶ AwaitingReconnect
                              ▲                       ▲ │      │            ▲   │            │
                              │          repair, once │ │      ▼            │   │            │
                              │                       │ │ AwaitingApproval ─┘   │            │
                              │                       │ ▼      │ (parked)       ▼            │
                              │                 AwaitingVerdict ─▶ AwaitingClose ─▶ Finished │
                              └──────────────────────────────────────────────────────────────┘

AwaitingSessions ─▶ Presuming ─▶ what follows from the reply
                        └──────▶ AwaitingDrop ─▶ what follows when all sessions have reported
```
"""

from msgspec.structs import replace

from grue.messages import (
    AnswerAccepted,
    AnswerRefused,
    ApprovalPostponed,
    CallsDecided,
    CompletionFailed,
    CompletionReceived,
    DeadlinePassed,
    McpDisabled,
    RunTurn,
    ServerDied,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolReturned,
    ToolsChanged,
    ToolSkipped,
    ToolsPresumed,
    ToolSupportChecked,
    ToolTimedOut,
    TurnEvent,
    TurnInterrupted,
)
from grue.protocol.turn_approval import decide, ignore, park
from grue.protocol.turn_asking import refused, summarised
from grue.protocol.turn_context import heard
from grue.protocol.turn_end import abandon, closed, fail
from grue.protocol.turn_presuming import presume, step_early, supported
from grue.protocol.turn_replies import complete, final_reply, loop_reply, refuse
from grue.protocol.turn_sessions import begin, given_up, opened, reopen, unsupported
from grue.protocol.turn_states import (
    AwaitingApproval,
    AwaitingClose,
    AwaitingCompletion,
    AwaitingDrop,
    AwaitingReconnect,
    AwaitingSessions,
    AwaitingSummary,
    AwaitingSupport,
    AwaitingTools,
    AwaitingVerdict,
    Finished,
    Idle,
    LiveState,
    Presuming,
    Transition,
    TurnState,
    without,
)
from grue.protocol.turn_tools import settle

_UNEXPECTED_AT_THE_END = (RunTurn, SessionClosed)


class IllegalEvent(Exception):  # noqa: N818 - a bug in the caller, named for what it met
    """The event cannot happen in this state; the text names both."""


def step(state: TurnState, event: TurnEvent) -> Transition:
    """Return the next state, and the commands to carry out, in order.

    Raises:
        IllegalEvent: The event cannot happen in this state.
    """
    match state, event:
        case Idle(), RunTurn():
            return begin(event)
        case _, ToolsPresumed() if not isinstance(state, Idle):
            return presume(state, event)
        case ((AwaitingSupport() | AwaitingSessions(asking=True)), ToolSupportChecked()):
            return supported(state) if event.supported else unsupported(state, event)
        case AwaitingSessions(pending=pending), SessionOpened(server=server) if server in pending:
            return opened(state, event)
        case AwaitingSessions(pending=pending), McpDisabled(server=server) if server in pending:
            return given_up(state, event)
        case AwaitingSessions(pending=pending), StartupFailed(server=server) if server in pending:
            others = without(pending, server)
            return fail(replace(state.turn, open=(*state.turn.open, *others)), event.failure)
        case ((Presuming() | AwaitingDrop()), _) if (early := step_early(state, event)) is not None:
            return early
        case AwaitingCompletion(turn=turn, phase="loop"), CompletionReceived():
            return loop_reply(heard(turn, event), event)
        case AwaitingCompletion(turn=turn, phase=phase), CompletionReceived():
            return final_reply(heard(turn, event), phase, event)
        case AwaitingCompletion(), CompletionFailed():
            return refused(state, event)
        case AwaitingSummary(), CompletionReceived() | CompletionFailed():
            return summarised(state, event)
        case AwaitingApproval(), CallsDecided():
            return decide(state, event)
        case AwaitingApproval(), ApprovalPostponed():
            return park(state, event)
        case _, CallsDecided() if not isinstance(state, Idle):
            return state, ignore(event)
        case AwaitingTools(), (ToolReturned() | ToolTimedOut() | ToolSkipped() | ServerDied()) if (
            state.waits_for(event.batch, event.call_id)
        ):
            return settle(state, event)
        case AwaitingTools(turn=turn), ToolsChanged(server=server, tools=tools) if server in turn.open:
            return replace(state, turn=turn.relist(server, tools)), ()
        case AwaitingReconnect(server=server), SessionClosed() if event.server == server:
            return reopen(state)
        case AwaitingVerdict(turn=turn), AnswerAccepted(answer=answer):
            return complete(turn, answer, state.content)
        case AwaitingVerdict(turn=turn, phase=phase), AnswerRefused(reason=reason):
            return refuse(turn, phase, reason, raw=state.content)
        case AwaitingClose(pending=pending), SessionClosed(server=server) if server in pending:
            return closed(state, server)
        case AwaitingClose(turn=turn), SessionClosed(server=server) if server in turn.run.servers:
            return state, ()
        case ((AwaitingClose() | Finished()), _) if not isinstance(event, _UNEXPECTED_AT_THE_END):
            return state, ()
        case _, DeadlinePassed() | TurnInterrupted() if isinstance(state, LiveState):
            return abandon(state, event)
        case _:
            raise IllegalEvent(f"{type(event).__name__} in state {type(state).__name__}: {event}")
