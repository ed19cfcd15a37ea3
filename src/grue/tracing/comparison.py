"""Write two traces as one page that shows them side by side, for `grue trace html A B`."""

import tempfile
from itertools import islice
from pathlib import Path

from msgspec import Struct

from grue.errors import TraceError
from grue.runtime.whole_file import replacing
from grue.tracing.diff import diff
from grue.tracing.divergence import Divergence
from grue.tracing.page_feed import MAX_MESSAGE_CHARS, PageFeed
from grue.tracing.page_file import embedded, page_parts
from grue.tracing.page_media import ImageTable
from grue.tracing.reading import EpisodeReader, open_episode
from grue.tracing.viewer import STYLE, fill_page, refuse_target, write_pieces

_SCRIPTS = (
    "dom", "trace", "flow_list", "lanes", "timeline", "json_view", "tree", "matches", "detail", "filters",
    "passages", "head", "request", "pieces", "compare",
)  # fmt: skip
_MOST_DIVERGENCES = 5000
"""Most differences that a page names; one more tells that there are further ones."""

_MOST_IN_FULL = 500
"""Most differences that it describes in full."""


class _Difference(Struct, frozen=True, array_like=True):
    """A message that differs; `viewer_page/compare.js` takes the fields in this order.

    Attributes:
        left: Number of the message in the first trace; 0: it is missing there.
        right: The same in the second trace.
        text: What differs, in a line; printable.
        details: The same in full, for the first differences; empty for others.
    """

    left: int
    right: int
    text: str
    details: tuple[str, ...] = ()


class _Comparison(Struct, frozen=True, kw_only=True):
    """Facts about the two traces together; `turn` is the first that differs, 0: none does."""

    turn: int
    differences: tuple[_Difference, ...]
    more: bool


def write_comparison(
    left: Path, right: Path, target: Path, *, max_message_chars: int = MAX_MESSAGE_CHARS
) -> int:
    """Write the page and return the number of the first turn that differs; 0: the traces are identical.

    Numbers, times, durations and ids are not compared, as in `grue trace diff`.

    Args:
        left: A trace file, or the run folder that holds it.
        right: Another one.
        target: The page; an existing file is replaced. Only its owner can read it.
        max_message_chars: Longer messages are cut.

    Raises:
        TraceError: A trace cannot be read or the page cannot be written; no partial page is left.
    """
    readers = open_episode(left), open_episode(right)
    refuse_target(target, *(reader.path for reader in readers))
    comparison = _compare(*readers)
    try:
        _write(target, readers, comparison, max_message_chars)
    except OSError as error:
        raise TraceError(f"Cannot write the page {target}: {error.strerror}.") from error
    return comparison.turn


def _compare(left: EpisodeReader, right: EpisodeReader) -> _Comparison:
    """Compare the traces; of each difference only its description is kept."""
    turn = 0
    differences: list[_Difference] = []
    for number, each in enumerate(islice(diff(left, right), _MOST_DIVERGENCES + 1)):
        turn = turn or each.turn or 1
        differences.append(_difference(each, in_full=number < _MOST_IN_FULL))
    more = len(differences) > _MOST_DIVERGENCES
    return _Comparison(turn=turn, differences=tuple(differences[:_MOST_DIVERGENCES]), more=more)


def _difference(divergence: Divergence, *, in_full: bool) -> _Difference:
    left, right = divergence.left, divergence.right
    return _Difference(
        left.seq if left else 0,
        right.seq if right else 0,
        divergence.line("A", "B"),
        tuple(divergence.lines("A", "B")) if in_full else (),
    )


def _write(
    target: Path, readers: tuple[EpisodeReader, EpisodeReader], comparison: _Comparison, max_chars: int
) -> None:
    names = [reader.header.episode for reader in readers]
    title = f"{names[0]} and {names[1]}"
    parts = page_parts("compare", title, style=STYLE, scripts=_SCRIPTS)
    with replacing(target) as page, tempfile.TemporaryFile() as spool, tempfile.TemporaryFile() as pieces:
        images = ImageTable(spool)
        episodes = [
            embedded(write_pieces(pieces, reader, name, PageFeed(images, max_chars), side))
            for side, (reader, name) in enumerate(zip(readers, names, strict=True))
        ]
        fill_page(page, parts, (*episodes, embedded(comparison), pieces, images))
