"""The counts of an episode: of its turns, its requests to the model, its tool calls and its servers.

An episode is counted in one pass over its trace. Only one number per call and per turn is kept, so 10,000
turns take a few megabytes of memory.
"""

import functools
import heapq
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.built_in import named_call
from grue.runtime.trace.format import PAYLOADS
from grue.runtime.trace.recorder import Envelope
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted
from grue.tracing.message_words import cut_results
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader
from grue.tracing.stats import (
    Durations,
    EpisodeStats,
    ModelStats,
    PhaseClock,
    Phases,
    ServerStats,
    SlowTurn,
    ToolStats,
    TurnStats,
)
from grue.tracing.steps import StepBegan, StepChange, StepEnded, StepTracker, moves_steps

SLOWEST_TURNS = 5


class TurnCounts:
    """Counts turns. Several turns may run at the same time, so each has its own clock."""

    def __init__(self) -> None:
        self._started = 0
        self._iterations = 0
        self._outcomes: Counter[str] = Counter()
        self._durations = array("d")
        self._slowest: list[tuple[float, int, SlowTurn]] = []
        self._clocks: dict[int, PhaseClock] = {}
        self._after: Counter[int] = Counter()  # the calls that the host made itself after each turn

    def take(self, envelope: EpisodeEnvelope, changes: Sequence[StepChange]) -> None:
        """Count a message and the steps that begin or end with it."""
        if not changes:
            return  # no step begins or ends, so the current phase goes on
        turn = envelope.turn
        ended, own = None, changes
        if len(changes) > 1 or changes[0].step.kind == "turn" or changes[0].step.turn != turn:
            ended = self._begin_and_end(turn, changes)
            own = [change for change in changes if change.step.turn == turn]
        clock = self._clocks.get(turn)
        if clock is None:
            if isinstance(envelope.body, m.ToolCalled):
                self._after[turn] += 1
            return
        clock.note(envelope.t, own)
        if ended is not None:
            del self._clocks[turn]
            self._ended(envelope.body, round(envelope.t - ended.step.start_s, 6), clock.phases)

    def _begin_and_end(self, turn: int, changes: Sequence[StepChange]) -> StepEnded | None:
        """Begin and end the clocks of turns; return the end of the turn that the current message reports."""
        ended = None
        for change in changes:
            if change.step.kind != "turn":
                continue
            if isinstance(change, StepBegan):
                self._started += 1
                self._clocks[turn] = PhaseClock()
            elif not change.reported:
                self._clocks.pop(change.step.turn, None)
            else:
                ended = change
        return ended

    def _ended(self, end: Any, duration_s: float, phases: Phases) -> None:
        unanswered = "parked" if isinstance(end, m.TurnParked) else "failed"
        outcome = end.kind if isinstance(end, m.TurnCompleted) else unanswered
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
        # Of two turns that took equally long, keep the earlier one.
        heapq.heappush(self._slowest, (duration_s, -len(self._durations), turn))
        if len(self._slowest) > SLOWEST_TURNS:
            heapq.heappop(self._slowest)

    def slowest(self) -> tuple[SlowTurn, ...]:
        """Return the slowest turns, the slowest first; of two that took equally long, the earlier one."""
        return tuple(
            replace(turn, tool_calls=turn.tool_calls + self._after[turn.turn])
            for _, _, turn in sorted(self._slowest, reverse=True)
        )

    def stats(self) -> TurnStats:
        """Return the counts of the turns."""
        unfinished = self._started - len(self._durations)
        return TurnStats(
            started=self._started,
            outcomes={**self._outcomes, **({"unfinished": unfinished} if unfinished else {})},
            iterations=self._iterations,
            duration=Durations.of(self._durations),
        )


class ModelCounts:
    """Counts the requests to the model, and the tokens of its replies."""

    def __init__(self) -> None:
        self.requests = 0
        self.retries = 0
        self.cut_replies = 0
        self.cut_results = 0
        self._dropped = 0
        self._usage = m.Usage()
        self._durations = array("d")

    def reply(self, t: float, usage: m.Usage, changes: Sequence[StepChange]) -> None:
        """Count a reply, and the duration of the request that ends with it."""
        self._usage += usage
        for change in changes:
            if isinstance(change, StepEnded):
                self._durations.append(t - change.step.began.t)

    def drop(self, usage: m.Usage) -> None:
        """Count a reply that was dropped, and its usage."""
        self._usage += usage
        self._dropped += 1

    def stats(self) -> ModelStats:
        """Return the counts of the requests."""
        return ModelStats(
            requests=self.requests,
            retries=self.retries,
            cut_replies=self.cut_replies,
            cut_results=self.cut_results,
            dropped_replies=self._dropped,
            usage=self._usage,
            duration=Durations.of(self._durations),
        )


