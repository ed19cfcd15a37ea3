"""Pair the messages of a trace: which message begins a step, and which one ends it.

`StepTracker._take_message` has the pairs. A host's facts begin and end steps too (`Fact.step`).

When a request or a server's start is tried again, the attempt ends, and a new attempt of that step begins. If
a turn was killed, or its agent crashed, the trace has no message that ends the turn. Such a turn ends with
the first of these: the host's next fact that is recorded between turns; a `RunTurn` of the same number or,
after a crash, of any number; the end of the trace. When a turn ends, all its steps that are still under way
are abandoned, except `host` steps. `EpisodeResumed` abandons all open steps.
"""

from collections.abc import Hashable
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeResumed, Fact

StepKind: TypeAlias = Literal["turn", "model", "check", "session", "startup", "tool", "teardown", "host"]


class Step(Struct, frozen=True, kw_only=True):
    """One attempt at a step, such as a turn, a request to the model or a tool call."""

    kind: StepKind
    key: Hashable  # the same for all attempts
    turn: int
    began: Envelope[Any]  # the first attempt's first message
    attempt: int = 1  # from 1
    start_s: float  # time `t` at which the attempt begins: a retry begins after the pause
    first: int  # number of this attempt's first message


class StepBegan(Struct, frozen=True):
    """An attempt at a step begins."""

    step: Step


class StepEnded(Struct, frozen=True):
    """An attempt at a step is over."""

    step: Step
    reported: bool = True  # `False`: for example, the turn or the trace ended first
    retried: bool = False  # whether another attempt follows


StepChange: TypeAlias = StepBegan | StepEnded


def usage_in(envelope: Envelope[Any], sampled: list[m.Usage]) -> m.Usage:
    """Return the usage that a message adds to that of the messages before it; a copied message adds none.

    If a server got a reply, a `ServerSampled` repeats the reply's usage. If its request was cancelled, only
    the `ServerSampled` has the usage. Traces of grue 0.2.0 have no `ServerSampled`. `sampled` is empty at
    first, and keeps the usage of replies that a `ServerSampled` may repeat.
    """
    match envelope.body:
        case m.ServerSampled(usage=usage) if usage in sampled:
            sampled.remove(usage)
        case m.CompletionReceived(usage=usage) | m.CompletionFailed(usage=usage) if not envelope.copied:
            if envelope.sender == "llm-sampling":
                sampled.append(usage)
            return usage
        case m.ReplyDropped(usage=usage) | m.ServerSampled(usage=usage) if not envelope.copied:
            return usage
    return m.Usage()


