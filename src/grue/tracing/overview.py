"""The overview of an episode (subject, end, cost), for the head of its page and for the list of runs."""

from typing import Any

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.runtime.safe_text import printable
from grue.tracing.facts import EpisodeEnded, EpisodeResumed, EpisodeStarted, Fact, said_by, severity_told
from grue.tracing.reading import EpisodeEnvelope

_CHARS = 300
_TITLE_CHARS = 80
_MOST_MODELS = 20
_PRESENTED = frozenset({"type", "episode_id", "model", "servers", "scripted", "reason", "detail", "turns"})
"""Fields that the page shows elsewhere, and that are left out of `facts` and `results`."""


class Overview(Struct, kw_only=True):
    """An episode's subject, end and cost. All texts are printable.

    Attributes:
        title: The episode's subject: the host's title, or else the beginning of the first turn's text.
        models: Number of replies by model; 0: only `EpisodeStarted` names the model.
        asked: The models that the turns asked, with their addresses. A reply may name another model.
        facts: Further texts and numbers of the host's `EpisodeStarted`, by name of the field.
        ending: Why the episode ended, in a word; empty: it has not ended, or its host gave no reason.
        detail: The reason as a sentence.
        grade: The severity of `EpisodeEnded`: usually `fail` for a failed or interrupted episode, else empty.
        result: In a few words, such as a score; empty: the run has no result, or the host is not installed.
        results: Further texts and numbers of the host's `EpisodeEnded`, by name of the field.
        turns: The highest number of a turn. If the trace has forks: how many forks.
        forks: A description of each fork: the turn that it repeats, and its changes.
        failures: How many turns failed or ended with a fallback.
        last: How the last turn ended: `failed`, `parked`, or the kind of its outcome; empty: none ended.
        seconds: Time of the last message, in seconds since the trace began.
    """

    title: str = ""
    scripted: bool = False
    models: dict[str, int] = msgspec.field(default_factory=dict)
    asked: dict[str, str] = msgspec.field(default_factory=dict)
    servers: tuple[str, ...] = ()
    facts: m.JsonObject = msgspec.field(default_factory=dict)
    ending: str = ""
    detail: str = ""
    grade: str = ""
    result: str = ""
    results: m.JsonObject = msgspec.field(default_factory=dict)
    resumed: int = 0
    turns: int = 0
    forks: tuple[str, ...] = ()
    failures: int = 0
    last: str = ""
    messages: int = 0
    seconds: float = 0.0
    requests: int = 0
    tool_calls: int = 0
    usage: m.Usage = m.Usage()

    def see(self, envelope: EpisodeEnvelope) -> None:
        """Add a message to the overview."""
        self.messages += 1
        self.seconds = max(self.seconds, envelope.t)
        if envelope.copied:
            return
        match envelope.body:
            case EpisodeStarted() as started:
                self._begin(started)
            case EpisodeResumed():
                self.resumed += 1
                self.ending = self.detail = self.grade = self.result = ""
                self.results = {}
            case EpisodeEnded() as ended:
                self._end(ended)
            case m.RunTurn(turn=turn, user=user, asks=asks):
                self.turns = max(self.turns, turn)
                if asks is not None and len(self.asked) < _MOST_MODELS:
                    self.asked[printable(asks.model, _CHARS)] = printable(asks.address, _CHARS)
                self.title = self.title or printable(user.strip().split("\n", 1)[0], _TITLE_CHARS)
            case m.TurnForked():
                self._fork(envelope.body)
            case m.TurnFailed() | m.TurnCompleted(kind="fallback"):
                self.failures += 1
                self.last = "failed" if isinstance(envelope.body, m.TurnFailed) else "fallback"
            case m.TurnCompleted(kind=kind):
                self.last = kind
            case m.TurnParked():
                self.last = "parked"
            case m.RequestCompletion():
                self.requests += 1
            case m.ReplyDropped(usage=usage):
                self.usage += usage
            case m.CompletionReceived(usage=usage, model=model, tool_calls=calls):
                self.usage += usage
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
        if self.turns == 1:
            self.failures = 0

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