class ToolCounts(Struct):
    """Counts the calls of one tool."""

    calls: int = 0
    returned: int = 0
    errors: int = 0
    timed_out: int = 0
    lost: int = 0
    skipped: int = 0
    rejected: int = 0
    durations: "array[float]" = field(default_factory=lambda: array("d"))

    def settle(self, settlement: m.Settlement) -> None:
        """Count how a call ended."""
        match settlement:
            case m.ToolReturned(result=result):
                self.errors += result.is_error
                self.returned += not result.is_error
            case m.ToolSkipped(refused=True):
                self.rejected += 1
                return
            case m.ToolSkipped():
                self.skipped += 1
                return
            case m.ToolTimedOut():
                self.timed_out += 1
            case m.ServerDied():
                self.lost += 1
        self.durations.append(settlement.duration_s)


class CallCounts:
    """Counts tool calls by tool. The canonical name of a call is remembered from the model's reply."""

    def __init__(self) -> None:
        self._tools: dict[str, ToolCounts] = {}
        self._names: dict[tuple[int, str], str] = {}

    def name(self, turn: int, calls: Iterable[m.ToolCall]) -> None:
        """Remember the canonical names of the calls in a reply."""
        self._names.update(((turn, call.call_id), call.name) for call in map(named_call, calls))

    def route(self, turn: int, server: str, calls: Iterable[m.ServerCall]) -> None:
        """Remember the names of calls that a server gets, if no reply in the trace has named them."""
        for call in calls:
            self._names.setdefault((turn, call.call_id), f"{server}.{call.tool}")

    def call(self, turn: int, call_id: str) -> None:
        """Count a call that was sent."""
        self._tool(turn, call_id).calls += 1

    def refuse(self, turn: int, call_id: str, name: str) -> None:
        """Count a call that was never sent."""
        # Count the call by the name that the model wrote, which is untrusted and may be the name of no tool.
        self._tools.setdefault(name, ToolCounts()).rejected += 1
        self._names.pop((turn, call_id), None)

    def settle(self, turn: int, settlement: m.Settlement) -> None:
        """Count how a call ended, and forget its name."""
        self._tool(turn, settlement.call_id).settle(settlement)
        self._names.pop((turn, settlement.call_id), None)

    def _tool(self, turn: int, call_id: str) -> ToolCounts:
        return self._tools.setdefault(self._names.get((turn, call_id), "?"), ToolCounts())

    def stats(self) -> tuple[ToolStats, ...]:
        """Return the counts of each tool, sorted by name."""
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


class ServerCounts(Struct):
    """Counts the sessions of one server."""

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

    def open(self, turn: int, elapsed_s: float) -> None:
        """Count a session that opened."""
        self.starts += 1
        self.startups.append(elapsed_s)
        self.in_turns.add(turn)

    def fail(self, then: str) -> None:
        """Count an attempt to connect that failed."""
        self.failed_starts += 1
        self.retries += then == "retry"

    def close(self, turn: int, ending: str) -> None:
        """Count how a session ended."""
        # Count a session once: a cancelled session can send a second `SessionClosed`, which nobody requested,
        # and for a session that was handed over, a later message reports the end.
        self.endings[ending] += turn in self.in_turns and ending != "handed_over"
        self.in_turns.discard(turn)

    def stats(self, name: str) -> ServerStats:
        """Return the counts of the sessions."""
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


def count_episode(episode: EpisodeReader) -> EpisodeStats:
    """Read an episode's trace once and return its counts.

    Raises:
        TraceError: The file is damaged.
    """
    tally = EpisodeTally()
    for line in episode.lines():
        kind = episode.kind_of_line(line)
        if kind is None or _is_counted(kind):
            tally.take(line.envelope())
        else:
            tally.pass_over(line.line.t)
    return tally.stats(episode)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # the file was removed meanwhile, or is a broken link


