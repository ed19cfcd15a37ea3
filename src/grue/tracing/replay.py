"""Replay an episode: run its pure parts again on the recorded events, and compare the results.

The pure parts are the turn's state machine (`protocol/tool_loop.py`), the connection policy
(`protocol/turn/connection.py`) and what a session does after a call is settled. Of the LLM actor, only the
order of its messages is checked. What would follow the first difference in a turn is not in the trace, so the
replay goes on with the next recorded turn.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import Literal, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import FailurePolicy
from grue.protocol.tool_loop import AGENT, NOTED_EVENTS, IllegalEvent, step
from grue.protocol.tools import calls
from grue.protocol.turn import connection as conn
from grue.protocol.turn.states import Finished, Idle, TurnState
from grue.runtime.actor import ActorFailed
from grue.tracing.changes import Changes
from grue.tracing.divergence import Comparison, Divergence, derived
from grue.tracing.facts import counted
from grue.tracing.reading import EpisodeEnvelope
from grue.tracing.turn_slices import TurnSlice, causes, split_turns

ReplayEnd: TypeAlias = Literal["finished", "crashed", "interrupted", "unfinished"]
"""How a turn's replay ended; `unfinished`: the trace lacks the turn's end, or the agent's replay diverged."""

_Ending: TypeAlias = tuple[ReplayEnd, Divergence | None]
_FOLLOWS = frozenset({"whole_chars"})  # not compared: it differs if a secret in the text was replaced


class _AgentTurn:
    """A turn's messages, in groups: what its agent got, and what it said. `begun` has the body `run`."""

    def __init__(
        self, turn_slice: TurnSlice, begun: EpisodeEnvelope, run: m.RunTurn, *, cut_off: bool
    ) -> None:
        self.begun = begun
        self.run = run
        self.cut_off = cut_off  # whether the process may have been killed in the turn
        # The whole slice, with the host's facts before and after the turn.
        self.envelopes: Sequence[EpisodeEnvelope] = turn_slice.envelopes
        self.by_seq = {envelope.seq: envelope for envelope in self.envelopes}
        self.inbox: list[EpisodeEnvelope] = []
        self.noted: list[EpisodeEnvelope] = []  # `NOTED_EVENTS`, which do not come through the mailbox
        self.said: list[EpisodeEnvelope] = []  # the agent's messages and notes
        self.crash: ActorFailed | None = None  # the agent's crash, if it crashed
        for envelope in self.envelopes:
            body = envelope.body
            if envelope.receiver == AGENT:
                self.inbox.append(envelope)
            elif isinstance(body, NOTED_EVENTS):
                self.noted.append(envelope)
            elif isinstance(body, ActorFailed):
                self.crash = body if body.actor == AGENT else self.crash
            elif envelope.sender == AGENT:
                self.said.append(envelope)

    @property
    def is_fork(self) -> bool:
        return any(isinstance(envelope.body, m.TurnForked) for envelope in self.noted)

    @property
    def redacted(self) -> bool:
        return any(envelope.redacted for envelope in (*self.inbox, *self.said))

    @property
    def interrupted(self) -> bool:
        """`True` if the agent was cancelled."""
        return any(isinstance(envelope.body, m.TurnInterrupted) for envelope in self.noted)

    @property
    def may_stop(self) -> bool:
        """`True` if the agent may have ended before it recorded all commands of its state machine."""
        if any(isinstance(envelope.body, m.TurnEnd) for envelope in self.said):
            return False
        # If the agent has sent nothing (`not self.said`), it was cancelled before it read its first message.
        return self.cut_off or self.crash is not None or self.interrupted or not self.said

    def up_to(self, envelope: EpisodeEnvelope) -> tuple[EpisodeEnvelope, ...]:
        return (*causes(envelope, self.by_seq), envelope)

    def unexpected(
        self, recorded: EpisodeEnvelope, reason: str = "", *, after: EpisodeEnvelope | None = None
    ) -> Divergence:
        """Return a divergence at `recorded`; `after`: the message to name as the cause of `recorded`."""
        because = causes(recorded, self.by_seq) if after is None else self.up_to(after)
        return Divergence(turn=self.run.turn, left=recorded, right=None, because=because, reason=reason)


