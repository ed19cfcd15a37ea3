"""The statistics of an episode, as data; `counts.py` computes them, `stats_table.py` prints them.

Percentiles use the nearest rank, so each is a value that was measured: the smallest one that is at least as
large as the given percentage of all values. Times are rounded to the microsecond. `phases.py` assigns them.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from grue import messages as m
from grue.tracing.facts import EpisodeEnded
from grue.tracing.phases import Phases


class Durations(Struct, frozen=True, kw_only=True):
    """Durations in seconds; percentiles by nearest rank, all 0 if nothing was measured."""

    count: int = 0
    total_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    max_s: float = 0.0

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Durations":
        """Sum up what was measured."""
        ordered = sorted(seconds)
        if not ordered:
            return cls()
        return cls(
            count=len(ordered),
            total_s=round(math.fsum(ordered), 6),
            p50_s=round(nearest_rank(ordered, 50), 6),
            p95_s=round(nearest_rank(ordered, 95), 6),
            max_s=round(ordered[-1], 6),
        )


class TurnStats(Struct, frozen=True, kw_only=True):
    """The turns of an episode.

    Attributes:
        started: `RunTurn` messages.
        outcomes: How many ended how: the kinds of `TurnCompleted`; `failed`; `unfinished`: killed, crashed,
            or still under way.
        iterations: Replies with tool calls, of turns that ended.
        duration: From `RunTurn` to `TurnCompleted` or `TurnFailed`.
    """

    started: int
    outcomes: dict[str, int]
    iterations: int
    duration: Durations


class ModelStats(Struct, frozen=True, kw_only=True):
    """The requests to the model.

    Attributes:
        requests: Completions that were requested, including servers' samplings.
        retries: Requests that were sent again after a failure.
        cut_replies: Replies that ended at their length limit.
        dropped_replies: Replies that were dropped, because the tools were not as they were presumed.
        usage: Tokens and cost of all replies; of a request that was cancelled when its reply was dropped, an
            estimate.
        duration: Durations of requests that got a reply, from the first attempt to the reply.
    """

    requests: int
    retries: int
    cut_replies: int
    usage: m.Usage
    duration: Durations
    dropped_replies: int = 0


class ToolStats(Struct, frozen=True, kw_only=True):
    """The calls of one tool, by its canonical name.

    Attributes:
        calls: Sent to the server; each one that ended is also counted in one of the next four.
        returned: Answered with a result.
        errors: Answered with an error.
        timed_out: Not answered in time.
        lost: Not answered because the server died.
        skipped: Never sent: something before it went wrong.
        rejected: Never sent: unknown tool or unreadable arguments.
        duration: Durations of the calls that ended, as the session measured them.
    """

    tool: str
    calls: int
    returned: int
    errors: int
    timed_out: int
    lost: int
    skipped: int
    rejected: int
    duration: Durations


class ServerStats(Struct, frozen=True, kw_only=True):
    """The sessions of one tool server.

    Attributes:
        starts: Sessions that opened.
        failed_starts: Attempts to connect that failed.
        retries: Of those, followed by another attempt.
        disabled: How often it was disabled for the rest of the episode.
        deaths: Deaths in the middle of a call.
        endings: How its processes ended, from `SessionClosed` or, if a process outlived its turn, from
            `ServerEnded`; a session without a process: `none`.
        startup: How long turns waited for the sessions that opened, as the session measured it.
        spares: Sessions that were prewarmed.
        spares_lost: Prewarmed or kept sessions that could not be used when their turn began.
    """

    server: str
    starts: int
    failed_starts: int
    retries: int
    disabled: int
    deaths: int
    endings: dict[str, int]
    startup: Durations
    spares: int = 0
    spares_lost: int = 0


class SlowTurn(Struct, frozen=True, kw_only=True):
    """A turn that took long, and where its time went."""

    turn: int
    duration_s: float
    outcome: str
    requests: int
    tool_calls: int
    phases: Phases


class EpisodeStats(Struct, frozen=True, kw_only=True):
    """An episode in numbers.

    Attributes:
        started_at: Seconds since the epoch.
        wall_s: The sum of the phases, that is, the time during which a host ran.
        resumptions: How often the episode was resumed after an interruption.
        ending: Why the host ended it; `None`: it has not ended.
        tools: By name.
        servers: In the order of their first message.
        slowest_turns: The slowest first, at most five.
        trace_bytes: Size of the trace file.
        payload_bytes: Size of the payloads beside it.
        hosted: A host recorded an episode. Otherwise the trace consists of turns only.
        cut_short: Its last line is incomplete: the host was killed while it wrote it.
    """

    episode: str
    started_at: float
    messages: int
    trace_bytes: int
    payload_bytes: int
    cut_short: bool
    wall_s: float
    phases: Phases
    resumptions: int
    hosted: bool
    ending: EpisodeEnded | None
    turns: TurnStats
    model: ModelStats
    tools: tuple[ToolStats, ...]
    servers: tuple[ServerStats, ...]
    slowest_turns: tuple[SlowTurn, ...]


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values, of which there is at least one."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
