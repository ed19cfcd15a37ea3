"""Count an episode in one pass over its trace.

It keeps one number per call and per turn, so 10,000 turns take a few megabytes of memory.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct

from grue import messages as m
from grue.runtime.trace.format import PAYLOADS
from grue.runtime.trace.recorder import Envelope
from grue.tracing.counts import CallCounts, ModelCounts, ServerCounts, TurnCounts
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted
from grue.tracing.phases import PhaseClock
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader
from grue.tracing.stats import EpisodeStats
from grue.tracing.steps import StepChange, StepTracker, moves_steps


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
            tally.pass_over(line.line.t)
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
        """Count the next message without its content: no count but that of the messages depends on it."""
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


def _request(tally: EpisodeTally, *_: Any) -> None:
    tally.model.requests += 1


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
    """Return the counters that such a message adds to; hosts subclass the facts of an episode."""
    return next((_COUNTS[base] for base in kind.__mro__ if base in _COUNTS), None)


@functools.cache
def _is_counted(kind: type[Struct]) -> bool:
    """Return whether the content of such a message counts for anything."""
    return _count_of(kind) is not None or moves_steps(kind)
