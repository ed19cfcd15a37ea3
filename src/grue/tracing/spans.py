"""The viewer's spans: how long each step of a trace took, in which actor, and how it ended.

`steps` decides what begins and ends. A span whose end is not recorded ends with the trace, with its turn, or
where the host was killed.
"""

from collections.abc import Hashable, Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from grue import messages
from grue.tracing.facts import Fact, Severity
from grue.tracing.message_words import severity_of
from grue.tracing.reading import EpisodeEnvelope
from grue.tracing.steps import Step, StepBegan, StepEnded, StepTracker

SpanKind: TypeAlias = Literal["turn", "session", "startup", "model", "wait", "tool", "teardown", "host"]
"""The kind of a span: a whole turn, a whole session, a part of either, or the pause before a retry."""


class Span(Struct, frozen=True, kw_only=True, array_like=True):
    """A period in which an actor was busy with one step.

    Attributes:
        turn: Number of the turn that its first message belongs to.
        lane: Name of the actor.
        label: Short description; may be untrusted text.
        start_s: Seconds since the trace began.
        end_s: The same; not before the start.
        first: Number of the message that began it.
        last: Number of the message that ended it, or of the last message before it was abandoned.
        grade: `fail` if it ended badly, `warn` if another attempt followed or it ended with a warning.
    """

    turn: int
    lane: str
    phase: SpanKind
    label: str
    start_s: float
    end_s: float
    first: int
    last: int
    grade: Literal["fail", "warn", ""] = ""


class SpanFinder:
    """Find spans: `see` each envelope in order, then take the rest from `finish`."""

    def __init__(self) -> None:
        self._steps = StepTracker()
        self._turns: dict[tuple[Hashable, int], int] = {}
        self._at_s = 0.0
        self._seq = 0

    def see(self, envelope: EpisodeEnvelope, turn: int | None = None) -> Iterator[Span]:
        """Yield the spans that end with this envelope.

        Args:
            envelope: The next envelope of the trace.
            turn: The turn that it is counted to; default: the one that it names.
        """
        changes = self._steps.take(envelope)
        for change in changes:
            if isinstance(change, StepBegan) and turn is not None:
                self._turns[change.step.key, change.step.first] = turn
        ended = [change for change in changes if isinstance(change, StepEnded)]
        yield from (self._span(end, None) for end in ended if not end.reported)
        self._at_s, self._seq = envelope.t, envelope.seq
        for end in ended:
            if end.reported:
                yield self._span(end, envelope)
            if end.retried and isinstance(envelope.body, messages.CompletionRetried):
                yield self._pause(end.step, envelope.body.delay_s)

    def finish(self) -> Iterator[Span]:
        """Yield what is still under way: the trace ends in the middle of it, or the host was killed there."""
        yield from (self._span(end, None) for end in self._steps.finish() if isinstance(end, StepEnded))

    def _span(self, end: StepEnded, by: EpisodeEnvelope | None) -> Span:
        step = end.step
        grade: Literal["fail", "warn", ""] = ""
        if by is not None:
            grade = _GRADES.get(severity_of(by.body), "")
        return Span(
            turn=self._turns.pop((step.key, step.first), step.turn),
            lane=_lane(step),
            phase="model" if step.kind == "check" else step.kind,
            label=_label(step),
            start_s=step.start_s,
            end_s=max(self._at_s, step.start_s),
            first=step.first,
            last=self._seq,
            grade=grade,
        )

    def _pause(self, step: Step, pause_s: float) -> Span:
        return Span(
            turn=step.turn,
            lane=_lane(step),
            phase="wait",
            label="wait",
            start_s=self._at_s,
            end_s=self._at_s + pause_s,
            first=self._seq,
            last=self._seq,
            grade="warn",
        )


_GRADES: dict[Severity, Literal["fail", "warn"]] = {"fail": "fail", "warn": "warn"}


def _lane(step: Step) -> str:
    body = step.began.body
    if step.kind == "host":
        return step.began.sender
    return getattr(body, "server", "") or step.began.receiver


def _label(step: Step) -> str:
    match step.began.body:
        case messages.RunTurn():
            return f"turn {step.turn}"
        case messages.OpenSession() if step.kind == "startup":
            return "start" if step.attempt == 1 else "start again"
        case messages.ToolCalled(tool=tool):
            return tool
        case messages.RequestCompletion(request=request):
            return f"request {request}" + (f", try {step.attempt}" if step.attempt > 1 else "")
        case messages.CheckToolSupport():
            return "can it call tools?"
        case messages.CloseSession():
            return "close"
        case Fact() as fact:
            return fact.headline() or "host"
        case _:
            return step.kind
