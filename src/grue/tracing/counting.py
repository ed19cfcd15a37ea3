"""Count an episode in one pass over its trace.

What is kept is a number for each call and each turn, so that 10,000 turns take a few megabytes.
"""

import heapq
from array import array
from collections import Counter

from msgspec import Struct, field

from grue.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted
from grue.messages import (
    CallTools,
    CompletionReceived,
    CompletionRetried,
    ConnectFailed,
    McpDisabled,
    ReplyCut,
    RequestCompletion,
    RunTurn,
    ServerDied,
    SessionClosed,
    SessionOpened,
    Settlement,
    ToolCalled,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnCompleted,
    TurnFailed,
    Usage,
)
from grue.runtime.trace_format import PAYLOADS
from grue.tracing.phases import PhaseClock, Phases
from grue.tracing.reading import EpisodeBody, EpisodeEnvelope, EpisodeReader
from grue.tracing.stats import (
    Durations,
    EpisodeStats,
    ModelStats,
    ServerStats,
    SlowTurn,
    ToolStats,
    TurnStats,
)

SLOWEST_TURNS = 5


def count_episode(episode: EpisodeReader) -> EpisodeStats:
    """Read an episode once and return it in numbers.

    Raises:
        TraceError: The file is damaged.
    """
    tally = _Tally()
    for envelope in episode:
        tally.take(envelope)
    phases = tally.clock.phases
    return EpisodeStats(
        episode=episode.header.episode,
        started_at=episode.header.started_at,
        messages=tally.messages,
        trace_bytes=episode.path.stat().st_size,
        payload_bytes=sum(path.stat().st_size for path in (episode.path.parent / PAYLOADS).glob("*.json")),
        cut_short=episode.cut_short,
        wall_s=phases.total_s,
        phases=phases,
        resumptions=tally.resumptions,
        hosted=tally.hosted,
        ending=tally.ending,
        turns=tally.turns.stats(),
        model=tally.model.stats(),
        tools=tally.calls.stats(),
        servers=tuple(server.stats(name) for name, server in tally.servers.items()),
        slowest_turns=tally.turns.slowest(),
    )


class _Tally:
    """An episode, counted as far as it was read."""

    def __init__(self) -> None:
        self.messages = 0
        self.resumptions = 0
        self.hosted = False
        self.ending: EpisodeEnded | None = None
        self.clock = PhaseClock()
        self.turns = _Turns()
        self.model = _Model()
        self.calls = _Calls()
        self.servers: dict[str, _Server] = {}

    def take(self, envelope: EpisodeEnvelope) -> None:
        self.messages += 1
        self.clock.take(envelope)
        self.turns.take(envelope, self.clock)
        self.model.take(envelope)
        self.calls.take(envelope.body)
        self._take_server(envelope.body)
        match envelope.body:
            case EpisodeStarted():
                self.hosted = True
            case EpisodeResumed():
                self.hosted, self.ending = True, None
                self.resumptions += 1
            case EpisodeEnded() as ending:
                self.ending = ending

    def _take_server(self, body: EpisodeBody) -> None:
        if isinstance(body, SessionOpened | ConnectFailed | McpDisabled | ServerDied | SessionClosed):
            self.servers.setdefault(body.server, _Server()).take(body)


class _Turns:
    def __init__(self) -> None:
        self._started = 0
        self._iterations = 0
        self._outcomes: Counter[str] = Counter()
        self._durations = array("d")
        self._slowest: list[tuple[float, int, SlowTurn]] = []
        self._began: tuple[float, Phases] | None = None

    def take(self, envelope: EpisodeEnvelope, clock: PhaseClock) -> None:
        match envelope.body:
            case RunTurn():
                self._started += 1
                self._began = (envelope.t, clock.phases)
            case TurnCompleted() | TurnFailed() as end if self._began is not None:
                began, before = self._began
                self._began = None
                self._ended(end, round(envelope.t - began, 6), clock.phases - before)

    def _ended(self, end: TurnCompleted | TurnFailed, duration_s: float, phases: Phases) -> None:
        outcome = end.kind if isinstance(end, TurnCompleted) else "failed"
        self._outcomes[outcome] += 1
        self._iterations += end.iterations
        self._durations.append(duration_s)
        turn = SlowTurn(
            turn=end.turn,
            duration_s=duration_s,
            outcome=outcome,
            requests=end.requests,
            tool_calls=len(end.tool_calls),
            phases=phases,
        )
        # Of two that took as long the earlier one is kept.
        heapq.heappush(self._slowest, (duration_s, -self._started, turn))
        if len(self._slowest) > SLOWEST_TURNS:
            heapq.heappop(self._slowest)

    def slowest(self) -> tuple[SlowTurn, ...]:
        return tuple(turn for _, _, turn in sorted(self._slowest, reverse=True))

    def stats(self) -> TurnStats:
        unfinished = self._started - len(self._durations)
        return TurnStats(
            started=self._started,
            outcomes={**self._outcomes, **({"unfinished": unfinished} if unfinished else {})},
            iterations=self._iterations,
            duration=Durations.of(self._durations),
        )


