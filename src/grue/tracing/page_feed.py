"""The data of a trace's page: its messages, its turns, its spans and its story, found in one pass.

The messages are in pieces, so that the page can show the first ones while it reads the others.

The page of a finished trace, the comparison of two, and the page that follows a trace all read from a
`PageFeed`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from grue.runtime.safe_text import printable
from grue.runtime.trace.format import TraceHeader
from grue.tracing.digests import DigestWriter
from grue.tracing.facts import Severity
from grue.tracing.message_words import kind_of, mark_of, severity_of, summarize
from grue.tracing.overview import Overview
from grue.tracing.page_media import ImageTable
from grue.tracing.page_turns import PageTurn, TurnTotals
from grue.tracing.prompt_cache import CachedPrompts, told
from grue.tracing.reading import NOTES, EpisodeEnvelope
from grue.tracing.spans import Span, SpanFinder
from grue.tracing.story import Passage, StoryTeller

MAX_MESSAGE_CHARS = 200_000
"""Longest message, as JSON, that the page holds in full; the trace holds longer ones."""

_SUMMARY_CHARS = 300
_MOST_ROWS = 1000
"""Most messages of a piece."""
_MOST_PIECE_CHARS = 1_000_000
"""A piece is due as soon as its messages are longer than this together."""
_FIRST_ACTORS = ("host", "agent", "llm")


class Row(Struct, frozen=True, kw_only=True, array_like=True):
    """A message in the page; `viewer_page/trace.js` takes the fields in this order.

    Attributes:
        repeats: For a reply, how much of its prompt was a repetition of an earlier one.
        broken: For a reply, where its prompt breaks off from the one before, and why.
    """

    seq: int
    t: float
    at: float
    turn: int
    sender: str
    receiver: str
    cause: int | None
    kind: str
    summary: str
    mark: str
    grade: Severity | Literal[""]
    batch: int | None
    redacted: bool
    chars: int
    body: str
    repeats: str = ""
    broken: str = ""


class EpisodePage(Struct, frozen=True, kw_only=True):
    """The page's data apart from its pieces. It is enough for the head, the list of turns and the overview.

    Attributes:
        live: The page follows the trace, and asks for what is new.
        images: How many different images its messages show.
        kinds: The kinds of its messages.
    """

    title: str
    header: TraceHeader
    file: str
    cut_short: bool = False
    live: bool = False
    images: int = 0
    actors: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    turns: tuple[PageTurn, ...] = ()
    overview: Overview = msgspec.field(default_factory=Overview)


class Piece(Struct, frozen=True, kw_only=True):
    """Messages that follow each other, with what is new since the piece before; `Trace.extend` takes it."""

    messages: tuple[Row, ...]
    spans: tuple[Span, ...]
    story: tuple[Passage, ...]


class PageFeed:
    """Finds what a page holds, piece by piece: `see` each envelope in order, then `finish`.

    Only the piece at hand and the sums of each turn are in memory. A caller takes a piece when it is `due`,
    and the last one after `finish`.

    Args:
        images: Takes the images out of the messages.
        max_message_chars: Longer messages are cut.

    Attributes:
        overview: The episode in figures.
    """

    def __init__(self, images: ImageTable, max_message_chars: int = MAX_MESSAGE_CHARS) -> None:
        self.overview = Overview()
        self._images = images
        self._max_chars = max_message_chars
        self._digests = DigestWriter()
        self._spans = SpanFinder()
        self._story = StoryTeller()
        self._prompts = CachedPrompts()
        self._actors = dict.fromkeys(_FIRST_ACTORS, False)
        self._kinds: set[str] = set()
        self._totals: dict[int, TurnTotals] = {}
        self._changed: set[int] = set()
        self._rows: list[Row] = []
        self._chars = 0
        self._new_spans: list[Span] = []
        self._passages: dict[tuple[int, int], Passage] = {}

    def see(self, envelope: EpisodeEnvelope) -> None:
        """Add a message to the page."""
        turn = self._digests.see(envelope)
        self._add_spans(self._spans.see(envelope, turn))
        self._passages |= {passage.id: passage for passage in self._story.see(envelope, turn)}
        self.overview.see(envelope)
        self._actors |= dict.fromkeys((envelope.sender, envelope.receiver), True)
        self._add_row(self._row(envelope, turn))

    def finish(self) -> None:
        """Add the spans that have no end."""
        self._add_spans(self._spans.finish())

    @property
    def due(self) -> bool:
        """Whether the piece at hand is long enough."""
        return len(self._rows) >= _MOST_ROWS or self._chars > _MOST_PIECE_CHARS

    def take(self) -> Piece:
        """Return the pieces that are new since the last call."""
        piece = Piece(
            messages=tuple(self._rows), spans=tuple(self._new_spans), story=tuple(self._passages.values())
        )
        self._rows, self._chars, self._new_spans, self._passages = [], 0, [], {}
        return piece

    @property
    def images(self) -> int:
        """How many different images the messages show."""
        return len(self._images)

    @property
    def actors(self) -> tuple[str, ...]:
        """The actors that have sent or received a message, in the order of their lanes."""
        return tuple(actor for actor, seen in self._actors.items() if seen and actor != NOTES)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the messages, sorted."""
        return tuple(sorted(self._kinds))

    def turns(self) -> Iterator[PageTurn]:
        """Yield the turns that have changed since the last call, in the order in which they began."""
        changed, self._changed = self._changed, set()
        for turn, digest in self._digests.digests.items():
            if turn in changed:
                yield self._totals[turn].page_turn(digest)

    def _add_spans(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self._new_spans.append(span)
            self._of(span.turn).add_span(span)

    def _add_row(self, row: Row) -> None:
        self._rows.append(row)
        self._chars += len(row.body)
        self._kinds.add(row.kind)
        totals = self._of(row.turn)
        if row.mark:
            totals.add_mark(row.mark, row.grade)

    def _of(self, turn: int) -> TurnTotals:
        self._changed.add(turn)
        return self._totals.setdefault(turn, TurnTotals())

    def _row(self, envelope: EpisodeEnvelope, turn: int) -> Row:
        body: Any = envelope.body
        written = self._images.take_out(msgspec.json.encode(body)).decode()
        mark = mark_of(body)
        prompt = self._prompts.see(envelope)
        return Row(
            seq=envelope.seq,
            t=round(envelope.t, 6),
            at=round(envelope.at, 3),
            turn=turn,
            sender=envelope.sender,
            receiver="" if envelope.receiver == NOTES else envelope.receiver,
            cause=envelope.cause,
            kind=kind_of(body),
            summary=printable(summarize(body), _SUMMARY_CHARS),
            mark=mark,
            grade=severity_of(body) if mark else "",
            batch=getattr(body, "batch", None),
            redacted=envelope.redacted,
            chars=len(written),
            body=written[: self._max_chars],
            repeats="" if prompt is None or prompt.compared_with is None else f"{prompt.share:.0%} repeated",
            broken="" if prompt is None else told(prompt),
        )
