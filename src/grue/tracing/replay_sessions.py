"""Replay the sessions of a recorded turn: connection attempts and the calls of each batch.

The servers' behaviour (connected or not, answered, died) is taken import math
from the recording. The session's decisions
are computed again and compared.
"""

import math
from collections import deque
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tool_loop import AGENT
from grue.protocol.tools.calls import (
    BatchArrived,
    CallSettled,
    MakeCall,
    NoBatch,
    ReadChangedTools,
    ReportSettlement,
    batch_step,
)
from grue.protocol.turn.connection import (
    Attempt,
    AttemptFailed,
    ConnectionCommand,
    ConnectionState,
    ConnectRequested,
    ConnectSucceeded,
    Disabled,
    Proven,
    ReportDisabled,
    ReportStartupFailure,
    Settled,
    Untried,
    connection_step,
)
from grue.tracing.differences import Comparison
from grue.tracing.divergence import Divergence, derived
from grue.tracing.reading import EpisodeEnvelope
from grue.tracing.replay_agent import AgentTurn, same_redacted
from grue.tracing.turn_slices import TurnSlice, causes

_Outcome = m.SessionOpened | m.McpDisabled | m.StartupFailed
_SentMessage = m.ConnectFailed | _Outcome | m.ToolCalled | CallSettled


class Connections:
    """The connection state of each server between turns, computed from the trace."""

    def __init__(self) -> None:
        self._known: dict[m.ServerName, Settled] = {}
        self._recorded: dict[m.ServerName, Settled] = {}

    def of(self, server: m.ServerName) -> Settled:
        """Return a server's state at the beginning of a turn."""
        return self._known.get(server, Untried())

    def begin(self, turn_slice: TurnSlice) -> None:
        """Begin a turn. A resumed episode gets the state that its trace records."""
        if turn_slice.resumed:
            self._known = dict(self._recorded)

    def learn(self, turn_slice: TurnSlice) -> None:
        """Update each server's state with what happened in a turn."""
        connecting: set[str] = set()
        learned: dict[m.ServerName, Settled] = {}
        for envelope in turn_slice.envelopes:
            body = envelope.body
            if isinstance(body, m.OpenSession) and envelope.sender == AGENT:
                connecting.add(body.server)
            if envelope.receiver != AGENT:
                continue
            if isinstance(body, _Outcome):
                connecting.discard(envelope.sender)
                learned[m.ServerName(envelope.sender)] = _after(body)
                if not isinstance(body, m.StartupFailed):
                    self._recorded[m.ServerName(envelope.sender)] = _after(body)
            elif isinstance(body, m.SessionClosed) and envelope.cause is not None:
                # The turn ran out of time; the server's state is as before.
                connecting.discard(envelope.sender)
        # A session that is cancelled while it connects leaves the server's state unchanged.
        self._known.update({name: state for name, state in learned.items() if name not in connecting})


def _after(outcome: _Outcome) -> Settled:
    match outcome:
        case m.SessionOpened():
            return Proven()
        case m.McpDisabled(reason=reason):
            return Disabled(reason, until_s=0.0)  # `_open` knows whether it was time to try again
        case m.StartupFailed():
            return Untried()


class SessionsReplay(Struct, frozen=True):
    """How many messages of all sessions were compared, and each session's first difference."""

    compared: int
    divergences: tuple[Divergence, ...]


def replay_sessions(
    turn: AgentTurn,
    turn_slice: TurnSlice,
    connections: Connections,
    commands: Mapping[int, m.TurnCommand | m.TurnNote],
) -> SessionsReplay:
    """Replay the sessions of a turn.

    Args:
        turn: The turn.
        turn_slice: The turn's slice of the trace.
        connections: The state of the servers when the turn began.
        commands: Commands that replace recorded ones, by the number of the recorded message.
    """
    compared = 0
    found: list[Divergence] = []
    for server in turn.run.servers:
        session = _Session(server, turn, turn_slice, connections.of(server))
        try:
            session.drive(commands)
        except _Diverged as diverged:
            found.append(diverged.divergence)
        compared += session.compared
    return SessionsReplay(compared, tuple(found))


class _Diverged(Exception):  # noqa: N818 - it ends a session's replay, wherever that is
    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence


class _Session:
    """One server's session, over a turn."""

    def __init__(
        self, server: m.ServerName, turn: AgentTurn, turn_slice: TurnSlice, connection: ConnectionState
    ) -> None:
        self.compared = 0
        self._server = server
        self._turn = turn
        self._connection = connection
        self._connected = False
        self._received = [envelope for envelope in turn_slice.envelopes if envelope.receiver == server]
        self._sent = deque(
            envelope
            for envelope in turn_slice.envelopes
            if envelope.sender == server and isinstance(envelope.body, _SentMessage)
        )
        self._comparison = Comparison(same_text=same_redacted if turn.redacted else None)

    def drive(self, commands: Mapping[int, m.TurnCommand | m.TurnNote]) -> None:
        for envelope in self._received:
            match commands.get(envelope.seq, envelope.body):
                case m.OpenSession() as command:
                    self._open(command, envelope)
                case m.CallTools() as command:
                    self._call(command, envelope)
                case m.CloseSession():
                    self._connected = False
                case _:
                    pass
        if self._sent:
            raise self._diverged(self._sent[0], None)

    def _open(self, command: m.OpenSession, cause: EpisodeEnvelope) -> None:
        first = self._sent[0].body if self._sent else None
        left_alone = isinstance(first, m.McpDisabled) and not first.newly
        if isinstance(first, m.McpDisabled) and left_alone:
            # A host may disable a server between two turns, with a reason of its own.
            self._connection = Disabled(first.reason)
        at_s = 0.0 if left_alone else math.inf  # the recording says whether it was time to try again
        order: ConnectionCommand | None = self._step(ConnectRequested(command.policy, at_s))
        while isinstance(order, Attempt):
            order = self._attempt(order, cause)
        match order:
            case ReportDisabled(reason, newly, last_words, retry_s):
                recorded = self._sent[0].body if self._sent else None
                if isinstance(recorded, m.McpDisabled):
                    # Old traces lack both, and an earlier turn's wait depends on the clock.
                    last_words, retry_s = recorded.last_words, recorded.retry_s
                disabled = m.McpDisabled(
                    server=self._server, reason=reason, newly=newly, last_words=last_words, retry_s=retry_s
                )
                self._expect(disabled, cause)
            case ReportStartupFailure(failure):
                self._expect(m.StartupFailed(server=self._server, failure=failure), cause)
            case _:
                pass

    def _attempt(self, attempt: Attempt, cause: EpisodeEnvelope) -> ConnectionCommand | None:
        """Return the next command; `None`: the recording of this session's start ends here."""
        recorded = self._sent[0] if self._sent else None
        match recorded.body if recorded is not None else None:
            case m.ConnectFailed() as failed:
                order = self._step(AttemptFailed(failed.failure))
                then = {Attempt: "retry", ReportStartupFailure: "raise"}.get(type(order), "disable")
                self._expect(replace(failed, attempt=attempt.number, then=then), cause)
                return order
            case m.SessionOpened() as opened:
                self._connected = True
                self._expect(replace(opened, attempt=attempt.number), cause)
                return self._step(ConnectSucceeded())
            case None:
                return None
            case _:
                reason = f"connect attempt {attempt.number} should follow here, but it is not in the trace"
                raise self._diverged(recorded, None, cause, reason)

    def _call(self, batch: m.CallTools, cause: EpisodeEnvelope) -> None:
        state, commands = batch_step(NoBatch(), BatchArrived(batch, connected=self._connected))
        while commands:
            settled: CallSettled | None = None
            for command in commands:
                match command:
                    case MakeCall(called):
                        settled = self._refused(called)
                        if settled is None:
                            self._expect(called, cause)
                            settled = self._settlement(called, cause)
                    case ReportSettlement(settlement):
                        self._expect(settlement, cause)
                    case ReadChangedTools():
                        pass  # the recording says whether they had changed
            if settled is None:
                return  # the last of the batch, or the session was cancelled
            state, commands = batch_step(state, settled)

    def _refused(self, called: m.ToolCalled) -> m.ToolSkipped | None:
        """Return the settlement of a call that was refused before it was sent; `None`: it was sent."""
        body = self._sent[0].body if self._sent else None
        if isinstance(body, m.ToolSkipped) and body.refused and body.call_id == called.call_id:
            return replace(body, batch=called.batch)
        return None

    def _settlement(self, called: m.ToolCalled, cause: EpisodeEnvelope) -> CallSettled | None:
        """Return a call's settlement from the recording; `None`: the session was cancelled."""
        if not self._sent:
            return None
        recorded = self._sent[0]
        settled = recorded.body
        if not isinstance(settled, CallSettled) or settled.call_id != called.call_id:
            raise self._diverged(recorded, None, cause, f"the call {called.call_id} must be settled first")
        return replace(settled, batch=called.batch)

    def _expect(self, body: m.TurnEvent | m.SessionNote, cause: EpisodeEnvelope) -> None:
        """Compare the next recorded message with `body`. If no message follows, the session was cancelled."""
        if not self._sent:
            return
        recorded = self._sent[0]
        found = tuple(self._comparison.differences(recorded.body, body))
        if found:
            noted = isinstance(body, m.ConnectFailed | m.ToolCalled)
            expected = derived(
                body,
                sender=self._server,
                receiver="trace" if noted else AGENT,
                turn=self._turn.run.turn,
                cause=cause.seq,
            )
            because = (*causes(cause, self._turn.by_seq), cause)
            raise _Diverged(
                Divergence(
                    turn=self._turn.run.turn,
                    left=recorded,
                    right=expected,
                    differences=found,
                    because=because,
                )
            )
        self._sent.popleft()
        self.compared += 1

    def _diverged(
        self,
        recorded: EpisodeEnvelope | None,
        expected: EpisodeEnvelope | None,
        cause: EpisodeEnvelope | None = None,
        reason: str = "",
    ) -> _Diverged:
        because: tuple[EpisodeEnvelope, ...] = ()
        if cause is not None:
            because = (*causes(cause, self._turn.by_seq), cause)
        elif recorded is not None:
            because = causes(recorded, self._turn.by_seq)
        turn = self._turn.run.turn
        return _Diverged(Divergence(turn=turn, left=recorded, right=expected, because=because, reason=reason))

    def _step(self, event: ConnectRequested | ConnectSucceeded | AttemptFailed) -> ConnectionCommand:
        self._connection, order = connection_step(self._connection, event)
        return order