class _AgentReplay:
    """A replay of a turn's agent, with its events in `order`: its `end`, and how many messages agreed."""

    def __init__(self, turn: _AgentTurn, changes: Changes, order: Sequence[EpisodeEnvelope]) -> None:
        self._turn = turn
        self._changes = changes
        self._taken: set[int] = set()
        self._comparison = Comparison(ignored=_FOLLOWS, same_text=same_redacted if turn.redacted else None)
        self.compared = 0
        self.commands: dict[int, m.TurnCommand | m.TurnNote] = {}
        self.end, self.divergence = self._replayed(order)

    def _replayed(self, order: Sequence[EpisodeEnvelope]) -> _Ending:
        state: TurnState = Idle()
        for event in order:
            if isinstance(state, Finished):
                break  # the agent reads no messages after the turn's end
            try:
                state, commands = step(state, self._body(event))
            except IllegalEvent as error:
                return self._refused(event, str(error))
            for command in commands:
                if self._had_nobody_to_tell(command, event):
                    continue
                if self.compared == len(self._turn.said) and self._turn.may_stop:
                    return self._early_end(), None
                if (divergence := self._compare(command, event)) is not None:
                    return "unfinished", divergence
            self._taken.add(event.seq)
        if self.compared < len(self._turn.said):
            return "unfinished", self._turn.unexpected(self._turn.said[self.compared])
        return "finished" if isinstance(state, Finished) else self._early_end(), None

    def _body(self, envelope: EpisodeEnvelope) -> m.TurnEvent:
        body = envelope.body
        if isinstance(body, m.RunTurn):
            return self._changes.run(body)
        if isinstance(body, m.CompletionReceived) and envelope.redacted:
            quoted = (replace(call, arguments=quote_placeholders(call.arguments)) for call in body.tool_calls)
            return replace(body, tool_calls=tuple(quoted))
        return body  # type: ignore[return-value]  # the state machine refuses other messages

    def _compare(self, command: m.TurnCommand | m.TurnNote, event: EpisodeEnvelope) -> Divergence | None:
        said = self._turn.said
        recorded = said[self.compared] if self.compared < len(said) else None
        expected = derived(
            command, sender=AGENT, receiver=self._receiver(command), turn=self._turn.run.turn, cause=event.seq
        )
        # These messages answer the host's `RunTurn`, which is their cause.
        ends = isinstance(command, m.TurnEnd | m.TurnWaits)
        cause = self._turn.begun.seq if ends else event.seq
        if recorded is not None and recorded.cause != cause and recorded.cause in self._taken:
            return self._turn.unexpected(recorded)
        if recorded is None or recorded.cause not in (None, cause):
            because = self._turn.up_to(event)
            return Divergence(turn=self._turn.run.turn, left=None, right=expected, because=because)
        self.commands[recorded.seq] = command
        carried = self._changes.carried(command, recorded.body)
        found = tuple(self._comparison.differences(recorded.body, carried))
        if found:
            unlike = self._turn.unexpected(recorded, after=event)
            return replace(unlike, right=expected, differences=found)
        self.compared += 1
        return None

    def _receiver(self, command: m.TurnCommand | m.TurnNote) -> str:
        match command:
            case m.ToSession():
                return command.server
            case m.ToLlm():
                return "llm"
            case m.AskApproval():
                return "approval"
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() | m.TurnWaits():
                return self._turn.begun.sender
            case m.TurnNote() | m.CheckAnswer():
                return "trace"

    def _had_nobody_to_tell(self, command: m.TurnCommand | m.TurnNote, event: EpisodeEnvelope) -> bool:
        """Return whether the agent answered `command` itself, because the session's actor had ended."""
        return isinstance(command, m.CloseSession) and any(
            isinstance(message.body, m.SessionClosed)
            and message.sender == command.server
            and message.cause == event.seq
            for message in self._turn.inbox
        )

    def _refused(self, event: EpisodeEnvelope, error: str) -> _Ending:
        turn = self._turn
        if self.compared == len(turn.said):
            if turn.crash is not None and turn.crash.error.startswith(IllegalEvent.__name__):
                return "crashed", None
            if turn.cut_off and turn.may_stop:
                return "unfinished", None  # the event was still in the mailbox when the host was killed
        return "unfinished", turn.unexpected(event, f"the agent's state machine does not accept it: {error}")

    def _early_end(self) -> ReplayEnd:
        if self._turn.crash is not None:
            return "crashed"
        return "interrupted" if self._turn.interrupted else "unfinished"


