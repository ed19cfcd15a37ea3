"""The turns of a trace's page: each turn's digest, where its time went, and what went wrong in it."""

from msgspec import Struct, field
from msgspec.structs import asdict

from grue.tracing.digests import TurnDigest
from grue.tracing.facts import Severity
from grue.tracing.spans import Span

_NOT_PARTS = frozenset({"turn", "session", "host"})
"""Spans that are outside a turn's own time, or contain other spans of it."""


class MarkCount(Struct, kw_only=True):
    """How often messages of a turn have a mark, the word for a problem."""

    word: str
    grade: Severity
    count: int = 0


class PageTurn(TurnDigest, kw_only=True):
    """A turn in the page; `viewer_page/trace.js` takes it.

    Attributes:
        took_s: How long the turn took.
        phases: Seconds by kind of span.
        marks: The problems of its messages, the bad ones first.
    """

    took_s: float
    phases: dict[str, float]
    marks: tuple[MarkCount, ...]


class TurnTotals(Struct):
    """Sums of one turn, made while its messages and spans arrive."""

    whole_s: float | None = None
    end_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    marks: dict[str, MarkCount] = field(default_factory=dict)

    def add_mark(self, word: str, grade: Severity) -> None:
        """Count the mark of a message."""
        self.marks.setdefault(word, MarkCount(word=word, grade=grade)).count += 1

    def add_span(self, span: Span) -> None:
        """Add the time of a span."""
        took_s = span.end_s - span.start_s
        self.end_s = max(self.end_s, span.end_s)
        if span.phase == "turn" and self.whole_s is None:
            self.whole_s = took_s
        if span.phase not in _NOT_PARTS:
            self.phases[span.phase] = self.phases.get(span.phase, 0.0) + took_s

    def page_turn(self, digest: TurnDigest) -> PageTurn:
        """Return the turn as the page holds it."""
        fields = asdict(digest)
        return PageTurn(
            **{**fields, "end_s": max(digest.end_s, self.end_s)},
            took_s=digest.end_s - digest.start_s if self.whole_s is None else self.whole_s,
            phases=self.phases,
            marks=tuple(sorted(self.marks.values(), key=lambda mark: mark.grade == "warn")),
        )
