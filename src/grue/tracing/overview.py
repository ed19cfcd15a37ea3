"""The overview of an episode (subject, end, cost), for the head of its page and for the list of runs."""

from typing import Any

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.runtime.safe_text import printable
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted, Fact, said_by, severity_told
from grue.tracing.reading import EpisodeEnvelope
from grue.tracing.steps import usage_in

_CHARS = 300
_TITLE_CHARS = 80
_MOST_MODELS = 20
_PRESENTED = frozenset({"type", "episode_id", "model", "servers", "scripted", "reason", "detail", "turns"})
"""Fields that the page shows elsewhere. `facts` and `results` have all other texts and numbers of a fact."""


class Overview(Struct, kw_only=True):
    """An episode's subject, end and cost. All texts are printable."""

    title: str = ""  # the host's title, or the beginning of the first turn's text
    scripted: bool = False
    models: dict[str, int] = msgspec.field(default_factory=dict)  # number of replies by model
    asked: dict[str, str] = msgspec.field(default_factory=dict)  # addresses of endpoints, by model
    servers: tuple[str, ...] = ()
    facts: m.JsonObject = msgspec.field(default_factory=dict)  # fields of `EpisodeStarted`; see `_PRESENTED`
    ending: str = ""  # why the episode ended, in a word
    detail: str = ""
    grade: str = ""  # the severity of `EpisodeEnded`
    result: str = ""  # the result in a few words, such as a score
    results: m.JsonObject = msgspec.field(default_factory=dict)  # fields of `EpisodeEnded`; see `_PRESENTED`
    resumed: int = 0
    # In a trace with forks, how many forks. A turn that goes on after it was parked or cut off counts once.
    turns: int = 0
    unfinished: set[int] = msgspec.field(default_factory=set)  # numbers of turns that run or were cut off
    forks: tuple[str, ...] = ()  # for each fork, the turn that it repeats and what it changes
    failures: int = 0  # turns that failed or ended with a fallback
    failed: set[int] = msgspec.field(default_factory=set)  # their numbers, unless they have begun again
    last: str = ""  # the outcome of the turn that ended last
    messages: int = 0
    seconds: float = 0.0  # latest time of a message, since the trace began
    requests: int = 0
    tool_calls: int = 0
    usage: m.Usage = m.Usage()  # sum of what `usage_in` returns
    sampled: list[m.Usage] = msgspec.field(default_factory=list)  # an argument of `usage_in`

    def see(self, envelope: EpisodeEnvelope) -> None:
        """Add a message to the overview."""
        self.messages += 1
        self.seconds = max(self.seconds, envelope.t)
        if envelope.copied:
            return
        self.usage += usage_in(envelope, self.sampled)
        if isinstance(envelope.body, m.TurnEnd):
            self.unfinished.discard(envelope.body.turn)
        match envelope.body:
            case EpisodeStarted() as started:
                self._begin(started)
            case EpisodeResumed():
                self.resumed += 1
                self.ending = self.detail = self.grade = self.result = ""
                self.results = {}
            case EpisodeEnded() as ended:
                self._end(ended)
            case m.RunTurn(turn=turn, user=user, asks=asks, resumed=resumed):
                self.turns += resumed is None and turn not in self.unfinished
                self.unfinished.add(turn)
                self.failures -= resumed is not None and turn in self.failed
                self.failed.discard(turn)
                if asks is not None and len(self.asked) < _MOST_MODELS:
                    self.asked[printable(asks.model, _CHARS)] = printable(asks.address, _CHARS)
                self.title = self.title or printable(user.strip().split("\n", 1)[0], _TITLE_CHARS)
            case m.TurnForked():
                self._fork(envelope.body)
            case m.TurnFailed(turn=turn) | m.TurnCompleted(turn=turn, kind="fallback"):
                self.failures += 1
                self.failed.add(turn)
                self.last = "failed" if isinstance(envelope.body, m.TurnFailed) else "fallback"
            case m.TurnCompleted(kind=kind):
                self.last = kind
            case m.TurnParked():
                self.last = "parked"
            case m.RequestCompletion():
                self.requests += 1
            case m.CompletionReceived(model=model, tool_calls=calls):
                self.tool_calls += len(calls)
                name = printable(model, _CHARS)
                if name and (name in self.models or len(self.models) < _MOST_MODELS):
                    self.models[name] = self.models.get(name, 0) + 1

    def _begin(self, started: EpisodeStarted) -> None:
        title = said_by(started, EpisodeStarted.title)
        self.title = "" if title == started.episode_id else printable(title, _CHARS)
        self.scripted = started.scripted
        self.servers = tuple(printable(name, _CHARS) for name in started.servers)
        if started.model:
            self.models.setdefault(printable(started.model, _CHARS), 0)
        self.facts = _plain_fields(started)

    def _fork(self, forked: m.TurnForked) -> None:
        """Count a fork (a recorded turn that is run again). Turns before the first fork are not counted."""
        changed = f": {', '.join(forked.changed)}" if forked.changed else ""
        what = f"turn {forked.turn} of {forked.episode}{changed}"
        self.forks = (*self.forks, printable(what, _CHARS))
        self.turns = len(self.forks)
        self.failed.discard(forked.turn)
        if self.turns == 1:
            self.failures, self.failed = 0, set()

    def _end(self, ended: EpisodeEnded) -> None:
        self.ending = printable(ended.reason, _CHARS)
        self.detail = printable(ended.detail, _CHARS)
        self.grade = severity_told(ended)
        self.result = printable(said_by(ended, EpisodeEnded.result), _CHARS)
        self.results = _plain_fields(ended)


def _plain_fields(fact: Fact) -> m.JsonObject:
    fields: dict[str, Any] = msgspec.to_builtins(fact)
    return {
        printable(name, _CHARS): printable(value, _CHARS) if isinstance(value, str) else value
        for name, value in fields.items()
        if name not in _PRESENTED and isinstance(value, str | int | float) and value != ""
    }
