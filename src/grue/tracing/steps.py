"""Pair the messages of a trace: which message begins a step, and which one ends it.

A step is something that takes time. Statistics, phases, the viewer, exported spans and the live view all ask
a `StepTracker` what is under way, so that they agree.

| step     | begins with                         | ends with                                            |
|----------|-------------------------------------|------------------------------------------------------|
| turn     | `RunTurn`                           | `TurnCompleted`, `TurnFailed`, `TurnParked`          |
| model    | `RequestCompletion`                 | `CompletionReceived`, `CompletionFailed`, …          |
| check    | `CheckToolSupport`                  | `ToolSupportChecked`                                 |
| session  | `OpenSession`                       | `SessionClosed`, `McpDisabled`, `StartupFailed`      |
| startup  | `OpenSession`                       | `SessionOpened`, `ConnectFailed`, `McpDisabled`, …   |
| tool     | `ToolCalled`                        | `ToolReturned`, `ToolTimedOut`, `ServerDied`         |
| teardown | `CloseSession`                      | `SessionClosed`                                      |
| host     | a fact whose `step` is `begins`     | a fact whose `step` is `ends`                        |

A reply ends the request that caused it. A reply without a cause, as from a host's own LLM actor, ends the
request whose number it has, and so does `ReplyDropped`. When a request or a connect is tried again, the
attempt ends, and a new attempt of the same step begins.

No message ends a turn that was killed or crashed. Such a turn ends with the host's next fact that is recorded
between turns, or, if it crashed, with the next `RunTurn`. When a turn ends, all its steps that are still
under way are abandoned. A session that was opened before its turn stays under way when the turn begins.
`EpisodeResumed` abandons all steps.
"""

from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import messages
from grue.runtime.actor import ActorFailed
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeResumed, Fact

StepKind: TypeAlias = Literal["turn", "model", "check", "session", "startup", "tool", "teardown", "host"]


class Step(Struct, frozen=True, kw_only=True):
    """A step, or one attempt at it.

    Attributes:
        key: Identifies the step while it is under way; the same for all attempts.
        began: The envelope that began the first attempt.
        attempt: Number of this attempt, counted from 1.
        start_s: When this attempt begins, after the pause before a retry if there is one.
        first: Number of the envelope that began this attempt.
    """

    kind: StepKind
    key: Hashable
    turn: int
    began: Envelope[Any]
    attempt: int = 1
    start_s: float
    first: int


class StepBegan(Struct, frozen=True):
    """An attempt at a step begins."""

    step: Step


class StepEnded(Struct, frozen=True):
    """An attempt at a step is over.

    Attributes:
        reported: Whether the current message reports the end of the step. Otherwise the step was abandoned.
        retried: Whether another attempt follows.
    """

    step: Step
    reported: bool = True
    retried: bool = False


StepChange: TypeAlias = StepBegan | StepEnded


