"""Assign every instant of an episode's trace to one phase, to show where the time went.

The time between two consecutive envelopes belongs to the phase that was active after the first of them. A
phase is active as follows:

- the **model** from `RequestCompletion` to the `CompletionReceived` or `CompletionFailed` that it caused,
  retries and their pauses included, and from `CheckToolSupport` to `ToolSupportChecked`; so is a sampling;
- **tools** from `ToolCalled` to the `ToolReturned`, `ToolTimedOut` or `ServerDied` of the same call;
- **start-up** from `OpenSession` to the server's `SessionOpened`, `McpDisabled` or `StartupFailed`;
- **teardown** from `CloseSession` to the server's `SessionClosed`.

If several phases are active, the first in this order counts. A turn lasts from `RunTurn` to `TurnCompleted`
or `TurnFailed`; its remaining time is **other**: the agent itself and the answer's check. The remaining time
outside turns belongs to the **host**, including its game. So do start-up and teardown outside turns, because
no turn waits for them. Opening a session before its turn, or ending it after its turn, does not count for the
turn either; only the time that a turn waits for it counts.

If turns overlap, as in a batch, a phase is active if it is active in any of them.

A turn that was killed or crashed has no end of its own. The host's next fact ends it, together with
everything that was active in it; a crashed turn is also ended by the next `RunTurn`. Time in which no host
ran, before an `EpisodeResumed` or where the clock starts again, is not part of the wall time. The phases
therefore add up to the wall time, that is, the time between the first and the last envelope of each run of
the host.
"""

from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import astuple

from grue.facts import EpisodeResumed, HostFact
from grue.messages import (
    CheckToolSupport,
    CloseSession,
    CompletionFailed,
    CompletionReceived,
    McpDisabled,
    OpenSession,
    RequestCompletion,
    RunTurn,
    ServerDied,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolCalled,
    ToolReturned,
    ToolSupportChecked,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
)
from grue.runtime.supervisor import ActorFailed
from grue.tracing.reading import EpisodeEnvelope

Phase: TypeAlias = Literal["model", "tools", "startup", "teardown", "host", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)


class Phases(Struct, frozen=True, kw_only=True):
    """Seconds in each phase, exact to the microsecond."""

    model_s: float = 0.0
    tools_s: float = 0.0
    startup_s: float = 0.0
    teardown_s: float = 0.0
    host_s: float = 0.0
    other_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Their sum."""
        return round(sum(self.by_phase.values()), 6)

    @property
    def longest(self) -> Phase:
        """The phase that took the most."""
        by_phase = self.by_phase
        return max(PHASES, key=lambda phase: by_phase[phase])

    @property
    def by_phase(self) -> dict[Phase, float]:
        """The same by phase."""
        return dict(zip(PHASES, astuple(self), strict=True))

    def __sub__(self, earlier: "Phases") -> "Phases":
        """Return the time that passed since `earlier`."""
        passed = zip(self.__struct_fields__, astuple(self), astuple(earlier), strict=True)
        return Phases(**{name: round(now - then, 6) for name, now, then in passed})


class PhaseClock:
    """Takes an episode's envelopes in order and measures how long each phase has lasted."""

    def __init__(self) -> None:
        # Integers add up exactly; the file has times in microseconds.
        self._microseconds = dict.fromkeys(PHASES, 0)
        self._t: float | None = None
        self._turns: set[int] = set()
        self._crashed: set[int] = set()
        # The active steps, by the number of their turn, because turns overlap in a batch.
        self._asked: set[tuple[int, int]] = set()
        self._called: set[tuple[int, int, str]] = set()
        self._opening: set[tuple[int, str]] = set()
        self._closing: set[tuple[int, str]] = set()

    @property
    def phases(self) -> Phases:
        """Seconds in each phase so far."""
        return Phases(**{f"{phase}_s": count / 1e6 for phase, count in self._microseconds.items()})

    def take(self, envelope: EpisodeEnvelope) -> None:
        """Count the time until this envelope, then start or end the phases that it starts or ends."""
        resumed = isinstance(envelope.body, EpisodeResumed)
        if self._t is not None and envelope.t >= self._t and not resumed:
            self._microseconds[self._phase()] += round(envelope.t * 1e6) - round(self._t * 1e6)
        self._t = envelope.t
        self._step(envelope)

    def _phase(self) -> Phase:
        if self._asked:
            return "model"
        if self._called:
            return "tools"
        if not self._turns:
            return "host"
        if self._opening:
            return "startup"
        return "teardown" if self._closing else "other"

    def _step(self, envelope: EpisodeEnvelope) -> None:
        turn = envelope.turn
        match envelope.body:
            case RequestCompletion() | CheckToolSupport():
                self._asked.add((turn, envelope.seq))
            case CompletionReceived() | CompletionFailed() | ToolSupportChecked():
                self._asked.discard((turn, envelope.cause or 0))
            case ToolCalled(batch=batch, call_id=call_id):
                self._called.add((turn, batch, call_id))
            case (
                ToolReturned(batch=batch, call_id=call_id)
                | ToolTimedOut(batch=batch, call_id=call_id)
                | ServerDied(batch=batch, call_id=call_id)
            ):
                self._called.discard((turn, batch, call_id))
            case OpenSession(server=server):
                self._opening.add((turn, server))
            case SessionOpened(server=server) | McpDisabled(server=server) | StartupFailed(server=server):
                self._opening.discard((turn, server))
            case CloseSession(server=server):
                self._closing.add((turn, server))
            case SessionClosed(server=server):
                self._closing.discard((turn, server))
            case RunTurn():
                self._leave({turn, *self._crashed})
                self._turns.add(turn)
            case TurnCompleted() | TurnFailed():
                self._leave({turn})
            case ActorFailed():
                self._crashed.add(turn)
            case body if isinstance(body, HostFact):
                # An episode's host records facts only while no turn runs; a batch, where turns overlap, has
                # no host.
                self._leave(set(self._turns))

    def _leave(self, turns: set[int]) -> None:
        # A session that is opened ahead of a turn may still be opening when the turn begins.
        left = turns & self._turns
        self._asked = {item for item in self._asked if item[0] not in left}
        self._called = {item for item in self._called if item[0] not in left}
        self._opening = {item for item in self._opening if item[0] not in left}
        self._closing = {item for item in self._closing if item[0] not in left}
        self._turns -= left
        self._crashed -= left
