"""Assign every instant of an episode's trace to one phase, to show where the time went.

The time between two consecutive envelopes belongs to the phase that was active after the first of them.
`steps` decides what is under way. The **model** phase is active while a request is under way, retries and
their pauses included; so is a sampling and the check of the model's tool support. **Tools**, **start-up** and
**teardown** are active while a call is made, a session opens, or a session closes. If several are active, the
first in this order counts.

The remaining time of a turn is **other**: the agent itself and the answer's check. The remaining time outside
turns belongs to the **host**. So do start-up and teardown outside turns, because no turn waits for them. If
turns overlap, as in a batch, a phase is active if it is active in any of them.

Time in which no host ran, before an `EpisodeResumed` or where the clock starts again, is not part of the wall
time. The phases therefore add up to the wall time, that is, the time between the first and the last envelope
of each run of the host.
"""

from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import astuple

from grue.facts import EpisodeResumed
from grue.tracing.reading import EpisodeEnvelope
from grue.tracing.steps import StepKind, StepTracker

TimePhase: TypeAlias = Literal["model", "tools", "startup", "teardown", "host", "other"]
PHASES: tuple[TimePhase, ...] = get_args(TimePhase)

_ANYWHERE: dict[StepKind, TimePhase] = {"model": "model", "check": "model", "tool": "tools"}
_IN_A_TURN: dict[StepKind, TimePhase] = {**_ANYWHERE, "startup": "startup", "teardown": "teardown"}


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
        """The sum of all phases."""
        return round(sum(self.by_phase.values()), 6)

    @property
    def longest(self) -> TimePhase:
        """The phase that took the most time."""
        by_phase = self.by_phase
        return max(PHASES, key=lambda phase: by_phase[phase])

    @property
    def by_phase(self) -> dict[TimePhase, float]:
        """The seconds by phase."""
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
        self._steps = StepTracker()

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
        self._steps.take(envelope)

    def _phase(self) -> TimePhase:
        under_way = {step.kind for step in self._steps.open.values()}
        for kind, phase in (_ANYWHERE if "turn" not in under_way else _IN_A_TURN).items():
            if kind in under_way:
                return phase
        return "other" if "turn" in under_way else "host"
