"""The turn as a pure state machine: `step(state, event) -> (state, commands)`.

`step` is the machine's table of transitions. The agent actor feeds it events and carries out its commands.
The rules:

1.  Each tool call of a reply gets exactly one tool message, in the order of the calls, before the next
    request: providers reject a conversation with an unanswered call.
2.  Before any call is sent, the `ToolPolicy` judges all calls of the reply, and a person decides on all that
    have to be approved. Denied calls, calls to unknown tools and calls with unreadable arguments are answered
    with an error. The others are grouped into runs of consecutive calls to one server. A run is sent as one
    batch, when every call of the run before is settled. Calls that the policy marks as `parallel` may run at
    the same time, each at another server.
3.  After a timeout, the calls of the reply that are not yet sent are skipped; calls under way at other
    servers finish. Then the model is asked again. With `FailurePolicy(after_timeout="force")` it is asked for
    its final answer; with `"continue"` no call is skipped.
4.  After a server died, the calls that are not yet sent are skipped. Then the final answer is forced, or the
    server is restarted: only with `FailurePolicy(after_death="reconnect")`, once in a turn, and if an
    iteration is left in which the model could use it.
5.  A request of the phase `loop` offers tools as their servers have listed them last, or probably will list
    them (rules 10 and 12). Its reply may be tool calls or text. Other requests offer no tools and ask for the
    answer, or for a summary.
6.  The final answer is forced after `max_tool_iterations` replies with tool calls, and after an empty reply
    of the phase `loop`. If another reply that should be the answer is empty, calls tools (or writes a call as
    text), is a refusal, was stopped early, or fails the host's check, the turn asks for one repair. If the
    repair fails too, the turn uses the host's fallback, or else fails. So a turn has at most
    `max_tool_iterations` + 2 requests, besides summaries, and one each after an overflow, after an early
    request that is dropped (rule 10), and after the first reply that writes tool calls as text.
7.  When tokens or money of the budget are used up, or one request is left, the calls of the last reply are
    still made, and then the final answer is forced. When the budget is used up, no repair is requested.
    Requests of servers to the model (sampling) count in the same budget.
8.  `RunTurn.support_check` says when the turn checks that the model can call tools: before it opens a
    session, while the sessions open, or not at all. The first request that offers tools waits for the result.
9.  With a `ContextPolicy`, the history is shortened when a request would not fit into the context window, if
    the window's size is known (`context/fit.py`). The machine changes the history only by `RewriteHistory`. A
    summary is requested in a copy of the conversation; if that request fails, the turn goes on without it.
10. With presumed tools (`ToolsPresumed`), which the servers will probably list, the first request is sent
    while the sessions open (`turn/sessions.py`). A reply that calls a tool which is then listed otherwise, or
    not at all, is dropped. Only the turn's first reply can be dropped, or the first after a resumption.
11. Every session that the turn opened is closed before the turn ends, however it ends. A deadline or an
    interruption ends the turn in any state of `LiveState`. After that, only the closing of sessions and the
    requests of servers to the model (rule 7) have an effect. A second `SessionClosed` of a server is ignored:
    a session that is cancelled reports its close without being asked.
12. A server that starts when it is called (`RunTurn.when_called`) is started by the first reply that calls
    it, after all calls of that reply have been decided on. Calls to it are sent when it has listed its tools.
13. A turn that forks a recorded turn gets the recorded events again, up to the fork. The commands that follow
    from these are not carried out. At the fork, `TurnForked` can replace limits, failure policy and tools.
14. If a request is to be answered by a batch of the provider, the sessions are closed and the turn waits. A
    later process repeats the recorded events and goes on; its servers start when they are called.

The states are in `turn/states.py`. A note for the trace comes before the command that it explains.

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

AwaitingCompletion or AwaitingSummary ─▶ Waiting ─▶ the same state, in a later process
```

A `TurnFailure`, such as a missed deadline, leads to AwaitingClose; if no session is open, to Finished.
"""

from msgspec.structs import replace

from grue import messages as m
from grue.protocol.turn import asking, end, resuming, sessions, tools
from grue.protocol.turn import states as s

_UNEXPECTED_AT_THE_END = (m.RunTurn, m.SessionClosed)  # other events may come late and are ignored
AGENT = "agent"

NOTED_EVENTS = (m.DeadlinePassed, m.TurnInterrupted, m.ToolsPresumed, m.TurnForked, m.WaitEnded)
"""Events that do not come through the agent's mailbox. The trace has them as notes, without a receiver."""


class IllegalEvent(Exception):  # noqa: N818 - a bug in the caller, and no error to handle
    """The event cannot happen in this state."""