class StepTracker:
    """Tracks which steps are under way (`open`). Call `take` with each envelope of the trace, in order."""

    def __init__(self) -> None:
        self.open: dict[Hashable, Step] = {}
        self._crashed: set[int] = set()
        self._changes: list[StepChange] = []

    def take(self, envelope: Envelope[Any]) -> list[StepChange]:
        """Return which steps begin or end with the next message."""
        self._changes = []
        if isinstance(envelope.body, Fact):
            self._take_fact(envelope, envelope.body)
        else:
            self._take_message(envelope)
        return self._changes

    def finish(self) -> list[StepChange]:
        """End the steps that are open at the end of the trace, and return these changes."""
        self._changes = []
        self._abandon_all()
        return self._changes

    def _take_fact(self, envelope: Envelope[Any], fact: Fact) -> None:
        if fact.between_turns:
            self._leave({step.turn for step in self.open.values() if step.kind == "turn"})
        if isinstance(fact, EpisodeResumed):
            self._abandon_all()
        elif fact.step == "begins":
            self._begin("host", "host", envelope)
        elif fact.step == "ends":
            self._end("host")

    def _take_message(self, envelope: Envelope[Any]) -> None:
        turn = envelope.turn
        match envelope.body:  # the most frequent kinds first
            case m.ToolCalled(batch=batch, call_id=call_id):
                self._begin("tool", ("tool", turn, batch, call_id), envelope)
            case (
                m.ToolReturned(batch=batch, call_id=call_id)
                | m.ToolTimedOut(batch=batch, call_id=call_id)
                | m.ToolSkipped(batch=batch, call_id=call_id)
                | m.ServerDied(batch=batch, call_id=call_id)
            ):
                self._end(("tool", turn, batch, call_id))
            case m.RequestCompletion():
                self._begin("model", ("model", envelope.seq), envelope)
            case m.CompletionRetried(delay_s=delay_s):
                self._retry(self._question("model", envelope), envelope, pause_s=delay_s)
            case m.CompletionReceived() | m.CompletionFailed():
                self._end(self._question("model", envelope))
            case m.ReplyDropped(request=request):
                # Find the request by its number: the cause of a `ReplyDropped` is a `DropCompletion`.
                self._end(self._asked_as(request, turn))
            case m.CheckToolSupport():
                self._begin("check", ("check", envelope.seq), envelope)
            case m.ToolSupportChecked():
                self._end(self._question("check", envelope))
            case m.RunTurn():
                self._leave({turn, *self._crashed})
                self._begin("turn", ("turn", turn), envelope)
            case m.TurnCompleted() | m.TurnFailed() | m.TurnParked():
                self._leave({turn}, ended=("turn", turn))
            case ActorFailed():
                self._crashed.add(turn)
            case m.OpenSession(server=server):
                self._begin("session", ("session", turn, server), envelope)
                self._begin("startup", ("startup", turn, server), envelope)
            case m.ConnectFailed(server=server, then="retry"):
                self._retry(("startup", turn, server), envelope)
            case m.ConnectFailed(server=server) | m.SessionOpened(server=server):
                self._end(("startup", turn, server))
            case m.McpDisabled(server=server) | m.StartupFailed(server=server):
                self._end(("startup", turn, server))
                self._end(("session", turn, server))
            case m.CloseSession(server=server):
                self._begin("teardown", ("teardown", turn, server), envelope)
            case m.SessionClosed(server=server):
                self._end(("teardown", turn, server))
                self._end(("session", turn, server))

    def _question(self, kind: StepKind, envelope: Envelope[Any]) -> Hashable:
        """Return the key of the request that `envelope` answers or retries; `None` if it is not known."""
        if envelope.cause is not None:
            return (kind, envelope.cause)
        number = getattr(envelope.body, "request", None)
        return self._asked_as(number, kind=kind)

    def _asked_as(self, number: int | None, turn: int | None = None, kind: StepKind = "model") -> Hashable:
        """Return the key of the open step of `kind` that began with request `number`, or `None`."""
        for key, step in self.open.items():
            asked = getattr(step.began.body, "request", None)
            if step.kind == kind and asked == number and turn in (None, step.turn):
                return key
        return None

    def _begin(self, kind: StepKind, key: Hashable, envelope: Envelope[Any]) -> None:
        self._end(key, reported=False)
        step = Step(
            kind=kind, key=key, turn=envelope.turn, began=envelope, start_s=envelope.t, first=envelope.seq
        )
        self.open[key] = step
        self._changes.append(StepBegan(step))

    def _retry(self, key: Hashable, envelope: Envelope[Any], pause_s: float = 0.0) -> None:
        step = self.open.get(key)
        if step is None:
            return
        self._changes.append(StepEnded(step, retried=True))
        self.open[key] = again = replace(
            step, attempt=step.attempt + 1, start_s=envelope.t + pause_s, first=envelope.seq
        )
        self._changes.append(StepBegan(again))

    def _end(self, key: Hashable, *, reported: bool = True) -> None:
        step = self.open.pop(key, None)
        if step is not None:
            self._changes.append(StepEnded(step, reported=reported))

    def _leave(self, turns: set[int], *, ended: Hashable = None) -> None:
        """End the steps of open `turns`, except the host's. Only the end of `ended` counts as reported."""
        left = {turn for turn in turns if ("turn", turn) in self.open}
        self._crashed -= left
        for key in [key for key, step in self.open.items() if step.turn in left and step.kind != "host"]:
            self._end(key, reported=key == ended)

    def _abandon_all(self) -> None:
        self._crashed.clear()
        for key in [*self.open]:
            self._end(key, reported=False)
