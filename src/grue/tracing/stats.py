"""The classes for an episode's statistics.

`PhaseClock` assigns the time between two envelopes to the phase that was active after the first of them:
**model** during a request to the model with its retries, a server's request (sampling) and the check of the
model's tool support; **tools** during a call; **start-up** and **teardown** while a session opens and closes.
If several are active, also in overlapping turns (`Runner.map`), the first in this order counts. The rest of a
turn is **other** (the agent, the check of the answer, waiting for a person), and the rest of the time belongs
to the **host**, as do start-up and teardown outside turns. The wall time leaves out time in which no host
ran: before an `EpisodeResumed`, and before an envelope with a lower time than the one before it.
"""

import functools
import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import astuple

from grue import messages as m
from grue.tracing.facts import EpisodeEnded
from grue.tracing.steps import StepBegan, StepChange, StepKind

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


class PhaseClock:
    """Adds up how long each phase of an episode has lasted. Call `note` for each envelope, in order."""

    def __init__(self) -> None:
        # Integers add up exactly.
        self._microseconds = dict.fromkeys(PHASES, 0)
        self._counted = 0  # the time up to which `_microseconds` is complete, in microseconds
        self._last = math.inf  # the time of the last envelope; infinite until the first one
        self._open: dict[Hashable, StepKind] = {}
        self._phase: TimePhase = "host"

    @property
    def phases(self) -> Phases:
        """Seconds in each phase so far."""
        self._count_until(self._last)
        return Phases(**{f"{phase}_s": count / 1e6 for phase, count in self._microseconds.items()})

    def note(self, t: float, changes: Sequence[StepChange] = (), *, resumed: bool = False) -> None:
        """Count the time since the last envelope, unless a host was started (`resumed`); apply `changes`."""
        if resumed or t < self._last:
            # `t < self._last`: the host was started again, or this is the first envelope.
            self._count_until(self._last)
            self._counted = round(t * 1e6)
        elif changes:
            self._count_until(t)
        self._last = t
        if not changes:
            return
        for change in changes:
            if isinstance(change, StepBegan):
                self._open[change.step.key] = change.step.kind
            elif not change.retried:
                self._open.pop(change.step.key, None)
        self._phase = _phase_of(frozenset(self._open.values()))

    def _count_until(self, t: float) -> None:
        if t != math.inf:
            at = round(t * 1e6)
            self._microseconds[self._phase] += at - self._counted
            self._counted = at


@functools.lru_cache(maxsize=512)
def _phase_of(kinds: frozenset[StepKind]) -> TimePhase:
    in_a_turn = "turn" in kinds
    for kind, phase in (_IN_A_TURN if in_a_turn else _ANYWHERE).items():
        if kind in kinds:
            return phase
    return "other" if in_a_turn else "host"


class Durations(Struct, frozen=True, kw_only=True):
    """The number, sum, percentiles (by nearest rank) and maximum of some durations; 0 if there are none."""

    count: int = 0
    total_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    max_s: float = 0.0

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Durations":
        """Return the `Durations` of measured times, which need not be sorted."""
        ordered = sorted(seconds)
        if not ordered:
            return cls()
        return cls(
            count=len(ordered),
            total_s=round(sum(ordered), 6),
            p50_s=round(nearest_rank(ordered, 50), 6),
            p95_s=round(nearest_rank(ordered, 95), 6),
            max_s=round(ordered[-1], 6),
        )


class TurnStats(Struct, frozen=True, kw_only=True):
    """The turns of an episode. A turn that is parked and resumed counts once, with its last outcome."""

    started: int
    outcomes: dict[str, int]  # `answered`, ..., `failed`, `parked`; `unfinished`: without a recorded end
    open: int = 0  # how many `unfinished` turns were not run again; a resumed `map` runs them again
    parkings: int = 0
    iterations: int  # replies with tool calls, in turns that have ended or were parked
    duration: Durations  # a turn that was parked has a duration for each of its parts


class ModelStats(Struct, frozen=True, kw_only=True):
    """The requests to the model."""

    requests: int = 0  # how many, including those of servers (sampling)
    retries: int = 0  # how often a request was sent again after a failure
    cut_replies: int = 0  # how many replies ended at their length limit
    usage: m.Usage  # the sum, with estimates for what the endpoint does not report
    duration: Durations  # how long answered requests took, from the first attempt on
    dropped_replies: int = 0  # how many were dropped, as tools were not as presumed or a server did not start
    cut_results: int = 0  # how many tool results were cut before the model read them


class ToolStats(Struct, frozen=True, kw_only=True):
    """The calls of one tool."""

    tool: str  # the name with the server's, such as `files.read`; the model may have invented it
    calls: int = 0  # how many were sent to the server; the next four fields count their ends
    returned: int = 0
    errors: int = 0
    timed_out: int = 0
    lost: int = 0  # how many ended with the server's death
    skipped: int = 0  # how many were not sent, for example after a call that timed out
    rejected: int = 0  # how many were not sent: unknown or changed tool, or invalid arguments
    denied: int = 0  # how many were not sent: denied by the policy or a person, or nobody answered
    duration: Durations  # how long the calls took that were sent and have ended


class ServerStats(Struct, frozen=True, kw_only=True):
    """The sessions of one tool server."""

    server: str
    starts: int = 0  # how many sessions opened
    failed_starts: int = 0
    retries: int = 0  # how many failed attempts were followed by another
    disabled: int = 0
    deaths: int = 0  # how often the server died during a call
    endings: dict[str, int]  # how many sessions had each `ProcessEnding`
    startup: Durations  # how long the attempts took that opened a session
    spares: int = 0  # how many sessions were opened in advance, or for calls outside turns
    spares_lost: int = 0  # how many spares, or sessions kept between turns, could not be used


class SlowTurn(Struct, frozen=True, kw_only=True):
    """A turn that took long, and where its time went."""

    turn: int
    duration_s: float
    outcome: str
    requests: int
    tool_calls: int
    phases: Phases


class EpisodeStats(Struct, frozen=True, kw_only=True):
    """The statistics of an episode."""

    episode: str
    started_at: float  # seconds since the epoch
    messages: int
    trace_bytes: int
    payload_bytes: int
    cut_short: bool  # whether the last line is incomplete
    missing: int  # how many message numbers the file skips
    wall_s: float  # the time while a host ran: the sum of `phases`
    phases: Phases
    resumptions: int
    hosted: bool  # whether a host recorded that the episode began or was resumed
    ending: EpisodeEnded | None
    turns: TurnStats
    model: ModelStats
    tools: tuple[ToolStats, ...]
    servers: tuple[ServerStats, ...]
    slowest_turns: tuple[SlowTurn, ...]  # at most five turns, the slowest first


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values by nearest rank. There must be at least one value."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