class _Model:
    def __init__(self) -> None:
        self._requests = 0
        self._retries = 0
        self._cut_replies = 0
        self._usage = Usage()
        self._durations = array("d")
        self._asked: dict[int, float] = {}

    def take(self, envelope: EpisodeEnvelope) -> None:
        match envelope.body:
            case RunTurn():
                self._asked.clear()
            case RequestCompletion():
                self._requests += 1
                self._asked[envelope.seq] = envelope.t
            case CompletionReceived(usage=usage):
                self._usage += usage
                asked = self._asked.pop(envelope.cause or 0, None)
                if asked is not None:
                    self._durations.append(envelope.t - asked)
            case CompletionRetried():
                self._retries += 1
            case ReplyCut():
                self._cut_replies += 1

    def stats(self) -> ModelStats:
        return ModelStats(
            requests=self._requests,
            retries=self._retries,
            cut_replies=self._cut_replies,
            usage=self._usage,
            duration=Durations.of(self._durations),
        )


class _Tool(Struct):
    calls: int = 0
    returned: int = 0
    errors: int = 0
    timed_out: int = 0
    lost: int = 0
    skipped: int = 0
    rejected: int = 0
    durations: "array[float]" = field(default_factory=lambda: array("d"))

    def settle(self, settlement: Settlement) -> None:
        match settlement:
            case ToolSkipped():
                self.skipped += 1
                return
            case ToolReturned(result=result):
                self.errors += result.is_error
                self.returned += not result.is_error
            case ToolTimedOut():
                self.timed_out += 1
            case ServerDied():
                self.lost += 1
        self.durations.append(settlement.duration_s)


class _Calls:
    """Tool calls by their tools; only the model's own reply has a call's canonical name."""

    def __init__(self) -> None:
        self._tools: dict[str, _Tool] = {}
        self._names: dict[str, str] = {}

    def take(self, body: EpisodeBody) -> None:
        match body:
            case CompletionReceived(tool_calls=calls):
                self._names.update((call.call_id, call.name) for call in calls)
            case CallTools(server=server, calls=server_calls):
                for call in server_calls:
                    self._names.setdefault(call.call_id, f"{server}.{call.tool}")
            case ToolCalled():
                self._tool(body.call_id).calls += 1
            case ToolRejected():
                # What the model asked for may be no tool's name; it is untrusted text.
                self._tools.setdefault(body.name, _Tool()).rejected += 1
                self._names.pop(body.call_id, None)
            case ToolReturned() | ToolTimedOut() | ServerDied() | ToolSkipped():
                self._tool(body.call_id).settle(body)
                self._names.pop(body.call_id, None)

    def _tool(self, call_id: str) -> _Tool:
        return self._tools.setdefault(self._names.get(call_id, "?"), _Tool())

    def stats(self) -> tuple[ToolStats, ...]:
        return tuple(
            ToolStats(
                tool=name,
                calls=tool.calls,
                returned=tool.returned,
                errors=tool.errors,
                timed_out=tool.timed_out,
                lost=tool.lost,
                skipped=tool.skipped,
                rejected=tool.rejected,
                duration=Durations.of(tool.durations),
            )
            for name, tool in sorted(self._tools.items())
        )


class _Server(Struct):
    starts: int = 0
    failed_starts: int = 0
    retries: int = 0
    disabled: int = 0
    deaths: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    startups: "array[float]" = field(default_factory=lambda: array("d"))
    is_open: bool = False

    def take(self, body: SessionOpened | ConnectFailed | McpDisabled | ServerDied | SessionClosed) -> None:
        match body:
            case SessionOpened(elapsed_s=elapsed_s):
                self.starts += 1
                self.startups.append(elapsed_s)
                self.is_open = True
            case ConnectFailed(then=then):
                self.failed_starts += 1
                self.retries += then == "retry"
            case McpDisabled(newly=newly):
                self.disabled += newly
            case ServerDied():
                self.deaths += 1
            case SessionClosed(ending=ending):
                # A session that is cancelled can say a second time, unasked, that it is closed.
                self.endings[ending] += self.is_open
                self.is_open = False

    def stats(self, name: str) -> ServerStats:
        return ServerStats(
            server=name,
            starts=self.starts,
            failed_starts=self.failed_starts,
            retries=self.retries,
            disabled=self.disabled,
            deaths=self.deaths,
            endings={ending: count for ending, count in self.endings.items() if count},
            startup=Durations.of(self.startups),
        )
