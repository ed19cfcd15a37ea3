"""An episode's trace, turn by turn, with no more in memory than the turns that are under way at once.

In an episode that is one; in a batch (`Runner.map`) turns overlap.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from grue.facts import EpisodeResumed
from grue.messages import RunTurn, TurnCompleted, TurnFailed
from grue.runtime.supervisor import ActorFailed
from grue.tracing.reading import EpisodeEnvelope


class TurnSlice(Struct):
    """A turn and what its host noted around it; what precedes the first turn belongs to that one.

    Attributes:
        turn: Its number; 0 where there is no turn.
        resumed: An episode that was cut off goes on with it.
        again: The chapter before has no lower number: this turn was begun before.
        begun: It has a turn that was run.
        over: That turn has ended, or crashed.
        outrun: Another turn began after all that is known of this one.
    """

    turn: int = 0
    resumed: bool = False
    again: bool = False
    begun: bool = False
    over: bool = False
    outrun: bool = False
    envelopes: list[EpisodeEnvelope] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing of its turn is to be expected any more."""
        return self.over or not self.begun

    @property
    def cut_off(self) -> bool:
        """Whether its turn may have been killed in the middle of a step."""
        return self.begun and not self.over and not self.outrun


_MOST_AT_ONCE = 1000
"""Chapters that are held for a turn without an end, which may never come: it was cancelled as it began."""


def chapters(envelopes: Iterable[EpisodeEnvelope]) -> Iterator[TurnSlice]:
    """Split a trace into its turns, in the order in which they began."""
    shelf = TurnSplitter()
    for envelope in envelopes:
        yield from shelf.make_way(envelope)
        shelf.take(envelope)
    yield from shelf.chapters


class TurnSplitter:
    """The chapters that are being written; the last one is the one that what has no turn belongs to."""

    def __init__(self) -> None:
        self.chapters: deque[TurnSlice] = deque()
        self._last = 0

    def make_way(self, envelope: EpisodeEnvelope) -> Iterator[TurnSlice]:
        """Yield the chapters that nothing more can belong to, now that this envelope has come."""
        turn, own = turn_of(envelope), self._of(turn_of(envelope))
        runs = isinstance(envelope.body, RunTurn)
        # Turns that run at once begin in order: a number that is no higher is another run's.
        anew = runs and (turn <= self._last if own is None else own.begun)
        if isinstance(envelope.body, EpisodeResumed) or anew:
            unfinished = [chapter for chapter in self.chapters if not chapter.complete]
            if anew and len(unfinished) == 1:
                unfinished[0].outrun = True  # only a batch goes on without a word of it
            while self.chapters:
                yield self.chapters.popleft()
        elif turn and own is None:
            for chapter in self.chapters:
                chapter.outrun = runs
            while self.chapters and (self.chapters[0].complete or len(self.chapters) > _MOST_AT_ONCE):
                yield self.chapters.popleft()
        else:
            return
        self.chapters.append(TurnSlice())

    def take(self, envelope: EpisodeEnvelope) -> None:
        """Add an envelope to the chapter that it belongs to."""
        turn, body = turn_of(envelope), envelope.body
        resumes = isinstance(body, EpisodeResumed)
        if not self.chapters:
            self.chapters.append(TurnSlice())
        chapter = self._of(turn) or self.chapters[-1]
        if turn and not resumes and not chapter.turn:
            chapter.turn, chapter.again = turn, turn <= self._last
            self._last = turn
        chapter.envelopes.append(envelope)
        chapter.resumed = chapter.resumed or resumes
        chapter.begun = chapter.begun or isinstance(body, RunTurn)
        chapter.over = chapter.over or isinstance(body, TurnCompleted | TurnFailed | ActorFailed)
        chapter.outrun = False

    def _of(self, turn: int) -> TurnSlice | None:
        """Return the chapter of a turn: its own, or the last one if that has none yet."""
        last = self.chapters[-1] if self.chapters else None
        if turn == 0 or last is None or last.turn in (0, turn):
            return last
        return next((chapter for chapter in self.chapters if chapter.turn == turn), None)


def turn_of(envelope: EpisodeEnvelope) -> int:
    """Return the number of the turn that an envelope belongs to; 0: none.

    A host notes its facts between turns too; most of them say which turn they belong to.
    """
    turn: int = envelope.turn or getattr(envelope.body, "turn", 0)
    return turn


def causes(envelope: EpisodeEnvelope, by_seq: dict[int, EpisodeEnvelope]) -> tuple[EpisodeEnvelope, ...]:
    """Return what led to an envelope, the first cause first, as far as `by_seq` has it."""
    chain: list[EpisodeEnvelope] = []
    cause = by_seq.get(envelope.cause) if envelope.cause is not None else None
    while cause is not None and cause.seq < (chain[-1] if chain else envelope).seq:
        chain.append(cause)
        cause = by_seq.get(cause.cause) if cause.cause is not None else None
    return tuple(reversed(chain))