class EpisodeTally:
    """The counts of an episode, up to the envelope that was read last.

    Use an `EpisodeTally` to count while you read an episode for another purpose. Otherwise call
    `count_episode`, which reads the episode only to count.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.resumptions = 0
        self.hosted = False
        self.ending: EpisodeEnded | None = None
        self.clock = PhaseClock()
        self.steps = StepTracker()
        self.turns = TurnCounts()
        self.model = ModelCounts()
        self.calls = CallCounts()
        self.servers: dict[str, ServerCounts] = {}

    def take(self, envelope: EpisodeEnvelope) -> None:
        """Count the next envelope."""
        self.messages += 1
        changes = self.steps.take(envelope)
        self.clock.note(envelope.t, changes, resumed=isinstance(envelope.body, EpisodeResumed))
        self.turns.take(envelope, changes)
        count = _count_of(type(envelope.body))
        if count is not None:
            count(self, envelope, changes)

    def pass_over(self, t: float) -> None:
        """Count the next message of a kind whose content no count needs, without decoding it."""
        self.messages += 1
        self.clock.note(t)

    def server(self, body: Any) -> "ServerCounts":
        """Return the counts of the server that a message names."""
        return self.servers.setdefault(body.server, ServerCounts())

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


# --- What each kind of message counts for ---


def _reply(tally: EpisodeTally, envelope: Envelope[Any], changes: Sequence[StepChange]) -> None:
    tally.model.reply(envelope.t, envelope.body.usage, changes)
    tally.calls.name(envelope.turn, envelope.body.tool_calls)


def _request(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.model.requests += 1
    tally.model.cut_results += len(cut_results(envelope.body))


def _retry(tally: EpisodeTally, *_: Any) -> None:
    tally.model.retries += 1


def _cut(tally: EpisodeTally, *_: Any) -> None:
    tally.model.cut_replies += 1


def _drop(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.model.drop(envelope.body.usage)


def _route(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.calls.route(envelope.turn, envelope.body.server, envelope.body.calls)


def _call(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.calls.call(envelope.turn, envelope.body.call_id)


def _refuse(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.calls.refuse(envelope.turn, envelope.body.call_id, envelope.body.name)


def _settle(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.calls.settle(envelope.turn, envelope.body)


def _die(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    _settle(tally, envelope, _)
    tally.server(envelope.body).deaths += 1


def _open(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.server(envelope.body).open(envelope.turn, envelope.body.elapsed_s)


def _fail(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.server(envelope.body).fail(envelope.body.then)


def _disable(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.server(envelope.body).disabled += envelope.body.newly


def _close(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.server(envelope.body).close(envelope.turn, envelope.body.ending)


def _end_process(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.server(envelope.body).endings[envelope.body.ending] += 1


def _prewarm(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.server(envelope.body).spares += 1


def _lose(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.server(envelope.body).spares_lost += 1


def _start(tally: EpisodeTally, *_: Any) -> None:
    tally.hosted = True


def _resume(tally: EpisodeTally, *_: Any) -> None:
    tally.hosted, tally.ending = True, None
    tally.resumptions += 1


def _end(tally: EpisodeTally, envelope: Envelope[Any], _: Any) -> None:
    tally.ending = envelope.body


_Count: TypeAlias = Callable[[EpisodeTally, Envelope[Any], Sequence[StepChange]], None]

_COUNTS: dict[type[Struct], _Count] = {
    m.RequestCompletion: _request,
    m.CompletionReceived: _reply,
    m.CompletionRetried: _retry,
    m.ReplyDropped: _drop,
    m.ReplyCut: _cut,
    m.CallTools: _route,
    m.ToolCalled: _call,
    m.ToolRejected: _refuse,
    m.ToolDenied: _refuse,
    m.ToolReturned: _settle,
    m.ToolTimedOut: _settle,
    m.ToolSkipped: _settle,
    m.ServerDied: _die,
    m.SessionOpened: _open,
    m.ConnectFailed: _fail,
    m.McpDisabled: _disable,
    m.SessionClosed: _close,
    m.ServerEnded: _end_process,
    m.SessionPrewarmed: _prewarm,
    m.PrewarmLost: _lose,
    EpisodeStarted: _start,
    EpisodeResumed: _resume,
    EpisodeEnded: _end,
}


@functools.cache
def _count_of(kind: type[Struct]) -> _Count | None:
    """Return the function that counts messages of this class, or of the fact of which it is a subclass."""
    return next((_COUNTS[base] for base in kind.__mro__ if base in _COUNTS), None)


@functools.cache
def _is_counted(kind: type[Struct]) -> bool:
    """Return whether some count needs the content of messages of this class."""
    return _count_of(kind) is not None or moves_steps(kind)
