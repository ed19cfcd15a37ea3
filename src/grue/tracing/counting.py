"""Count an episode in one pass over its trace.

It keeps one number per call and per turn, so 10,000 turns take a few megabytes of memory.
"""

import functools
import heapq
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

from msgspec import Struct, field
from msgspec.structs import replace

from grue.facts import EPISODE_FACTS, EpisodeEnded, EpisodeResumed, EpisodeStarted, Fact
from grue.messages import (
    CallTools,
    CompletionReceived,
    CompletionRetried,
    ConnectFailed,
    McpDisabled,
    PrewarmLost,
    ReplyCut,
    ReplyDropped,
    RequestCompletion,
    ServerDied,
    ServerEnded,
    SessionClosed,
    SessionOpened,
    SessionPrewarmed,
    Settlement,
    ToolCalled,
    ToolDenied,
    ToolRejected,
    ToolReturned,
    ToolSkipped,
    ToolTimedOut,
    TurnCompleted,
    TurnParked,
    Usage,
)
from grue.runtime.trace_format import PAYLOADS
from grue.tracing.phases import PhaseClock, Phases
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader
from grue.tracing.stats import (
    Durations,
    EpisodeStats,
    ModelStats,
    ServerStats,
    SlowTurn,
    ToolStats,
    TurnStats,
)
from grue.tracing.steps import StepBegan, StepChange, StepEnded, StepTracker, moves_steps

SLOWEST_TURNS = 5


def count_episode(episode: EpisodeReader) -> EpisodeStats:
    """Read an episode once and return it in numbers.

    Raises:
        TraceError: The file is damaged.
    """
    tally = EpisodeTally()
    for line in episode.lines():
        kind = episode.kind_of_line(line)
        if kind is None or _is_counted(kind):
            tally.take(line.envelope())
        else:
            tally.pass_over(line.line.turn, line.line.t)
    return tally.stats(episode)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # removed meanwhile, or a link to nowhere


