"""Replay the agent of a recorded turn: feed the recorded events to the turn's state machine again.

The events are the messages that entered the agent's mailbox, in that order, and the agent's notes about the
clock and the supervisor. The machine's commands for each event are compared with the recorded ones.

Where a secret was replaced by a placeholder, a recorded text may differ from the replayed one and still be
the same. The recorded text was computed with the secret, which was replaced afterwards; the replayed text is
computed from data in which it was already replaced. The two differ around a placeholder in three cases: the
secret was a number, which is not quoted, while its placeholder is; a full stop or a comma after the secret
was taken for its end; the text was cut to a length, which counts the secret in one and the placeholder in the
other.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tool_loop import AGENT, NOTED_EVENTS, IllegalEvent, step
from grue.protocol.turn.states import Finished, Idle, TurnState
from grue.runtime.actor import ActorFailed
from grue.tracing.changes import Changes
from grue.tracing.differences import Comparison
from grue.tracing.divergence import Divergence, derived
from grue.tracing.reading import EpisodeEnvelope
from grue.tracing.turn_slices import TurnSlice, causes

ReplayEnd: TypeAlias = Literal["finished", "crashed", "interrupted", "unfinished"]
"""How a recorded turn ends: with its outcome, by a crash of the agent, by a cancellation, or unfinished."""


_FOLLOWS = frozenset({"whole_chars"})
"""Follows from a text that is compared; it is another number if a secret was removed from the text."""


class AgentTurn(Struct, frozen=True, kw_only=True):
    """A turn as the agent saw it.

    Attributes:
        begun: The turn's `RunTurn`.
        inbox: The messages that entered the agent's mailbox, `begun` first.
        noted: Events that the agent has noted: from the clock, the supervisor, and what may be presumed.
        said: The messages and notes that the agent recorded.
        crash: The agent's exception, if it crashed.
        by_seq: All envelopes of its slice, by number.
        cut_off: The trace ends in this turn, or the episode was interrupted in it.
    """

    begun: EpisodeEnvelope
    run: m.RunTurn
    inbox: tuple[EpisodeEnvelope, ...]
    noted: tuple[EpisodeEnvelope, ...]
    said: tuple[EpisodeEnvelope, ...]
    crash: EpisodeEnvelope | None
    by_seq: dict[int, EpisodeEnvelope]
    cut_off: bool

    @property
    def redacted(self) -> bool:
        """Whether a secret was replaced in any message from or to the agent."""
        return any(envelope.redacted for envelope in (*self.inbox, *self.said))

    @property
    def interrupted(self) -> bool:
        """Whether the agent was cancelled."""
        return any(isinstance(envelope.body, m.TurnInterrupted) for envelope in self.noted)

    def crashed_of(self, kind: type[Exception]) -> bool:
        """Whether the agent raised an exception of this name."""
        crash = self.crash.body if self.crash is not None else None
        return isinstance(crash, ActorFailed) and crash.error.startswith(kind.__name__)

    @property
    def may_stop(self) -> bool:
        """Whether the agent may have ended before it carried out all commands of the machine."""
        if any(isinstance(envelope.body, m.TurnEnd) for envelope in self.said):
            return False
        # An agent that is cancelled before it reads anything records nothing.
        return self.cut_off or self.crash is not None or self.interrupted or not self.said


def recorded_turn(turn_slice: TurnSlice, *, cut_off: bool) -> AgentTurn | None:
    """Return the turn of a slice; `None`: no agent ran a turn in it."""
    inbox, noted, said = [], [], []
    crash: EpisodeEnvelope | None = None
    for envelope in turn_slice.envelopes:
        body = envelope.body
        if envelope.receiver == AGENT:
            inbox.append(envelope)
        elif isinstance(body, NOTED_EVENTS):
            noted.append(envelope)
        elif isinstance(body, ActorFailed):
            crash = envelope if body.actor == AGENT else crash
        elif envelope.sender == AGENT:
            said.append(envelope)
    if not inbox or not isinstance(inbox[0].body, m.RunTurn):
        return None
    return AgentTurn(
        begun=inbox[0],
        run=inbox[0].body,
        inbox=tuple(inbox),
        noted=tuple(noted),
        said=tuple(said),
        crash=crash,
        by_seq={envelope.seq: envelope for envelope in turn_slice.envelopes},
        cut_off=cut_off,
    )


class AgentReplay(Struct, frozen=True, kw_only=True):
    """The result of replaying an agent.

    Attributes:
        compared: How many messages were compared.
        end: How the turn ended.
        divergence: The first message that differs from the recording.
        commands: The machine's commands, by the number of the corresponding recorded message.
    """

    compared: int
    end: ReplayEnd
    divergence: Divergence | None
    commands: dict[int, m.TurnCommand | m.TurnNote]


def replay_agent(turn: AgentTurn, changes: Changes) -> AgentReplay:
    """Feed a turn's events to the machine, in an order in which the agent can have handled them."""
    replays = (_Drive(turn, changes).through(order) for order in _orders(turn))
    best: AgentReplay | None = None
    for replayed in replays:
        if replayed.divergence is None:
            return replayed
        best = best if best is not None and best.compared >= replayed.compared else replayed
    assert best is not None, "there is at least one order"
    return best


