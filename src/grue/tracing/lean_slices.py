"""Split a trace into its turns without holding megabytes of it in memory.

It is for readers that look at each message of a turn once or twice, as `diff` does. Of the messages of the
turns that are open, a few megabytes are in memory. Of further ones, only their envelopes are: `whole` reads
the message from the file again.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.trace.reader import LinePlace
from grue.tracing.message_words import kind_of
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader
from grue.tracing.turn_slices import TurnSlice, TurnSplitter

KEPT_BYTES = 4 * 2**20
"""How many bytes of the file the messages in memory have."""


class LeftInFile(Struct, frozen=True):
    """Stands for a message that is in the file only."""

    reader: EpisodeReader
    place: LinePlace
    kind: str


def lean_turns(envelopes: Iterable[EpisodeEnvelope]) -> Iterator[TurnSlice]:
    """Split a trace into its turns, as `split_turns` does.

    Pieces of streamed replies are left out, and `TurnForked`, which only says where a turn is from.

    Args:
        envelopes: A reader, or envelopes that are in memory already; they stay there.
    """
    splitter = TurnSplitter()
    kept: dict[int, int] = {}  # bytes in memory, by the slice's identity
    for envelope, stub, size in _with_stubs(envelopes):
        for complete in splitter.completed_by(envelope):
            kept.pop(id(complete), None)
            yield complete
        turn_slice = splitter.take(envelope)
        if isinstance(envelope.body, m.TextDelta | m.TurnForked):
            turn_slice.envelopes.pop()
        elif sum(kept.values()) + size > KEPT_BYTES:
            turn_slice.envelopes[-1] = stub
        else:
            kept[id(turn_slice)] = kept.get(id(turn_slice), 0) + size
    yield from splitter.slices


def whole(envelope: EpisodeEnvelope) -> EpisodeEnvelope:
    """Return an envelope of such a slice with its message.

    Raises:
        TraceError: The file has changed since, or cannot be read.
    """
    body: Any = envelope.body
    return body.reader.at(body.place) if isinstance(body, LeftInFile) else envelope


def kind_in(envelope: EpisodeEnvelope) -> str:
    """Return the name of the kind of an envelope's message, which is not read for this."""
    body: Any = envelope.body
    return body.kind if isinstance(body, LeftInFile) else kind_of(body)


def _with_stubs(
    envelopes: Iterable[EpisodeEnvelope],
) -> Iterator[tuple[EpisodeEnvelope, EpisodeEnvelope, int]]:
    """Yield each envelope, what can be kept in its place, and how much memory that saves."""
    if not isinstance(envelopes, EpisodeReader):
        yield from ((envelope, envelope, 0) for envelope in envelopes)
        return
    for place, envelope in envelopes.with_places():
        left: Any = LeftInFile(envelopes, place, kind_of(envelope.body))
        yield envelope, replace(envelope, body=left), place.size
