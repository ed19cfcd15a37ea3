"""The counts of an episode: of its turns, its requests to the model, its tool calls and its servers."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from grue import messages as m
from grue.protocol.tools.built_in import named_call
from grue.runtime.trace.format import payload_path
from grue.runtime.trace.recorder import Envelope
from grue.tracing import stats
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted
from grue.tracing.message_words import cut_results
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader
from grue.tracing.steps import StepBegan, StepChange, StepEnded, StepTracker, usage_in
from grue.tracing.turn_slices import OwnMessages

SLOWEST_TURNS = 5


class _TurnCounts:
    """Counts turns, and measures the phases of each. Several turns can be open at once (`Runner.map`)."""

    def __init__(self) -> None:
        self._started = 0
        self._iterations = 0
        self._parked: dict[int, int] = {}  # turn number -> iterations before the turn was parked
        self._parkings = 0
        self._last: dict[int, str] = {}  # turn number -> outcome so far, which a resumed turn replaces
        self._outcomes: Counter[str] = Counter()
        self._durations = array("d")
        self._slowest: list[tuple[float, int, stats.SlowTurn]] = []
        self._clocks: dict[int, stats.PhaseClock] = {}
        self._after: Counter[int] = Counter()  # turn number -> calls that the host made after the turn

    def take(self, envelope: EpisodeEnvelope, changes: Sequence[StepChange]) -> None:
        if not changes:
            return
        turn = envelope.turn
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
        """Start a new turn's clock, drop those of turns cut off. Return the turn's recorded end, if any."""
        ended = None
        for change in changes:
            if change.step.kind != "turn":
                continue
            if isinstance(change, StepBegan):
                self._clocks[turn] = stats.PhaseClock()
                if change.step.began.body.resumed is None:
                    self._parked.pop(turn, None)
                    self._last.pop(turn, None)
                self._started += turn not in self._last
                self._outcomes[self._last.get(turn, "")] -= 1
                self._last[turn] = ""
            elif not change.reported:
                self._clocks.pop(change.step.turn, None)
            else:
                ended = change
        return ended

    def _ended(self, end: Any, duration_s: float, phases: stats.Phases) -> None:
        unanswered = "parked" if isinstance(end, m.TurnParked) else "failed"
        outcome = end.kind if isinstance(end, m.TurnCompleted) else unanswered
        self._outcomes[outcome] += 1
        self._last[end.turn] = outcome
        # A resumed turn's `iterations` include those of its parked part, which have been counted.
        self._iterations += end.iterations - self._parked.get(end.turn, 0)
        if isinstance(end, m.TurnParked):
            self._parkings += 1
            self._parked[end.turn] = end.iterations
        self._durations.append(duration_s)
        turn = stats.SlowTurn(
            turn=end.turn,
            duration_s=duration_s,
            outcome=outcome,
            requests=end.requests,
            tool_calls=len(end.tool_calls),
            phases=phases,
        )
        # The negative item puts the earlier of two equally long turns first.
        ranked = sorted([*self._slowest, (duration_s, -len(self._durations), turn)], reverse=True)
        self._slowest = ranked[:SLOWEST_TURNS]

    def slowest(self) -> tuple[stats.SlowTurn, ...]:
        return tuple(
            replace(turn, tool_calls=turn.tool_calls + self._after[turn.turn]) for _, _, turn in self._slowest
        )

    def stats(self) -> stats.TurnStats:
        outcomes = +self._outcomes  # leaves out 0 and the negative count of ""
        unfinished = self._started - outcomes.total()
        return stats.TurnStats(
            started=self._started,
            outcomes={**outcomes, **({"unfinished": unfinished} if unfinished else {})},
            open=sum(not outcome for outcome in self._last.values()),
            parkings=self._parkings,
            iterations=self._iterations,
            duration=stats.Durations.of(self._durations),
        )


class _Counts(Struct):
    """Counts of the requests to the model, of one tool's calls, or of one server's sessions."""

    numbers: Counter[str] = field(default_factory=Counter)  # by field of `ModelStats`, `ToolStats`, ...
    seconds: "array[float]" = field(default_factory=lambda: array("d"))  # measured durations


class _ServerCounts(_Counts):
    endings: Counter[str] = field(default_factory=Counter)  # how many sessions had each `ending`
    in_turns: set[int] = field(default_factory=set)  # numbers of turns in which a session is open


def count_episode(episode: EpisodeReader) -> stats.EpisodeStats:
    """Read an episode's trace once and return its counts; raises `TraceError` if it cannot be read."""
    tally = EpisodeTally()
    for envelope in episode:
        tally.take(envelope)
    return tally.stats(episode)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # the file was removed meanwhile, or is a broken link