def _orders(turn: AgentTurn) -> Iterator[Sequence[EpisodeEnvelope]]:
    """Yield the orders in which the agent can have handled its events, the most likely first.

    Messages in the mailbox keep their order. But the agent handles an event from the clock or the supervisor
    at once, while older messages may still be in the mailbox. All that is certain then is that the messages
    which had caused something were handled before it.
    """
    answered = {envelope.cause: envelope.seq for envelope in reversed(turn.said)}
    places: list[range] = []
    for note in turn.noted:
        entered = sum(message.seq < note.seq for message in turn.inbox)
        read = [n for n, message in enumerate(turn.inbox) if answered.get(message.seq, note.seq) < note.seq]
        places.append(range(entered, max(read, default=0), -1))
    for chosen in product(*places):
        if list(chosen) == sorted(chosen):
            order = list(turn.inbox)
            for note, place in reversed(list(zip(turn.noted, chosen, strict=True))):
                order.insert(place, note)
            yield order


class _Drive:
    """The replay of a turn with one order of events."""

    def __init__(self, turn: AgentTurn, changes: Changes) -> None:
        self._turn = turn
        self._changes = changes
        self._compared = 0
        self._taken: set[int] = set()
        self._commands: dict[int, m.TurnCommand | m.TurnNote] = {}
        self._comparison = Comparison(ignored=_FOLLOWS, same_text=same_redacted if turn.redacted else None)

    def through(self, order: Sequence[EpisodeEnvelope]) -> AgentReplay:
        state: TurnState = Idle()
        for event in order:
            if isinstance(state, Finished):
                break  # later messages are not read any more
            try:
                state, commands = step(state, self._body(event))
            except IllegalEvent as error:
                return self._refused(event, str(error))
            for command in commands:
                if self._had_nobody_to_tell(command, event):
                    continue
                if self._compared == len(self._turn.said) and self._turn.may_stop:
                    return self._ended(self._early_end())
                if (divergence := self._compare(command, event)) is not None:
                    return self._ended("unfinished", divergence)
            self._taken.add(event.seq)
        if self._compared < len(self._turn.said):
            return self._ended("unfinished", self._unexpected(self._turn.said[self._compared]))
        return self._ended("finished" if isinstance(state, Finished) else self._early_end())

    def _body(self, envelope: EpisodeEnvelope) -> m.TurnEvent:
        body = envelope.body
        if isinstance(body, m.RunTurn):
            return self._changes.run(body)
        if isinstance(body, m.CompletionReceived) and envelope.redacted:
            calls = (replace(call, arguments=quote_placeholders(call.arguments)) for call in body.tool_calls)
            return replace(body, tool_calls=tuple(calls))
        return body  # type: ignore[return-value]  # what is not for the machine, it refuses

    def _compare(self, command: m.TurnCommand | m.TurnNote, event: EpisodeEnvelope) -> Divergence | None:
        said = self._turn.said
        recorded = said[self._compared] if self._compared < len(said) else None
        because = (*causes(event, self._turn.by_seq), event)
        expected = derived(
            command,
            sender=AGENT,
            receiver=self._receiver(command),
            turn=self._turn.run.turn,
            cause=event.seq,
        )
        # The cause of a turn's end is always the host's `RunTurn`, whichever event led to it.
        ends = isinstance(command, m.TurnEnd | m.TurnWaits)
        cause = self._turn.begun.seq if ends else event.seq
        if recorded is not None and recorded.cause != cause and recorded.cause in self._taken:
            return self._unexpected(recorded)
        if recorded is None or recorded.cause not in (None, cause):
            return Divergence(turn=self._turn.run.turn, left=None, right=expected, because=because)
        self._commands[recorded.seq] = command
        carried = self._changes.carried(command, recorded.body)
        found = tuple(self._comparison.differences(recorded.body, carried))
        if found:
            return Divergence(
                turn=self._turn.run.turn, left=recorded, right=expected, differences=found, because=because
            )
        self._compared += 1
        return None

    def _receiver(self, command: m.TurnCommand | m.TurnNote) -> str:
        match command:
            case m.OpenSession() | m.CallTools() | m.CloseSession():
                return command.server
            case m.RequestCompletion() | m.DropCompletion() | m.RewriteHistory() | m.CheckToolSupport():
                return "llm"
            case m.AskApproval():
                return "approval"
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked() | m.TurnWaits():
                return self._turn.begun.sender
            case _:
                return "trace"

    def _had_nobody_to_tell(self, command: m.TurnCommand | m.TurnNote, event: EpisodeEnvelope) -> bool:
        """Whether a session's actor had ended, so that the agent recorded `SessionClosed` itself."""
        return isinstance(command, m.CloseSession) and any(
            isinstance(message.body, m.SessionClosed)
            and message.sender == command.server
            and message.cause == event.seq
            for message in self._turn.inbox
        )

    def _refused(self, event: EpisodeEnvelope, error: str) -> AgentReplay:
        if self._turn.crashed_of(IllegalEvent) and self._compared == len(self._turn.said):
            return self._ended("crashed")
        if self._turn.cut_off and self._turn.may_stop and self._compared == len(self._turn.said):
            return self._ended("unfinished")  # it was still in the mailbox when the host was killed
        divergence = Divergence(
            turn=self._turn.run.turn,
            left=event,
            right=None,
            because=causes(event, self._turn.by_seq),
            reason=f"the machine does not take it: {error}",
        )
        return self._ended("unfinished", divergence)

    def _unexpected(self, recorded: EpisodeEnvelope) -> Divergence:
        because = causes(recorded, self._turn.by_seq)
        return Divergence(turn=self._turn.run.turn, left=recorded, right=None, because=because)

    def _early_end(self) -> ReplayEnd:
        if self._turn.crash is not None:
            return "crashed"
        return "interrupted" if self._turn.interrupted else "unfinished"

    def _ended(self, end: ReplayEnd, divergence: Divergence | None = None) -> AgentReplay:
        return AgentReplay(compared=self._compared, end=end, divergence=divergence, commands=self._commands)