class EpisodeTally:
    """The counts of an episode, up to the envelope that was read last.

    Use it to count while an episode is read for something else. `count_episode` reads one only to count.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.resumptions = 0
        self.hosted = False
        self.ending: EpisodeEnded | None = None
        self.clock = PhaseClock()
        self.steps = StepTracker()
        self.turns = _Turns()
        self.model = _Model()
        self.calls = _Calls()
        self.servers: dict[str, _Server] = {}

    def take(self, envelope: EpisodeEnvelope) -> None:
        """Count the next envelope."""
        body = envelope.body
        kind = type(body)
        self.messages += 1
        changes = self.steps.take(envelope)
        self.clock.note(envelope.t, changes, resumed=isinstance(body, EpisodeResumed))
        self.turns.take(envelope, changes)
        if kind in _OF_MODEL:
            self.model.take(envelope, changes)
        if kind in _OF_CALLS:
            self.calls.take(envelope)
        if kind in _OF_SERVER and isinstance(body, _OfServer):
            self.servers.setdefault(body.server, _Server()).take(body, envelope.turn)
        elif isinstance(body, Fact):
            self._take_course(body)

    def pass_over(self, turn: int, t: float) -> None:
        """Count the next message without its content: no count but that of the messages depends on it."""
        self.messages += 1
        self.clock.note(t)
        self.turns.pass_over(turn, t)

    def _take_course(self, fact: Fact) -> None:
        match fact:
            case EpisodeStarted():
                self.hosted = True
            case EpisodeResumed():
                self.hosted, self.ending = True, None
                self.resumptions += 1
            case EpisodeEnded() as ending:
                self.ending = ending

    def stats(self, episode: EpisodeReader) -> EpisodeStats:
        """Return the counts of an episode that has been read to its end."""
        phases = self.clock.phases
        return EpisodeStats(
            episode=episode.header.episode,
            started_at=episode.header.started_at,
            messages=self.messages,
            trace_bytes=_size(episode.path),
            payload_bytes=sum(map(_size, (episode.path.parent / PAYLOADS).glob("*.json"))),
            cut_short=episode.cut_short,
            wall_s=phases.total_s,
            phases=phases,
            resumptions=self.resumptions,
            hosted=self.hosted,
            ending=self.ending,
            turns=self.turns.stats(),
            model=self.model.stats(),
            tools=self.calls.stats(),
            servers=tuple(server.stats(name) for name, server in self.servers.items()),
            slowest_turns=self.turns.slowest(),
        )


class _Turns:
    """Counts turns. Several turns may run at the same time, so each has its own clock."""

    def __init__(self) -> None:
        self._started = 0
        self._iterations = 0
        self._outcomes: Counter[str] = Counter()
        self._durations = array("d")
        self._slowest: list[tuple[float, int, SlowTurn]] = []
        self._clocks: dict[int, PhaseClock] = {}
        self._after: Counter[int] = Counter()  # calls that a host made itself, after the turn of its reply

    def take(self, envelope: EpisodeEnvelope, changes: Sequence[StepChange]) -> None:
        if not changes:
            self.pass_over(envelope.turn, envelope.t)
            return
        ended: StepEnded | None = None
        for change in changes:
            if change.step.kind != "turn":
                continue
            if isinstance(change, StepBegan):
                self._started += 1
                self._clocks[envelope.turn] = PhaseClock()
            elif not change.reported:
                self._clocks.pop(change.step.turn, None)
            else:
                ended = change
        clock = self._clocks.get(envelope.turn)
        if clock is None:
            if isinstance(envelope.body, ToolCalled):
                self._after[envelope.turn] += 1
            return
        own = [change for change in changes if change.step.turn == envelope.turn]
        clock.note(envelope.t, own, resumed=isinstance(envelope.body, EpisodeResumed))
        if ended is not None:
            del self._clocks[envelope.turn]
            self._ended(envelope.body, round(envelope.t - ended.step.start_s, 6), clock.phases)

    def pass_over(self, turn: int, t: float) -> None:
        clock = self._clocks.get(turn)
        if clock is not None:
            clock.note(t)

    def _ended(self, end: Any, duration_s: float, phases: Phases) -> None:
        unanswered = "parked" if isinstance(end, TurnParked) else "failed"
        outcome = end.kind if isinstance(end, TurnCompleted) else unanswered
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
        # If two turns took equally long, the earlier one is kept.
        heapq.heappush(self._slowest, (duration_s, -len(self._durations), turn))
        if len(self._slowest) > SLOWEST_TURNS:
            heapq.heappop(self._slowest)

    def slowest(self) -> tuple[SlowTurn, ...]:
        return tuple(
            replace(turn, tool_calls=turn.tool_calls + self._after[turn.turn])
            for _, _, turn in sorted(self._slowest, reverse=True)
        )

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
        self._dropped = 0
        self._usage = Usage()
        self._durations = array("d")

    def take(self, envelope: EpisodeEnvelope, changes: Sequence[StepChange]) -> None:
        match envelope.body:
            case RequestCompletion():
                self._requests += 1
            case CompletionReceived(usage=usage):
                self._usage += usage
                ended = (change.step for change in changes if isinstance(change, StepEnded))
                self._durations.extend(envelope.t - step.began.t for step in ended)
            case ReplyDropped(usage=usage):
                self._usage += usage
                self._dropped += 1
            case CompletionRetried():
                self._retries += 1
            case ReplyCut():
                self._cut_replies += 1

    def stats(self) -> ModelStats:
        return ModelStats(
            requests=self._requests,
            retries=self._retries,
            cut_replies=self._cut_replies,
            dropped_replies=self._dropped,
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
    """Counts tool calls by tool; only the model's reply has a call's canonical name."""

    def __init__(self) -> None:
        self._tools: dict[str, _Tool] = {}
        self._names: dict[tuple[int, str], str] = {}

    def take(self, envelope: EpisodeEnvelope) -> None:
        turn = envelope.turn
        match envelope.body:
            case CompletionReceived(tool_calls=calls):
                self._names.update(((turn, call.call_id), call.name) for call in calls)
            case CallTools(server=server, calls=server_calls):
                for call in server_calls:
                    self._names.setdefault((turn, call.call_id), f"{server}.{call.tool}")
            case ToolCalled(call_id=call_id):
                self._tool(turn, call_id).calls += 1
            case ToolRejected(name=name, call_id=call_id) | ToolDenied(name=name, call_id=call_id):
                # The name is the model's text: untrusted, and perhaps not the name of any tool.
                self._tools.setdefault(name, _Tool()).rejected += 1
                self._names.pop((turn, call_id), None)
            case (ToolReturned() | ToolTimedOut() | ServerDied() | ToolSkipped()) as settlement:
                self._tool(turn, settlement.call_id).settle(settlement)
                self._names.pop((turn, settlement.call_id), None)

    def _tool(self, turn: int, call_id: str) -> _Tool:
        return self._tools.setdefault(self._names.get((turn, call_id), "?"), _Tool())

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


_OF_MODEL = frozenset((RequestCompletion, CompletionReceived, ReplyDropped, CompletionRetried, ReplyCut))
_OF_CALLS = frozenset(
    (
        CompletionReceived,
        CallTools,
        ToolCalled,
        ToolRejected,
        ToolDenied,
        ToolReturned,
        ToolTimedOut,
        ServerDied,
        ToolSkipped,
    )
)

_OfServer: TypeAlias = (
    SessionOpened
    | ConnectFailed
    | McpDisabled
    | ServerDied
    | SessionClosed
    | SessionPrewarmed
    | PrewarmLost
    | ServerEnded
)


_OF_SERVER = frozenset(get_args(_OfServer))


@functools.cache
def _is_counted(kind: type[Struct]) -> bool:
    """Return whether the content of such a message counts for anything."""
    return kind in _OF_MODEL | _OF_CALLS | _OF_SERVER or issubclass(kind, EPISODE_FACTS) or moves_steps(kind)


class _Server(Struct):
    starts: int = 0
    failed_starts: int = 0
    retries: int = 0
    disabled: int = 0
    deaths: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    startups: "array[float]" = field(default_factory=lambda: array("d"))
    in_turns: set[int] = field(default_factory=set)
    spares: int = 0
    spares_lost: int = 0

    def take(self, body: _OfServer, turn: int) -> None:
        match body:
            case SessionOpened(elapsed_s=elapsed_s):
                self.starts += 1
                self.startups.append(elapsed_s)
                self.in_turns.add(turn)
            case ConnectFailed(then=then):
                self.failed_starts += 1
                self.retries += then == "retry"
            case McpDisabled(newly=newly):
                self.disabled += newly
            case ServerDied():
                self.deaths += 1
            case SessionClosed(ending=ending):
                # A cancelled session can send a second `SessionClosed` without a request.
                self.endings[ending] += turn in self.in_turns and ending != "handed_over"
                self.in_turns.discard(turn)
            case ServerEnded(ending=ending):
                self.endings[ending] += 1
            case SessionPrewarmed():
                self.spares += 1
            case PrewarmLost():
                self.spares_lost += 1

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
            spares=self.spares,
            spares_lost=self.spares_lost,
        )