class StepTracker:
    """Tracks which steps are under way. Call `take` with a trace's envelopes in order.

    Attributes:
        open: The steps that are under way, by key, in the order in which they began.
    """

    def __init__(self) -> None:
        self.open: dict[Hashable, Step] = {}
        self._crashed: set[int] = set()
        self._changes: list[StepChange] = []

    def take(self, envelope: Envelope[Any]) -> list[StepChange]:
        """Return the attempts at steps that begin and end with this envelope."""
        rule = self._rules.get(type(envelope.body))
        if rule is None and isinstance(envelope.body, Fact) and moves_steps(type(envelope.body)):
            rule = self._rules[Fact]
        if rule is None:
            return []
        self._changes = []
        rule(self, envelope)
        return self._changes

    def finish(self) -> list[StepChange]:
        """Abandon all open steps, because the trace ends here or the host was killed here."""
        self._changes = []
        self._abandon_all()
        return self._changes

    # --- The turn and the host ---

    def _run_turn(self, envelope: Envelope[Any]) -> None:
        self._leave({envelope.turn, *self._crashed})
        self._begin("turn", ("turn", envelope.turn), envelope)

    def _end_turn(self, envelope: Envelope[Any]) -> None:
        self._leave({envelope.turn}, ended=("turn", envelope.turn))

    def _crash(self, envelope: Envelope[Any]) -> None:
        self._crashed.add(envelope.turn)

    def _host_fact(self, envelope: Envelope[Any]) -> None:
        if envelope.body.between_turns:
            self._leave({step.turn for step in self.open.values() if step.kind == "turn"})
        if isinstance(envelope.body, EpisodeResumed):
            self._abandon_all()
        elif envelope.body.step == "begins":
            self._begin("host", "host", envelope)
        elif envelope.body.step == "ends":
            self._end("host")

    # --- Sessions and calls ---

    def _open_session(self, envelope: Envelope[Any]) -> None:
        for kind in _OPENING:
            self._begin(kind, _of_server(kind, envelope), envelope)

    def _connect_failed(self, envelope: Envelope[Any]) -> None:
        key = _of_server("startup", envelope)
        if envelope.body.then == "retry":
            self._retry(key, envelope)
        else:
            self._end(key)

    def _session_opened(self, envelope: Envelope[Any]) -> None:
        self._end(_of_server("startup", envelope))

    def _not_opened(self, envelope: Envelope[Any]) -> None:
        for kind in _OPENING[::-1]:
            self._end(_of_server(kind, envelope))

    def _close_session(self, envelope: Envelope[Any]) -> None:
        self._begin("teardown", _of_server("teardown", envelope), envelope)

    def _session_closed(self, envelope: Envelope[Any]) -> None:
        self._end(_of_server("teardown", envelope))
        self._end(_of_server("session", envelope))

    def _call(self, envelope: Envelope[Any]) -> None:
        self._begin("tool", _of_call(envelope), envelope)

    def _settle(self, envelope: Envelope[Any]) -> None:
        self._end(_of_call(envelope))

    # --- The model ---

    def _ask(self, envelope: Envelope[Any]) -> None:
        kind: StepKind = "model" if isinstance(envelope.body, messages.RequestCompletion) else "check"
        self._begin(kind, (kind, envelope.seq), envelope)

    def _asked_again(self, envelope: Envelope[Any]) -> None:
        self._retry(self._question("model", envelope), envelope, pause_s=envelope.body.delay_s)

    def _answered(self, envelope: Envelope[Any]) -> None:
        self._end(self._question("model", envelope))

    def _dropped(self, envelope: Envelope[Any]) -> None:
        # The message's cause is the command to drop the reply, not the request.
        number = envelope.body.request
        self._end(self._asked_as(number, envelope.turn))

    def _checked(self, envelope: Envelope[Any]) -> None:
        self._end(self._question("check", envelope))

    def _question(self, kind: StepKind, envelope: Envelope[Any]) -> Hashable:
        """Return the key of the request that a reply answers; `None`: no such request is under way."""
        if envelope.cause is not None:
            return (kind, envelope.cause)
        number = getattr(envelope.body, "request", None)
        return self._asked_as(number, kind=kind)

    def _asked_as(self, number: int | None, turn: int | None = None, kind: StepKind = "model") -> Hashable:
        """Return the key of the open request with this number, in any turn if `turn` is `None`."""
        for key, step in self.open.items():
            asked = getattr(step.began.body, "request", None)
            if step.kind == kind and asked == number and turn in (None, step.turn):
                return key
        return None

    # --- All of them ---

    def _begin(self, kind: StepKind, key: Hashable, envelope: Envelope[Any]) -> None:
        if key in self.open:
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
        """End the turns in `turns` that are under way, and abandon their open steps.

        The step with the key `ended` counts as ended by the current message, and not as abandoned.
        """
        left = {turn for turn in turns if ("turn", turn) in self.open}
        self._crashed -= left
        for key in [key for key, step in self.open.items() if step.turn in left and step.kind != "host"]:
            self._end(key, reported=key == ended)

    def _abandon_all(self) -> None:
        self._crashed.clear()
        for key in [*self.open]:
            self._end(key, reported=False)

    _rules: ClassVar[dict[type, Callable[[Any, Envelope[Any]], None]]] = {
        Fact: _host_fact,
        messages.RunTurn: _run_turn,
        messages.TurnCompleted: _end_turn,
        messages.TurnFailed: _end_turn,
        messages.TurnParked: _end_turn,
        ActorFailed: _crash,
        messages.OpenSession: _open_session,
        messages.ConnectFailed: _connect_failed,
        messages.SessionOpened: _session_opened,
        messages.McpDisabled: _not_opened,
        messages.StartupFailed: _not_opened,
        messages.CloseSession: _close_session,
        messages.SessionClosed: _session_closed,
        messages.ToolCalled: _call,
        messages.ToolReturned: _settle,
        messages.ToolTimedOut: _settle,
        messages.ToolSkipped: _settle,
        messages.ServerDied: _settle,
        messages.RequestCompletion: _ask,
        messages.CheckToolSupport: _ask,
        messages.CompletionRetried: _asked_again,
        messages.CompletionReceived: _answered,
        messages.CompletionFailed: _answered,
        messages.ReplyDropped: _dropped,
        messages.ToolSupportChecked: _checked,
    }


_OPENING: tuple[StepKind, ...] = ("session", "startup")


def moves_steps(kind: type) -> bool:
    """Return whether a step may begin or end with a message of this kind."""
    if issubclass(kind, Fact):
        return kind.between_turns or bool(kind.step) or issubclass(kind, EpisodeResumed)
    return kind in StepTracker._rules  # noqa: SLF001 - of this module


def _of_server(kind: StepKind, envelope: Envelope[Any]) -> Hashable:
    return (kind, envelope.turn, envelope.body.server)


def _of_call(envelope: Envelope[Any]) -> Hashable:
    return ("tool", envelope.turn, envelope.body.batch, envelope.body.call_id)