_PLACEHOLDER = "[redacted:"
_QUOTED = re.compile(r'\\*"(\[redacted:[^\]"]*\])\\*"')
_FOLLOWED = re.compile(r"(\[redacted:[^\]\"]*\])[.,;:!?)]+")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(\[redacted:[^\]"]*\])', re.DOTALL)
_CUT = "… [cut: "


def same_redacted(one: str, other: str) -> bool:
    """Return whether two texts agree, at least up to the point where one of them was cut."""
    first, second = _around_placeholders(one), _around_placeholders(other)
    if first == second:
        return True
    kept = min(first.find(_CUT), second.find(_CUT))
    if kept < 0:
        return False
    if first[:kept] == second[:kept]:
        return True
    # The cut may have split the secret, whose rest is then not recognised as one, or the placeholder.
    halved = set(_placeholders(first)) ^ set(_placeholders(second))
    return any(first[:start] == second[:start] for start in halved if start <= kept)


def _around_placeholders(text: str) -> str:
    return _FOLLOWED.sub(r"\1", _QUOTED.sub(r"\1", text))


def _placeholders(text: str) -> Iterator[int]:
    """Yield the positions at which placeholders begin, including a truncated one."""
    yield from (match.start() for match in re.finditer(re.escape(_PLACEHOLDER), text))
    cut = text.find(_CUT)
    last = text.rfind(_PLACEHOLDER[0], 0, cut)
    if last >= 0 and _PLACEHOLDER.startswith(text[last:cut]):
        yield last


def quote_placeholders(arguments: str) -> str:
    """Return the JSON text with quotes around each placeholder that replaces a number."""
    return _TOKEN.sub(lambda token: f'"{token.group(1)}"' if token.group(1) else token.group(), arguments)