class EpisodeTally:
    """Counts what happens in an episode. Call `take` with each envelope in order, then `stats`."""

    def __init__(self) -> None:
        self.messages = 0
        self.resumptions = 0
        self.hosted = False
        self.ending: EpisodeEnded | None = None
        self.clock = stats.PhaseClock()
        self.steps = StepTracker()
        self.turns = _TurnCounts()
        self.usage = m.Usage()
        self.model = _Counts()
        self.tools: defaultdict[str, _Counts] = defaultdict(_Counts)
        self.servers: defaultdict[str, _ServerCounts] = defaultdict(_ServerCounts)
        self._names: dict[tuple[int, str], str] = {}  # (turn, call id) -> the tool, such as `files.read`
        self._own = OwnMessages()
        self._sampled: list[m.Usage] = []  # see `usage_in`
        # By number of a `RequestCompletion`: its retries and cut replies. `_noted`: how many were counted.
        # `_again`: how many are skipped when the trace records them again, after a `CompletionPostponed`.
        self._noted: defaultdict[int | None, Counter[str]] = defaultdict(Counter)
        self._again: defaultdict[int | None, Counter[str]] = defaultdict(Counter)

    def take(self, envelope: EpisodeEnvelope) -> None:
        """Count the next envelope."""
        self.messages += 1
        own = self._own.take(envelope)
        if own is None:
            if isinstance(envelope.body, m.CompletionReceived):
                self._name_calls(envelope)
            self.clock.note(envelope.t)
            return
        envelope = own
        changes = self.steps.take(envelope)
        self.clock.note(envelope.t, changes, resumed=isinstance(envelope.body, EpisodeResumed))
        self.turns.take(envelope, changes)
        self._count_model(envelope, changes)
        self._count_call(envelope)
        self._count_session(envelope.turn, envelope.body)
        self._count_fact(envelope.body)

    def stats(self, episode: EpisodeReader) -> stats.EpisodeStats:
        """Return the counts of an episode that has been read to its end."""
        phases = self.clock.phases
        return stats.EpisodeStats(
            episode=episode.header.episode,
            started_at=episode.header.started_at,
            messages=self.messages,
            trace_bytes=_size(episode.path),
            payload_bytes=sum(_size(payload_path(episode.path, each)) for each in episode.payloads),
            cut_short=episode.cut_short,
            missing=episode.missing,
            wall_s=phases.total_s,
            phases=phases,
            resumptions=self.resumptions,
            hosted=self.hosted,
            ending=self.ending,
            turns=self.turns.stats(),
            model=stats.ModelStats(
                usage=self.usage, duration=stats.Durations.of(self.model.seconds), **self.model.numbers
            ),
            tools=tuple(
                stats.ToolStats(tool=name, duration=stats.Durations.of(tool.seconds), **tool.numbers)
                for name, tool in sorted(self.tools.items())
            ),
            servers=tuple(
                stats.ServerStats(
                    server=name,
                    endings=dict(server.endings),
                    startup=stats.Durations.of(server.seconds),
                    **server.numbers,
                )
                for name, server in self.servers.items()
            ),
            slowest_turns=self.turns.slowest(),
        )

    # --- One method for each group of message kinds ---

    def _count_model(self, envelope: Envelope[Any], changes: Sequence[StepChange]) -> None:
        counts = self.model.numbers
        if hasattr(envelope.body, "usage"):  # other messages add no usage
            self.usage += usage_in(envelope, self._sampled)
        match envelope.body:
            case m.RequestCompletion() as request:
                counts["requests"] += 1
                counts["cut_results"] += len(cut_results(request))
            case m.CompletionReceived():
                ended = (change.step for change in changes if isinstance(change, StepEnded))
                self.model.seconds.extend(envelope.t - step.began.t for step in ended)
                self._name_calls(envelope)
            case m.CompletionRetried():
                self._count_once(envelope.cause, "retries")
            case m.ReplyDropped():
                counts["dropped_replies"] += 1
            case m.ReplyCut():
                self._count_once(envelope.cause, "cut_replies")
            case m.CompletionPostponed():
                # When the turn goes on, the request's retries and cut replies are recorded again.
                self._again[envelope.cause] = self._noted[envelope.cause].copy()

    def _count_once(self, request: int | None, what: str) -> None:
        if self._again[request][what] > 0:
            self._again[request][what] -= 1
            return
        self.model.numbers[what] += 1
        if request is not None:
            self._noted[request][what] += 1

    def _name_calls(self, envelope: Envelope[Any]) -> None:
        named = map(named_call, envelope.body.tool_calls)
        self._names.update(((envelope.turn, call.call_id), call.name) for call in named)

    def _count_call(self, envelope: Envelope[Any]) -> None:
        turn, body = envelope.turn, envelope.body
        match body:
            case m.CallTools(server=server, calls=calls):
                # This names only the calls that the host makes itself: `_name_calls` has named the model's.
                for call in calls:
                    self._names.setdefault((turn, call.call_id), f"{server}.{call.tool}")
            case m.ToolCalled():
                self._tool(envelope).numbers["calls"] += 1
            case m.ToolRejected(name=name) | m.ToolDenied(name=name):
                # The model may have invented this name. Count the call under the name all the same.
                self.tools[name].numbers["denied" if isinstance(body, m.ToolDenied) else "rejected"] += 1
                self._names.pop((turn, body.call_id), None)
            case m.ToolSkipped(refused=refused):
                self._settle(envelope, "rejected" if refused else "skipped")
            case m.ToolReturned(result=result):
                self._settle(envelope, "errors" if result.is_error else "returned")
            case m.ToolTimedOut():
                self._settle(envelope, "timed_out")
            case m.ServerDied():
                self._settle(envelope, "lost")
                self.servers[body.server].numbers["deaths"] += 1

    def _settle(self, envelope: Envelope[Any], how: str) -> None:
        tool = self._tool(envelope)
        tool.numbers[how] += 1
        if not isinstance(envelope.body, m.ToolSkipped):
            tool.seconds.append(envelope.body.duration_s)
        self._names.pop((envelope.turn, envelope.body.call_id), None)

    def _count_session(self, turn: int, body: object) -> None:
        match body:
            case m.SessionOpened(server=name, elapsed_s=elapsed_s):
                self.servers[name].numbers["starts"] += 1
                self.servers[name].seconds.append(elapsed_s)
                self.servers[name].in_turns.add(turn)
            case m.ConnectFailed(server=name, then=then):
                self.servers[name].numbers["failed_starts"] += 1
                self.servers[name].numbers["retries"] += then == "retry"
            case m.McpDisabled(server=name, newly=newly):
                self.servers[name].numbers["disabled"] += newly
            case m.SessionClosed(server=name, ending=ending):
                # Count one ending per session, although a cancelled session can send two `SessionClosed`.
                # For a session that ends with `handed_over`, count its later `ServerEnded` instead.
                if turn in self.servers[name].in_turns and ending != "handed_over":
                    self.servers[name].endings[ending] += 1
                self.servers[name].in_turns.discard(turn)
            case m.ServerEnded(server=name, ending=ending):
                self.servers[name].endings[ending] += 1
            case m.SessionPrewarmed(server=name):
                self.servers[name].numbers["spares"] += 1
            case m.PrewarmLost(server=name):
                self.servers[name].numbers["spares_lost"] += 1

    def _count_fact(self, body: object) -> None:
        match body:
            case EpisodeStarted():
                self.hosted = True
            case EpisodeResumed():
                self.hosted, self.ending = True, None
                self.resumptions += 1
            case EpisodeEnded() as ended:
                self.ending = ended

    def _tool(self, envelope: Envelope[Any]) -> _Counts:
        return self.tools[self._names.get((envelope.turn, envelope.body.call_id), "?")]