def step(state: s.TurnState, event: m.TurnEvent) -> s.Transition:
    """Return the next state and the commands, in order. Raises `IllegalEvent` if `event` is not expected."""
    match state, event:
        case s.Idle(), m.RunTurn():
            return sessions.begin(event)  # check the model, open the sessions, or ask (rule 8)
        case _, m.ToolsPresumed() if not isinstance(state, s.Idle):
            return sessions.presume(state, event)  # ask early, if that is allowed (rule 10)
        case s.AwaitingSupport() | s.AwaitingSessions(asking=True), m.ToolSupportChecked():
            # the check has shown whether the model can call tools (rule 8)
            return sessions.supported(state) if event.supported else sessions.unsupported(state, event)
        case s.AwaitingSessions(), m.SessionOpened() | m.McpDisabled() if event.server in state.pending:
            return sessions.reported(state, event)  # wait for all sessions and the check (rule 8)
        case s.AwaitingSessions(pending=pending), m.StartupFailed(server=server) if server in pending:
            # close the open sessions, and those that are still opening (rule 11)
            others = s.without(pending, server)
            return end.fail(replace(state.turn, open=(*state.turn.open, *others)), event.failure)
        case s.Presuming() | s.AwaitingDrop(), _ if (early := sessions.step_early(state, event)) is not None:
            return early  # the event concerns presumed tools (rule 10)
        case s.AwaitingCompletion(turn=turn, phase="loop"), m.CompletionReceived():
            # the reply has tool calls, or an answer, or neither (rules 1, 2, 6, 7)
            return tools.loop_reply(asking.heard(turn, event), event)
        case s.AwaitingCompletion(turn=turn, phase=phase), m.CompletionReceived():
            # check the answer, ask for a repair, or end the turn (rule 6)
            return tools.final_reply(asking.heard(turn, event), phase, event)
        case s.AwaitingCompletion(), m.CompletionFailed():
            return asking.refused(state, event)  # shorten a too long request (rule 9), or end the turn
        case s.AwaitingCompletion() | s.AwaitingSummary(), m.CompletionPostponed():
            return resuming.postponed(state, event)  # a provider's batch will answer (rule 14)
        case s.Waiting() | s.AwaitingCompletion() | s.AwaitingSummary(), m.WaitEnded():
            return resuming.waited(state), ()  # a later process goes on with the turn (rule 14)
        case s.Waiting(pending=pending), m.SessionClosed(server=server) if server in pending:
            # close all sessions, then wait for the provider's batch (rule 14)
            return resuming.closed_to_wait(state, server)
        case s.AwaitingSummary(), m.CompletionReceived() | m.CompletionFailed():
            return asking.summarised(state, event)  # go on with the summary, or without (rule 9)
        case s.AwaitingApproval(), m.CallsDecided():
            return tools.decide(state, event)  # a person has decided about calls (rule 2)
        case s.AwaitingApproval(), m.ApprovalPostponed():
            return tools.park(state, event)  # no person decides now: park the turn (`turn/tools.py`)
        case _, m.CallsDecided() if not isinstance(state, s.Idle):
            return state, tools.ignore(event)  # the decisions come too late (`turn/tools.py`)
        case s.AwaitingTools(), (m.ToolReturned() | m.ToolTimedOut() | m.ToolSkipped() | m.ServerDied()) if (
            state.waits_for(event.batch, event.call_id)
        ):
            return tools.settle(state, event)  # a call has ended (rules 1 to 4)
        case s.AwaitingTools(starting=starting), (
            m.SessionOpened() | m.McpDisabled() | m.StartupFailed()
        ) if event.server in starting:
            return tools.called_first(state, event)  # a server that starts when called has reported (rule 12)
        case s.AwaitingTools(turn=turn), m.ToolsChanged(server=server, tools=listed) if server in turn.open:
            # the next request offers the tools that the server lists now (rule 5)
            return replace(state, turn=turn.relist({server: listed})), ()
        case s.AwaitingReconnect(server=server), m.SessionClosed() if event.server == server:
            return sessions.reopen(state)  # restart the server that has died (rule 4)
        case s.AwaitingVerdict(turn=turn), m.AnswerAccepted(answer=answer):
            return tools.complete(turn, answer, state.content)  # the answer is accepted (rule 6)
        case s.AwaitingVerdict(), m.AnswerRefused(reason=reason):
            return tools.refuse_answer(state, reason)  # ask for a repair, or end the turn (rule 6)
        case _, m.ServerSampled() if isinstance(state, s.LiveState | s.AwaitingClose):
            return end.sampled(state, event), ()  # count a server's request to the model, too (rule 7)
        case s.AwaitingClose(pending=pending), m.SessionClosed(server=server) if server in pending:
            return end.closed(state, server)  # the turn ends when all sessions are closed (rule 11)
        case s.AwaitingClose() | s.Waiting(), m.SessionClosed() if event.server in state.turn.run.servers:
            return state, ()  # a second `SessionClosed` is ignored (rule 11)
        case s.AwaitingClose() | s.Waiting() | s.Finished(), _ if not isinstance(
            event, _UNEXPECTED_AT_THE_END
        ):
            return state, ()  # other events come too late and are ignored (rule 11)
        case _, m.TurnForked() if isinstance(state, s.LiveState):
            # take the fork's limits, failure policy and tools (rule 13)
            return resuming.forked(state, event), ()
        case _, m.DeadlinePassed() | m.TurnInterrupted() if isinstance(state, s.LiveState):
            # a deadline or an interruption ends the turn (rule 11)
            return end.abandon(state, event)
        case _:
            raise IllegalEvent(f"{type(event).__name__} in state {type(state).__name__}: {event}")
