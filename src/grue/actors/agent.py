"""The agent actor: runs one turn by driving the turn's state machine.

All decisions are made by `step` in `protocol/tool_loop.py`; this module performs its commands. Deadlines and
cancellations are events too, so that the sessions are closed and the trace says why the turn ended.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import TypeAlias, assert_never

import anyio
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tool_loop import step
from grue.protocol.turn import states as s
from grue.runtime.actor import Actor, Mailbox, MailboxClosed, Note, reply
from grue.runtime.loops.beside_loop import Pace, aside
from grue.runtime.trace.recorder import Envelope

Check: TypeAlias = Callable[[str], m.AnswerAccepted | m.AnswerRefused]  # an exception crashes the agent

_CLOSING_S = 5.0


class AgentActor(Actor[m.TurnEvent]):
    """Runs one turn. Replies to `RunTurn` when the turn ends, is parked or awaits a provider's batch."""

    def __init__(
        self,
        mailbox: Mailbox[m.TurnEvent],
        *,
        llm: Mailbox[m.LlmCommand],
        sessions: Mapping[m.ServerName, Mailbox[m.SessionCommand]],
        check: Check,
        note: Note,
        deadline: float = float("inf"),
    ) -> None:
        super().__init__(mailbox)
        self._llm = llm
        self._sessions = sessions
        self._check = check
        self._note = note
        self._deadline = deadline  # on the event loop's clock; closing sessions may take longer
        self._state: s.TurnState = s.Idle()
        self._before: s.TurnState = self._state
        self._asked: Envelope[m.TurnEvent] | None = None
        self._pace = Pace()
        self.approval: Mailbox[m.AskApproval] | None = None  # `None`: the policy never asks
        self.presumed: m.ToolsPresumed | None = None  # recorded after `RunTurn`; `None`: nothing is presumed
        self.forked: m.TurnForked | None = None  # recorded after `RunTurn`; `None` also if `recall` gets it
        self.on_step: Callable[[], None] | None = None  # called when the agent has handled an event
        self.end: m.TurnEnd | m.TurnWaits | None = None  # the reply to `RunTurn`, once it is sent
        self.last_request: m.RequestCompletion | None = None
        # The turn's part of the conversation, without requests for a summary and their replies.
        self.said: list[m.RequestCompletion | m.CompletionReceived | m.ReplyDropped] = []

    @property
    def is_presuming(self) -> bool:
        """`True` if the current request offers presumed tools, so that its reply may still be dropped."""
        return isinstance(self._state, s.Presuming | s.AwaitingDrop)

    @property
    def may_presume(self) -> bool:
        """`True` if `is_presuming` may become true later: the agent still waits for `ToolSupportChecked`."""
        state = self._state
        asking = isinstance(state, s.AwaitingSessions) and state.asking
        return asking or isinstance(state, s.AwaitingSupport)

    @property
    def awaits_model(self) -> bool:
        """`True` if the agent waits for a reply of the model."""
        state = self._state
        presuming = isinstance(state, s.Presuming) and state.reply is None
        return presuming or isinstance(state, s.AwaitingCompletion | s.AwaitingSummary)

    @property
    def tools(self) -> tuple[m.ToolDefinition, ...]:
        """The tools so far; empty before and after a turn. Any thread may read them: states are immutable."""
        state = self._state
        return () if isinstance(state, s.Idle | s.Finished) else state.turn.tools

    @property
    def progress(self) -> s.TurnProgress:
        """What the turn is doing now, and its counts so far. Any thread may read it: states are immutable."""
        seen, before = self._state, self._before
        if not isinstance(seen, s.Finished):
            return s.progress_of(seen)
        return replace(s.progress_of(before), doing=s.progress_of(seen).doing)

    @property
    def sampled(self) -> int:
        """How many requests of servers (sampling) were counted in this turn; 0 before and after the turn."""
        return 0 if isinstance(self._state, s.Idle | s.Finished) else self._state.turn.sampled

    def result_of(self, call_id: m.CallId) -> m.ToolCallResult | None:
        """Return the uncut result of a call of this turn; `None`: no result so far, or the turn is over."""
        state = self._state
        if isinstance(state, s.Idle | s.Finished):
            return None
        settled = state.settled if isinstance(state, s.AwaitingTools) else ()
        records = (*settled, *reversed(state.turn.records))
        return next((record.result for record in records if record.call_id == call_id), None)

    def recall(self, asked: Envelope[m.TurnEvent], events: Iterable[m.TurnEvent]) -> None:
        """Pass a recorded turn's events, from `RunTurn` on, to the state machine. Perform no commands."""
        # `asked` is the recorded `RunTurn`. When the turn ends later, the agent replies to `asked`.
        self._asked = asked
        for event in events:
            self._before, (self._state, commands) = self._state, step(self._state, event)
            self._note_reply(event)
            for command in commands:
                if isinstance(command, m.RequestCompletion):
                    self._note_request(command)

    def not_closed(self, failed: m.TurnFailed) -> m.TurnFailed:
        """Complete and record `failed`, the end of a turn whose sessions did not close within its time limit.

        A turn that was to be parked gets no end in the trace, so that it can be resumed.
        """
        if not isinstance(self._state, s.AwaitingClose) or self._asked is None:
            return failed
        end = self._state.end
        failed = replace(failed, iterations=end.iterations, tool_calls=end.tool_calls, untold=end.untold)
        if not isinstance(end, m.TurnParked):
            self.end = failed = replace(failed, unread=isinstance(end, m.TurnFailed) and end.unread)
            self._note(failed, sender="supervisor", cause=self._asked.seq)
        return failed

    async def run(self) -> None:
        """Run the turn. If this task is cancelled, close the turn's sessions within a time limit first."""
        try:
            while not self._is_over:
                await self.receive(await self._next())
        except anyio.EndOfStream:
            if not isinstance(self._state, s.Idle):
                raise
        except anyio.get_cancelled_exc_class():
            await self._wind_up()
            raise

    async def receive(self, envelope: Envelope[m.TurnEvent]) -> None:
        """Pass one event to the state machine and perform the commands that it returns."""
        if isinstance(envelope.body, m.RunTurn):
            self._asked = envelope
        following, commands = await self._step(envelope)
        self._note_reply(envelope.body)
        self._before, self._state = self._state, following
        if len(commands) > 1:
            self._pace.paused()  # while this task waited for the event, other tasks could run
        for place, command in enumerate(commands):
            if place:
                # Thousands of commands, or megabytes, take long to record: let other tasks run first. This
                # must not be cancelled: a trace with only some of an event's commands could not be replayed.
                await self._pace.pause_shielded()
            await self._perform(command, envelope.seq)
        if isinstance(following, s.AwaitingClose | s.Waiting):
            # In this process the turn does not ask the model again: end the LLM actor while sessions close.
            self._llm.close()
        # Record `forked` and `presumed`, so that a replay finds them, and pass them to the state machine. Do
        # this after the commands of `RunTurn`, so that it does not delay the start of the servers.
        first = (self.forked, self.presumed) if isinstance(envelope.body, m.RunTurn) else ()
        noted = [event for event in first if event is not None]
        for event in noted:
            await self.receive(self._note(event, sender=self.name))
        if not noted and self.on_step is not None:
            self.on_step()

    async def _step(self, envelope: Envelope[m.TurnEvent]) -> s.Transition:
        if not envelope.is_long:
            return step(self._state, envelope.body)
        # A long event may have long arguments, which take long to parse: a thread calls `step`. A
        # cancellation waits for it: a trace with an event, but without its commands, could not be replayed.
        outcome: list[s.Transition] = []
        with anyio.CancelScope(shield=True):
            outcome.append(await aside(step, self._state, envelope.body))
        return outcome[0]

    def _note_request(self, request: m.RequestCompletion) -> None:
        self.last_request = request
        if not request.aside:
            self.said.append(request)

    def _note_reply(self, event: m.TurnEvent) -> None:
        asked = self.last_request
        if isinstance(event, m.CompletionReceived | m.ReplyDropped) and asked is not None and not asked.aside:
            self.said.append(event)

    async def _next(self) -> Envelope[m.TurnEvent]:
        if self._deadline != inf and not isinstance(self._state, s.Idle | s.AwaitingClose | s.Waiting):
            with anyio.CancelScope(deadline=self._deadline):
                return await self.mailbox.receive()
            return self._note(self._deadline_passed(), sender="clock")
        return await self.mailbox.receive()

    async def _wind_up(self) -> None:
        if self._asked is None and len(self.mailbox):
            with anyio.CancelScope(shield=True):
                unread = await self.mailbox.receive()
            if isinstance(unread.body, m.RunTurn):  # the turn never ran: record why its end is missing
                self._note(m.TurnInterrupted(reason="cancelled"), sender="supervisor")
        if self._asked is None or not isinstance(self._asked.body, m.RunTurn):
            return
        limits = self._asked.body.limits
        kept_s = limits.teardown_s if limits.turn_timeout_s is None else None
        bound = anyio.current_time() + (_CLOSING_S if kept_s is None else kept_s)
        with anyio.CancelScope(shield=True, deadline=bound):
            if anyio.current_time() < self._deadline:
                interrupted = m.TurnInterrupted(reason="cancelled")
                await self.receive(self._note(interrupted, sender="supervisor"))
            else:
                # The time is up: most likely the turn's limit, and not the host, has cancelled this task.
                await self.receive(self._note(self._deadline_passed(), sender="clock"))
            while not self._is_over:
                if not len(self.mailbox):
                    await self._give_up_lost_sessions()
                await self.receive(await self.mailbox.receive())

    async def _give_up_lost_sessions(self) -> None:
        # A session's actor can end before it has reported `SessionClosed`, for example because an observer
        # raised an exception. If the agent's mailbox is empty, no report will come from an ended actor.
        if isinstance(self._state, s.AwaitingClose | s.Waiting):
            for server in self._state.pending:
                if self._sessions[server].is_closed:
                    await self.mailbox.send(m.SessionClosed(server=server), sender=server)

    async def _perform(self, command: m.TurnCommand | m.TurnNote, cause: int) -> None:
        match command:
            case m.ToLlm():
                await self._llm.send(command, sender=self.name, cause=cause)
                if isinstance(command, m.RequestCompletion):
                    self._note_request(command)
            case m.CloseSession():
                await self._close(command, cause)
            case m.ToSession():
                await self._sessions[command.server].send(command, sender=self.name, cause=cause)
            case m.CheckAnswer():
                asked = self._note(command, sender=self.name, cause=cause)
                verdict = self._check(command.content)
                await self.mailbox.send(verdict, sender=self.name, cause=asked.seq)
            case m.AskApproval():
                assert self.approval is not None, "a policy that asks has somebody to ask"
                await self.approval.send(command, sender=self.name, cause=cause)
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() | m.TurnWaits():
                assert self._asked is not None, "a turn ends only after it began"
                self.end = command
                reply(self._asked, command)
            case m.TurnNote():
                self._note(command, sender=self.name, cause=cause)
            case _:
                assert_never(command)

    @property
    def _is_over(self) -> bool:
        state = self._state
        return isinstance(state, s.Finished) or (isinstance(state, s.Waiting) and not state.pending)

    async def _close(self, command: m.CloseSession, cause: int) -> None:
        try:
            await self._sessions[command.server].send(command, sender=self.name, cause=cause)
        except MailboxClosed:
            # The session's actor has ended already. Report the close in its place: otherwise the agent would
            # wait for `SessionClosed` until its time limit.
            closed = m.SessionClosed(server=command.server)
            await self.mailbox.send(closed, sender=command.server, cause=cause)

    def _deadline_passed(self) -> m.DeadlinePassed:
        assert self._asked is not None, "the deadline counts only in a turn"
        assert isinstance(self._asked.body, m.RunTurn), "only RunTurn is asked"
        limits = self._asked.body.limits
        return m.DeadlinePassed(limit_s=limits.turn_timeout_s or 0.0, kept_s=limits.teardown_s or 0.0)