def _replay_agent(turn: _AgentTurn, changes: Changes) -> _AgentReplay:
    """Replay a turn with its events in up to 1000 orders, until a replay agrees; return the best replay."""
    best: _AgentReplay | None = None
    for order in islice(_orders(turn), _MOST_ORDERS):
        replay = _AgentReplay(turn, changes, order)
        if replay.divergence is None:
            return replay
        best = max(best or replay, replay, key=lambda each: each.compared)
    # In an invalid trace the events may have no possible order.
    return best or _AgentReplay(turn, changes, turn.inbox)


_MOST_ORDERS = 1000  # a forged trace can have billions of possible orders


def _orders(turn: _AgentTurn) -> Iterator[Sequence[EpisodeEnvelope]]:
    """Yield the orders in which the agent can have handled its events, the most likely first."""
    # Messages in the mailbox keep their order. The agent handles an event from the clock or the supervisor at
    # once, before messages in the mailbox, but after each message whose effects were recorded before it.
    answered = {envelope.cause: envelope.seq for envelope in reversed(turn.said)}
    places: list[range] = []
    for note in turn.noted:
        entered = sum(message.seq < note.seq for message in turn.inbox)
        read = [n for n, message in enumerate(turn.inbox) if answered.get(message.seq, note.seq) < note.seq]
        places.append(range(entered, max(read, default=0), -1))
    for chosen in _rising(places):
        order = list(turn.inbox)
        for note, place in reversed(list(zip(turn.noted, chosen, strict=True))):
            order.insert(place, note)
        yield order


def _rising(places: Sequence[range]) -> Iterator[Sequence[int]]:
    """Yield all non-decreasing tuples with one number from each falling range, the largest tuple first."""
    highest = [*accumulate((place.start for place in reversed(places)), min)][::-1]
    if any(most <= place.stop for most, place in zip(highest, places, strict=True)):
        return
    chosen = highest[:]
    while True:
        yield tuple(chosen)
        for n in reversed(range(len(chosen))):
            if chosen[n] > places[n].stop + 1 and (n == 0 or chosen[n] > chosen[n - 1]):
                chosen[n:] = [chosen[n] - 1, *highest[n + 1 :]]
                break
        else:
            return


