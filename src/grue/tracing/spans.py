"""Pair a trace's messages into spans of time, to show how long each step took.

A span begins with the message that starts a step and ends with the message that reports its end. A span
whose end is not recorded ends with the trace, or where the host was killed.
"""

from collections.abc import Hashable, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from grue import facts, messages
from grue.tracing.reading import EpisodeEnvelope

Phase: TypeAlias = Literal["turn", "session", "startup", "model", "wait", "tool", "teardown", "game"]
"""The kind of a span: a whole turn, a whole session, or a part of either."""


class Span(Struct, frozen=True, kw_only=True, array_like=True):
    """A period in which an actor was busy with one step.

    Attributes:
        turn: Its turn's number.
        lane: Name of the actor.
        phase: What it did.
        label: Of what it did it to; untrusted text.
        start_s: Seconds since the trace began.
        end_s: The same; not before the start.
        first: Number of the message that began it.
        last: Number of the message that ended it; the trace's last where none did.
        grade: `fail` if it ended badly, `warn` if another try followed, else empty.
    """

    turn: int
    lane: str
    phase: Phase
    label: str
    start_s: float
    end_s: float
    first: int
    last: int
    grade: Literal["fail", "warn", ""] = ""


class _Open(Struct, frozen=True, kw_only=True):
    turn: int
    lane: str
    phase: Phase
    label: str
    start_s: float
    first: int


class SpanFinder:
    """Pair messages as they come: `see` each envelope in order, then take the rest from `finish`."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _Open] = {}
        self._at_s = 0.0
        self._seq = 0

    def see(self, envelope: EpisodeEnvelope) -> Iterator[Span]:
        """Yield the spans that end with this envelope."""
        if isinstance(envelope.body, facts.EpisodeResumed):
            yield from self.finish()
        self._at_s, self._seq = envelope.t, envelope.seq
        yield from self._of_turn(envelope)
        yield from self._of_session(envelope)
        yield from self._of_call(envelope)
        yield from self._of_model(envelope)

    def finish(self) -> Iterator[Span]:
        """Yield what is still open: the trace ends in the middle of it, or the host was killed there."""
        for key in [*self._open]:
            yield from self._close(key)

    def _of_turn(self, envelope: EpisodeEnvelope) -> Iterator[Span]:
        turn = envelope.turn
        match envelope.body:
            case messages.RunTurn():
                self._begin(("turn", turn), envelope, envelope.receiver, "turn", f"turn {turn}")
            case messages.TurnCompleted():
                yield from self._close(("turn", turn))
            case messages.TurnFailed():
                yield from self._close(("turn", turn), "fail")
            case facts.Decided(action=action):
                self._begin("game", envelope, envelope.sender, "game", action)
            case facts.Observed():
                yield from self._close("game")

    def _of_session(self, envelope: EpisodeEnvelope) -> Iterator[Span]:
        turn = envelope.turn
        match envelope.body:
            case messages.OpenSession(server=server):
                self._begin(("session", turn, server), envelope, server, "session", "session")
                self._begin(("startup", turn, server), envelope, server, "startup", "start")
            case messages.ConnectFailed(server=server, then=then):
                yield from self._close(("startup", turn, server), "warn" if then == "retry" else "fail")
                if then == "retry":
                    self._begin(("startup", turn, server), envelope, server, "startup", "start again")
            case messages.SessionOpened(server=server):
                yield from self._close(("startup", turn, server))
            case messages.McpDisabled(server=server) | messages.StartupFailed(server=server):
                yield from self._close(("startup", turn, server), "fail")
                yield from self._close(("session", turn, server), "fail")
            case messages.CloseSession(server=server):
                self._begin(("teardown", turn, server), envelope, server, "teardown", "close")
            case messages.SessionClosed(server=server, ending=ending):
                yield from self._close(("teardown", turn, server), "fail" if ending == "died" else "")
                yield from self._close(("session", turn, server))

    def _of_call(self, envelope: EpisodeEnvelope) -> Iterator[Span]:
        turn = envelope.turn
        match envelope.body:
            case messages.ToolCalled(server=server, call_id=call_id, tool=tool):
                self._begin(("tool", turn, call_id), envelope, server, "tool", tool)
            case messages.ToolReturned(call_id=call_id, result=result):
                yield from self._close(("tool", turn, call_id), "warn" if result.is_error else "")
            case messages.ToolTimedOut(call_id=call_id) | messages.ServerDied(call_id=call_id):
                yield from self._close(("tool", turn, call_id), "fail")

    def _of_model(self, envelope: EpisodeEnvelope) -> Iterator[Span]:
        key = ("model", envelope.cause)
        match envelope.body:
            case messages.RequestCompletion(request=request):
                label = f"request {request}"
                self._begin(("model", envelope.seq), envelope, envelope.receiver, "model", label)
            case messages.CheckToolSupport():
                self._begin(
                    ("model", envelope.seq), envelope, envelope.receiver, "model", "can it call tools?"
                )
            case messages.CompletionRetried(delay_s=delay_s, attempt=attempt):
                begun = self._open.get(key)
                yield from self._close(key, "warn")
                if begun is not None:
                    yield self._wait(begun, delay_s)
                    self._begin(key, envelope, begun.lane, "model", f"{begun.label}, try {attempt + 1}")
                    self._delay(key, delay_s)
            case messages.CompletionReceived() | messages.ToolSupportChecked():
                yield from self._close(key)
            case messages.CompletionFailed():
                yield from self._close(key, "fail")

    def _wait(self, begun: _Open, delay_s: float) -> Span:
        return Span(
            turn=begun.turn,
            lane=begun.lane,
            phase="wait",
            label="wait",
            start_s=self._at_s,
            end_s=self._at_s + delay_s,
            first=self._seq,
            last=self._seq,
            grade="warn",
        )

    def _delay(self, key: Hashable, delay_s: float) -> None:
        begun = self._open[key]
        self._open[key] = _Open(
            turn=begun.turn,
            lane=begun.lane,
            phase=begun.phase,
            label=begun.label,
            start_s=begun.start_s + delay_s,
            first=begun.first,
        )

    def _begin(self, key: Hashable, envelope: EpisodeEnvelope, lane: str, phase: Phase, label: str) -> None:
        self._open[key] = _Open(
            turn=envelope.turn,
            lane=lane,
            phase=phase,
            label=label,
            start_s=envelope.t,
            first=envelope.seq,
        )

    def _close(self, key: Hashable, grade: Literal["fail", "warn", ""] = "") -> Iterator[Span]:
        begun = self._open.pop(key, None)
        if begun is None:
            return
        yield Span(
            turn=begun.turn,
            lane=begun.lane,
            phase=begun.phase,
            label=begun.label,
            start_s=begun.start_s,
            end_s=max(self._at_s, begun.start_s),
            first=begun.first,
            last=self._seq,
            grade=grade,
        )
