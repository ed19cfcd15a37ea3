"""An episode's trace, turn by turn, with no more than one turn in memory."""

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from grue.facts import EpisodeResumed
from grue.messages import RunTurn
from grue.tracing.reading import EpisodeEnvelope


class Chapter(Struct):
    """A turn and what its host noted around it; what precedes the first turn belongs to that one.

    Attributes:
        turn: Its number; 0 where there is no turn.
        resumed: An episode that was cut off goes on with it.
        again: The chapter before has no lower number: this turn was begun before.
    """

    turn: int = 0
    resumed: bool = False
    again: bool = False
    envelopes: list[EpisodeEnvelope] = field(default_factory=list)


def chapters(envelopes: Iterable[EpisodeEnvelope]) -> Iterator[Chapter]:
    """Split a trace into its turns, in order."""
    chapter, last, begun = Chapter(), 0, False
    for envelope in envelopes:
        turn = turn_of(envelope)
        runs = isinstance(envelope.body, RunTurn)
        resumes = isinstance(envelope.body, EpisodeResumed)
        next_one = resumes or (runs and begun) or (turn and chapter.turn not in (0, turn))
        if next_one and chapter.envelopes:
            yield chapter
            chapter, last, begun = Chapter(), chapter.turn, False
        if turn and not resumes and not chapter.turn:
            chapter.turn, chapter.again = turn, turn <= last
        chapter.envelopes.append(envelope)
        chapter.resumed = chapter.resumed or resumes
        begun = begun or runs
    if chapter.envelopes:
        yield chapter


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