_PLACEHOLDER = "[redacted:"
# `(?<!\\)` and `[^][...]` keep the search fast: each character is tried only a few times.
_QUOTED = re.compile(r'(?<!\\)\\*"(\[redacted:[^]["]*\])\\*"')
_FOLLOWED = re.compile(r"(\[redacted:[^][\"]*\])[.,;:!?)]+")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|(\[redacted:[^]["]*\])', re.DOTALL)
_CUT = "… [cut: "


def same_redacted(one: str, other: str) -> bool:
    """Return whether two texts agree, if one was computed with secrets, and the other with placeholders."""
    # Ignore quotes around a placeholder (the secret was a number in JSON), punctuation after one (it was
    # replaced together with the secret), and what follows the place where a text was cut.
    first, second = _around_placeholders(one), _around_placeholders(other)
    if first == second:
        return True
    kept = min(first.find(_CUT), second.find(_CUT))
    if kept < 0:
        return False
    if first[:kept] == second[:kept]:
        return True
    # One text may have been cut within a secret for which the other text has a placeholder, whole or cut. So
    # compare the texts up to the start of a placeholder that only one of them has.
    halved = set(_placeholders(first)) ^ set(_placeholders(second))
    return any(first[:start] == second[:start] for start in halved if start <= kept)


def _around_placeholders(text: str) -> str:
    return _FOLLOWED.sub(r"\1", _QUOTED.sub(r"\1", text))


def _placeholders(text: str) -> Iterator[int]:
    """Yield the positions at which placeholders begin, including an incomplete one where the text was cut."""
    yield from (match.start() for match in re.finditer(re.escape(_PLACEHOLDER), text))
    cut = text.find(_CUT)
    last = text.rfind(_PLACEHOLDER[0], 0, cut)
    if last >= 0 and _PLACEHOLDER.startswith(text[last:cut]):
        yield last


def quote_placeholders(arguments: str) -> str:
    """Put quotes around placeholders outside of strings (for redacted numbers), to make JSON valid again."""
    return _TOKEN.sub(lambda token: f'"{token.group(1)}"' if token.group(1) else token.group(), arguments)


# The messages of a session that are compared. A kind that older traces lack would make their replay differ.
_SentMessage = m.ConnectFailed | m.ConnectOutcome | m.ToolCalled | m.Settlement


class Connections:
    """The connection state of each server between turns, as far as the trace shows it."""

    def __init__(self) -> None:
        # The servers whose last start made its turn fail. The trace does not show their later state: it is
        # `Untried` or, if the host's process had connected to the server earlier, as it was before.
        self.unsure: set[m.ServerName] = set()
        self._known: dict[m.ServerName, conn.Settled] = {}
        self._recorded: dict[m.ServerName, conn.Settled] = {}

    def of(self, server: m.ServerName) -> conn.Settled:
        """Return a server's state at the beginning of a turn."""
        return self._known.get(server, conn.Untried())

    def begin(self, turn_slice: TurnSlice) -> None:
        """If a resumed host begins with this turn, drop the states that it cannot know from the trace."""
        if turn_slice.resumed:
            self._known = dict(self._recorded)

    def learn(self, turn_slice: TurnSlice) -> None:
        """Set the state of each server whose connection succeeded or failed in the turn."""
        connecting: set[str] = set()
        learned: dict[m.ServerName, conn.Settled] = {}
        for envelope in turn_slice.envelopes:
            body = envelope.body
            if isinstance(body, m.OpenSession) and envelope.sender == AGENT:
                connecting.add(body.server)
            if envelope.receiver != AGENT:
                continue
            if isinstance(body, m.ConnectOutcome):
                connecting.discard(envelope.sender)
                learned[body.server] = _after(body)
                if isinstance(body, m.StartupFailed):
                    self.unsure.add(body.server)
                else:
                    self.unsure.discard(body.server)
                    self._recorded[body.server] = _after(body)
            elif isinstance(body, m.SessionClosed) and envelope.cause is not None:
                # This answers a `CloseSession`. If the session was still connecting, the turn's time ran out.
                # The `SessionClosed` of a session that was cancelled has no cause.
                connecting.discard(envelope.sender)
        # Sessions that are still connecting were cancelled or killed: learn nothing from them.
        self._known.update({name: state for name, state in learned.items() if name not in connecting})


def _after(outcome: m.ConnectOutcome) -> conn.Settled:
    match outcome:
        case m.SessionOpened():
            return conn.Proven()
        case m.McpDisabled(reason=reason):
            # With `until_s` 0, a later turn can connect this server again (`_Session._open`).
            return conn.Disabled(reason, until_s=0.0)
        case m.StartupFailed():
            return conn.Untried()


def _replay_sessions(
    turn: _AgentTurn, connections: Connections, commands: Mapping[int, m.TurnCommand | m.TurnNote]
) -> tuple[int, list[Divergence]]:
    """Replay a turn's sessions. Return how many messages agreed, and each session's first difference."""
    # `commands` has the replayed agent's messages, by the number of the recorded message that each replaces.
    compared = 0
    found: list[Divergence] = []
    for server in turn.run.servers:
        session = _Session(server, turn, connections)
        try:
            session.drive(commands)
        except _Diverged as diverged:
            found.append(diverged.divergence)
        compared += session.compared
    return compared, found


class _Diverged(Exception):  # noqa: N818 - not an error: it ends the replay of a session
    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence


class _Session:
    def __init__(self, server: m.ServerName, turn: _AgentTurn, connections: Connections) -> None:
        self.compared = 0
        self._server = server
        self._turn = turn
        resumed = turn.run.resumed is not None and not turn.is_fork  # if so, no server counts as proven
        self._connection: conn.ConnectionState = conn.Untried() if resumed else connections.of(server)
        self._connected = False
        # Messages without a turn belong to a session of the host, such as that of `Runner.call`.
        own = [envelope for envelope in turn.envelopes if envelope.turn]
        copied = turn.is_fork or any(envelope.copied for envelope in own)
        self._may_be_proven = copied or resumed or server in connections.unsure
        self._received = [envelope for envelope in own if envelope.receiver == server]
        self._sent = deque(
            envelope
            for envelope in own
            if envelope.sender == server and isinstance(envelope.body, _SentMessage)
        )
        self._comparison = Comparison(same_text=same_redacted if turn.redacted else None)

    def drive(self, commands: Mapping[int, m.TurnCommand | m.TurnNote]) -> None:
        for envelope in self._received:
            command = commands.get(envelope.seq, envelope.body)
            if not isinstance(command, m.SessionCommand):
                continue  # only a damaged trace has such a message
            match command:
                case m.OpenSession():
                    self._open(command, envelope)
                case m.CallTools():
                    self._call(command, envelope)
                case m.CloseSession():
                    self._connected = False
                case _:
                    assert_never(command)
        if self._sent:
            raise _Diverged(self._turn.unexpected(self._sent[0]))

    def _open(self, command: m.OpenSession, cause: EpisodeEnvelope) -> None:
        first = self._sent[0].body if self._sent else None
        at_s = math.inf  # so late that the time for which the server was disabled is over
        if isinstance(first, m.McpDisabled) and not first.newly:
            # The server was disabled before this turn. If the host disabled it, only `first` has the reason.
            self._connection, at_s = conn.Disabled(first.reason), 0.0
        if isinstance(first, m.ConnectFailed) and self._may_be_proven:
            self._connection = self._before_failure(first, command.policy)
        requested = conn.ConnectRequested(self._server, command.policy, at_s)
        order: conn.ConnectionCommand | None = self._step(requested, cause)
        while isinstance(order, conn.Attempt):
            order = self._attempt(order, cause)
        recorded = self._sent[0].body if self._sent else None
        if isinstance(order, m.McpDisabled) and isinstance(recorded, m.McpDisabled):
            # Take these two fields as recorded: old traces lack them, and `retry_s` depends on the number of
            # earlier failures, which is not known here.
            order = replace(order, last_words=recorded.last_words, retry_s=recorded.retry_s)
        if isinstance(order, m.McpDisabled | m.StartupFailed):
            self._expect(order, cause)

    def _before_failure(self, first: m.ConnectFailed, policy: FailurePolicy) -> conn.ConnectionState:
        """Infer the state before a first attempt that failed, because the trace may not show this state."""
        if first.then == "retry":
            return conn.Proven()
        disabled = next((each.body for each in self._sent if isinstance(each.body, m.McpDisabled)), None)
        if disabled is not None and not disabled.newly:
            return conn.Disabled(disabled.reason, until_s=0.0)
        return self._connection if first.then == "raise" or policy.connect_retries else conn.Proven()

    def _attempt(self, attempt: conn.Attempt, cause: EpisodeEnvelope) -> conn.ConnectionCommand | None:
        """Replay an attempt to connect. Return the next command; `None`: no result is recorded."""
        if not self._sent:
            return None
        recorded = self._sent[0]
        match recorded.body:
            case m.ConnectFailed() as failed:
                order = self._step(conn.AttemptFailed(failed.failure), cause)
                then = {conn.Attempt: "retry", m.StartupFailed: "raise"}.get(type(order), "disable")
                self._expect(replace(failed, attempt=attempt.number, then=then), cause)
                return order
            case m.SessionOpened() as opened:
                self._connected = True
                self._expect(replace(opened, attempt=attempt.number), cause)
                return self._step(conn.ConnectSucceeded(), cause)
            case _:
                reason = f"connect attempt {attempt.number} should follow here, but it is not in the trace"
                raise _Diverged(self._turn.unexpected(recorded, reason, after=cause))

    def _call(self, batch: m.CallTools, cause: EpisodeEnvelope) -> None:
        for order in calls.steps_of(batch, connected=self._connected):
            match order:
                case calls.MakeCall(called):
                    order.settlement = self._refused(called)
                    if order.settlement is None:
                        self._expect(called, cause)
                        order.settlement = self._settlement(called, cause)
                case settlement:
                    self._expect(settlement, cause)

    def _refused(self, called: m.ToolCalled) -> m.ToolSkipped | None:
        """Return the recorded `ToolSkipped` if the session refused to send this call; otherwise `None`."""
        body = self._sent[0].body if self._sent else None
        if isinstance(body, m.ToolSkipped) and body.refused and body.call_id == called.call_id:
            return replace(body, batch=called.batch)
        return None

    def _settlement(self, called: m.ToolCalled, cause: EpisodeEnvelope) -> m.Settlement | None:
        """Return the recorded message that ended a call; `None`: nothing more of the session is recorded."""
        if not self._sent:
            return None
        recorded = self._sent[0]
        settled = recorded.body
        if not isinstance(settled, m.Settlement) or settled.call_id != called.call_id:
            reason = f"the call {called.call_id} must be settled first"
            raise _Diverged(self._turn.unexpected(recorded, reason, after=cause))
        return replace(settled, batch=called.batch)

    def _expect(self, body: m.TurnEvent | m.SessionNote, cause: EpisodeEnvelope) -> None:
        """Raise `_Diverged` if the next recorded message of the session, if there is one, is not `body`."""
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
            divergence = self._turn.unexpected(recorded, after=cause)
            raise _Diverged(replace(divergence, right=expected, differences=found))
        self._sent.popleft()
        self.compared += 1

    def _step(
        self,
        event: conn.ConnectRequested | conn.ConnectSucceeded | conn.AttemptFailed,
        cause: EpisodeEnvelope,
    ) -> conn.ConnectionCommand:
        try:
            self._connection, order = conn.connection_step(self._connection, event)
        except conn.IllegalConnectionEvent as error:
            raise _Diverged(self._turn.unexpected(cause, str(error))) from error
        return order


__all__ = ["Changes", "TurnReplay", "render", "replay"]
_UNCHANGED = Changes()


class TurnReplay(Struct, frozen=True, kw_only=True):
    """How the replay of a turn ended, how many messages agreed, and the first that did not."""

    turn: int
    compared: int
    end: ReplayEnd
    resumed: bool = False  # `True`: only the part after a parking, or a kill of the process, was replayed
    divergence: Divergence | None = None


def replay(
    envelopes: Iterable[EpisodeEnvelope], changes: Changes = _UNCHANGED, *, turn: int | None = None
) -> Iterator[TurnReplay]:
    """Replay a trace turn by turn, or only turns with the number `turn`; may raise `TraceError`."""
    connections = Connections()
    # Besides a `cut_off` turn, the last one, and the last before a resumption, may end with a killed process.
    for turn_slice, following in pairwise(chain(split_turns(envelopes), (None,))):
        assert turn_slice is not None, "only the last `following` is `None`"
        connections.begin(turn_slice)
        if turn in (None, turn_slice.turn):
            cut_off = turn_slice.cut_off or following is None or following.resumed
            begun = next((each for each in turn_slice.envelopes if each.receiver == AGENT), None)
            if begun is not None and isinstance(begun.body, m.RunTurn):
                recorded = _AgentTurn(turn_slice, begun, begun.body, cut_off=cut_off)
                yield _replay_turn(recorded, connections, changes)
        connections.learn(turn_slice)


def render(turns: Iterable[TurnReplay], changes: Changes = _UNCHANGED) -> Iterator[str]:
    """Yield the report: the first difference in full, a line for each later turn that differs, the counts."""
    compared = total = unfinished = diverged = again = 0
    different: set[int] = set()  # numbers of turns
    names = ("recorded", "changed" if changes else "replayed")
    for turn in turns:
        total += not turn.resumed
        compared += turn.compared
        unfinished += turn.end != "finished" and turn.divergence is None
        if turn.divergence is None:
            continue
        diverged += 1
        again += turn.resumed and turn.turn in different
        different.add(turn.turn)
        if diverged == 1:
            yield f"Turn {turn.turn} differs after {counted(turn.compared, 'message')}."
            yield from turn.divergence.lines(*names)
        else:
            if diverged == 2:
                yield "Later turns, each replayed from its recorded beginning:"
            yield f"  {turn.divergence.line(*names)}"
    counts = f"{counted(total, 'turn')}, {counted(compared, 'message')} compared"
    cut = f"; {counted(unfinished, 'turn')} did not finish, replayed as far as recorded" if unfinished else ""
    yield f"different in {diverged - again} of {counts}{cut}" if diverged else f"identical: {counts}{cut}"


def _replay_turn(turn: _AgentTurn, connections: Connections, changes: Changes) -> TurnReplay:
    agent = _replay_agent(turn, changes)
    compared, found = _replay_sessions(turn, connections, agent.commands if changes else {})
    if found and not changes:
        # Turns of `Runner.map` begin without the servers' earlier states: compare again without these states.
        alone, differences = _replay_sessions(turn, Connections(), {})
        compared, found = (compared, found) if differences else (alone, [])
    found += _llm_divergences(turn)
    excluded = ((each, changes.excludes(each, turn.begun)) for each in turn.envelopes)
    found += [turn.unexpected(each, reason) for each, reason in excluded if reason][:1]
    if agent.divergence is not None:
        found.append(agent.divergence)
    first = min(found, key=_place, default=None)
    return TurnReplay(
        turn=turn.run.turn,
        compared=agent.compared + compared,
        end=agent.end,
        resumed=turn.run.resumed is not None and not turn.is_fork,
        divergence=first,
    )


def _place(divergence: Divergence) -> float:
    if divergence.left is not None:
        return divergence.left.seq
    return divergence.because[-1].seq + 0.5 if divergence.because else 0.0


def _llm_divergences(turn: _AgentTurn) -> Iterator[Divergence]:
    """Yield a divergence for each message of the LLM actor that is out of order."""
    asked: m.RequestCompletion | None = None
    dropping: int | None = None
    attempts: dict[int, int] = {}
    for envelope in turn.envelopes:
        reason = ""
        match envelope.body:
            case m.RequestCompletion() as command if envelope.sender == AGENT:
                asked = command
            case m.CompletionReceived(request=request) | m.CompletionFailed(request=request):
                if envelope.receiver != AGENT:
                    continue  # the reply goes to an MCP server (sampling)
                if asked is None or asked.request != request:
                    reason = f"it answers request {request}, but no such request is open"
                asked = None
            case m.DropCompletion(request=request):
                dropping = request
            case m.ReplyDropped(request=request):
                if dropping != request:
                    reason = f"it answers no command to drop the reply to request {request}"
                asked = dropping = None
            case m.CompletionPostponed() | m.ModelPassedOver() | m.ReplyCut() if envelope.cause is not None:
                # Forget the count: a wait for a batch records the retries again, and with another model or
                # a larger limit, the attempts begin with number 1 again.
                attempts.pop(envelope.cause, None)
            case m.CompletionRetried(attempt=attempt) if envelope.cause is not None:
                if attempt <= attempts.get(envelope.cause, 0):
                    reason = f"attempt {attempt} comes after attempt {attempts[envelope.cause]}"
                attempts[envelope.cause] = attempt
        if reason:
            yield turn.unexpected(envelope, reason)
