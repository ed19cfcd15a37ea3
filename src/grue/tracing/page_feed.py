"""The data of a trace's page: its messages, its turns, its spans and its story, found in one pass.

The page of a finished trace, the comparison of two, and the page that follows a trace all read from a
`PageFeed`.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from grue.protocol.safe_text import printable
from grue.runtime.trace_format import TraceHeader
from grue.tracing.digests import DigestWriter, TurnDigest
from grue.tracing.overview import Overview
from grue.tracing.page_media import ImageTable
from grue.tracing.presentation import kind_of, mark_of, severity_of, summarize
from grue.tracing.reading import NOTES, EpisodeEnvelope
from grue.tracing.spans import Span, SpanFinder
from grue.tracing.story import Passage, StoryTeller

MAX_MESSAGE_CHARS = 200_000
"""Longest message, as JSON, that the page holds in full; the trace holds longer ones."""

_SUMMARY_CHARS = 300
_FIRST_ACTORS = ("host", "agent", "llm")


class Row(Struct, frozen=True, kw_only=True, array_like=True):
    """A message in the page; `viewer_page/trace.js` takes the fields in this order."""

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
    grade: str
    batch: int | None
    redacted: bool
    chars: int
    body: str


class EpisodePage(Struct, frozen=True, kw_only=True):
    """The page's data apart from its messages.

    Attributes:
        live: The page follows the trace, and asks for what is new.
        images: How many different images its messages show.
    """

    title: str
    header: TraceHeader
    file: str
    cut_short: bool = False
    live: bool = False
    images: int = 0
    actors: tuple[str, ...] = ()
    turns: tuple[TurnDigest, ...] = ()
    spans: tuple[Span, ...] = ()
    story: tuple[Passage, ...] = ()
    overview: Overview = msgspec.field(default_factory=Overview)


class PageFeed:
    """Finds what a page holds: `see` each envelope in order, then `finish`.

    Args:
        images: Takes the images out of the messages.
        max_message_chars: Longer messages are cut.

    Attributes:
        overview: The episode in figures.
        spans: Those that have ended since they were last taken.
        passages: Those that are new or have changed since they were last taken, by their ids.
        changed: The turns that have changed since then.
    """

    def __init__(self, images: ImageTable, max_message_chars: int = MAX_MESSAGE_CHARS) -> None:
        self.overview = Overview()
        self.spans: list[Span] = []
        self.passages: dict[tuple[int, int], Passage] = {}
        self.changed: set[int] = set()
        self._images = images
        self._max_chars = max_message_chars
        self._digests = DigestWriter()
        self._spans = SpanFinder()
        self._story = StoryTeller()
        self._actors = dict.fromkeys(_FIRST_ACTORS, False)

    def see(self, envelope: EpisodeEnvelope) -> Row:
        """Add a message and return its row."""
        turn = self._digests.see(envelope)
        self.changed.add(turn)
        self.spans += self._spans.see(envelope)
        self.passages |= {passage.id: passage for passage in self._story.see(envelope, turn)}
        self.overview.see(envelope)
        self._actors |= dict.fromkeys((envelope.sender, envelope.receiver), True)
        return self._row(envelope, turn)

    def finish(self) -> None:
        """Add the spans that have no end."""
        self.spans += self._spans.finish()

    def taken(self) -> None:
        """Forget what is new: the caller has taken it."""
        self.spans, self.passages, self.changed = [], {}, set()

    @property
    def images(self) -> int:
        """How many different images the messages show."""
        return len(self._images)

    @property
    def actors(self) -> tuple[str, ...]:
        """The actors that have sent or received a message, in the order of their lanes."""
        return tuple(actor for actor, seen in self._actors.items() if seen and actor != NOTES)

    def digests(self) -> Iterator[TurnDigest]:
        """Yield the turns that have changed, in the order in which they began."""
        yield from (digest for turn, digest in self._digests.digests.items() if turn in self.changed)

    def _row(self, envelope: EpisodeEnvelope, turn: int) -> Row:
        body: Any = envelope.body
        written = self._images.take_out(msgspec.json.encode(body)).decode()
        mark = mark_of(body)
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
        )
