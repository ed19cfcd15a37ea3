"""Write a trace, a comparison of two traces or an index of runs as an HTML page that needs only a browser."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import msgspec
from msgspec import Struct

from grue.errors import MCPConfigError, TraceError
from grue.runtime.files import as_path, os_errors_as, replacing
from grue.runtime.safe_text import printable
from grue.tracing.diff import diff
from grue.tracing.overview import Overview
from grue.tracing.page_feed import EpisodePage, PageFeed, Piece
from grue.tracing.page_file import ImageTable, embedded, page_parts, refuse_foreign, write_page
from grue.tracing.reading import EpisodeReader, open_episode

_MOST_IN_NOTEBOOK = 8_000_000  # most characters: a notebook stores the page in its own file
STYLE = ("viewer", "story")
SCRIPTS = (
    "dom", "trace", "flow_list", "row_list", "lanes", "timeline", "json_view", "tree", "matches",
    "detail", "filters", "passages", "story", "head", "request", "plot", "address", "keys", "viewer",
    "pieces", "live", "main",
)  # fmt: skip
"""The parts of the script, in the order in which they are joined; `main` starts the page."""


def write_html(trace: Path, target: Path, *, title: str = "") -> Overview:
    """Write a trace as a page that only the user can read, and return the episode's overview."""
    # The page gets the modification time that the trace had before it was read. If the trace grows later, it
    # is newer than its page.
    reader = open_episode(trace)
    with os_errors_as(TraceError, f"write the page {target}"):
        refuse_target(target, reader.path)
        written_ns = reader.path.stat().st_mtime_ns
        title = title or f"Trace of {reader.header.episode}"
        parts = page_parts("page", title, style=STYLE, scripts=SCRIPTS)
        with replacing(target) as page, tempfile.TemporaryFile() as spool, tempfile.TemporaryFile() as pieces:
            images = ImageTable(spool)
            episode = write_pieces(pieces, reader, title, images)
            fill_page(page, parts, (embedded(episode), pieces, images))
        with suppress(OSError):  # not every file system lets a program set the time
            os.utime(target, ns=(written_ns, written_ns))
    return episode.overview


class TracePage:
    """A trace as the output of a notebook's cell: the page of `grue trace html`, in a frame of its own.

    Args:
        trace: The trace file, or the run folder that holds it, as in `Runner.trace`.
        height_px: Height of the frame in pixels.

    Raises:
        MCPConfigError: `trace` is not a path, or is `None`, because the runner was made without `trace=`.
    """

    def __init__(self, trace: str | PathLike[str] | None, *, height_px: int = 640) -> None:
        if trace is None:
            raise MCPConfigError('There is no trace to show: make the runner with trace="runs".')
        self.path, self._height_px = as_path(trace, "TracePage"), height_px

    def _repr_html_(self) -> str:
        """Return the frame's HTML, or a note if the page is too long.

        Scripts in the frame cannot reach the notebook.
        """
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "page.html"
            write_html(self.path, target)
            page = target.read_text(encoding="utf-8")
        if len(page) > _MOST_IN_NOTEBOOK:
            path = escape(str(self.path))
            return f"<p>The page of this trace is too long for a notebook: grue trace html {path}</p>"
        style = f"width:100%;height:{self._height_px}px;border:1px solid #888"
        allowed = 'sandbox="allow-scripts" allow="clipboard-write"'
        return f'<iframe {allowed} style="{style}" srcdoc="{escape(page)}"></iframe>'


def refuse_target(target: Path, *traces: Path) -> None:
    """Raise `TraceError` if `target` is one of the traces, or exists and is no regular file."""
    if not target.exists():
        return
    if any(target.samefile(trace) for trace in traces):
        raise TraceError(f"Cannot write the page {target}: that is the trace.")
    if not target.is_file():
        what = "a folder" if target.is_dir() else "a pipe, a socket or a device"
        raise TraceError(f"Cannot write the page {target}: that is {what}.")


def write_pieces(
    pieces: BinaryIO,
    reader: EpisodeReader,
    title: str,
    images: ImageTable,
    side: int = 0,
    turns: dict[int, int] | None = None,
) -> EpisodePage:
    """Write a trace's messages in pieces, each in a `<script>`; return the page's data without messages."""
    # `side` is the trace's number in the page. `turns` has numbers of messages as keys; each value is set to
    # the turn under which the page shows the message.
    feed = PageFeed(images)
    for envelope in reader:
        turn = feed.see(envelope)
        if turns and envelope.seq in turns:
            turns[envelope.seq] = turn
        if feed.due:
            _write_piece(pieces, feed.take(), side)
    feed.finish()
    _write_piece(pieces, feed.take(), side)
    return EpisodePage(
        title=title,
        header=reader.header,
        file=printable(reader.path.name),
        cut_short=reader.cut_short,
        images=len(images),
        actors=feed.actors,
        kinds=tuple(sorted(feed.kinds)),
        turns=tuple(feed.turns()),
        overview=feed.overview,
    )


def _write_piece(pieces: BinaryIO, piece: Piece, side: int) -> None:
    pieces.write(b'<script type="application/json" data-piece="%d">%b</script>\n' % (side, embedded(piece)))


def fill_page(page: BinaryIO, parts: Sequence[bytes], data: Sequence[bytes | BinaryIO | ImageTable]) -> None:
    """Write a page: the parts of its template, and between them its data."""
    page.write(parts[0])
    for part, between in zip(parts[1:], data, strict=True):
        if isinstance(between, bytes):
            page.write(between)
        elif isinstance(between, ImageTable):
            for number, (name, mime, image) in enumerate(between):
                page.write(b",\n" if number else b"\n")
                # Base64 and media types contain no characters that need escaping.
                page.write(b'["%s","%s","%s"]' % (name.encode(), mime.encode(), image))
        else:
            between.seek(0)
            shutil.copyfileobj(between, page)
        page.write(part)


_SCRIPTS = (
    "dom", "trace", "flow_list", "lanes", "timeline", "json_view", "tree", "matches", "detail", "filters",
    "passages", "head", "request", "pieces", "compare",
)  # fmt: skip
_MOST_DIVERGENCES = 5000  # the most differences that a page lists
_MOST_IN_FULL = 500  # differences with a full description; others have one line


class _Difference(Struct, array_like=True):
    """A message that differs; `viewer_page/compare.js` takes the fields in this order."""

    left: int  # message number in the first trace; `right`: in the second; 0: missing there
    right: int
    text: str  # a printable line about the difference
    details: tuple[str, ...] = ()  # the full description; empty after the first `_MOST_IN_FULL`
    turn: int = 0


def write_comparison(left: Path, right: Path, target: Path) -> int:
    """Write a page that compares two traces. Return the number of the first turn that differs, 0: none."""
    # A difference outside of turns counts as one in turn 1.
    readers = open_episode(left), open_episode(right)
    with os_errors_as(TraceError, f"write the page {target}"):
        refuse_target(target, *(reader.path for reader in readers))
        found = [
            _Difference(
                left=each.left.seq if each.left else 0,
                right=each.right.seq if each.right else 0,
                text=each.line("A", "B"),
                details=tuple(each.lines("A", "B")) if number < _MOST_IN_FULL else (),
                turn=each.turn or 1,
            )
            for number, each in enumerate(islice(diff(*readers), _MOST_DIVERGENCES + 1))
        ]
        first = found[0].turn if found else 0
        rows = found[:_MOST_DIVERGENCES]
        names = [reader.header.episode for reader in readers]
        parts = page_parts("compare", f"{names[0]} and {names[1]}", style=STYLE, scripts=_SCRIPTS)
        with replacing(target) as page, tempfile.TemporaryFile() as spool, tempfile.TemporaryFile() as pieces:
            images = ImageTable(spool)
            turns = {row.left: 0 for row in rows if row.left}, {row.right: 0 for row in rows if row.right}
            episodes = [
                embedded(write_pieces(pieces, reader, names[side], images, side, turns[side]))
                for side, reader in enumerate(readers)
            ]
            for row in rows:
                row.turn = turns[0][row.left] if row.left else turns[1][row.right]
            comparison = {"turn": first, "differences": rows, "more": len(found) > len(rows)}
            fill_page(page, parts, (*episodes, embedded(comparison), pieces, images))
    return first


INDEX_FILE = "index.html"
_NAME_CHARS = 300
_ERROR_CHARS = 1000


class _Run(Struct, frozen=True, kw_only=True):
    """A row of the index; `viewer_page/runs.js` reads the fields by name."""

    name: str  # the run's path in the folder
    page: str = ""  # relative address of the page; empty: there is no page, and `error` says why
    episode: str = ""
    started: float = 0.0  # seconds since the epoch
    overview: Overview = msgspec.field(default_factory=Overview)
    error: str = ""


def write_index(folder: Path, runs: Iterable[Path]) -> Path:
    """Write `index.html` into a folder of episodes, with a row for each of `runs`."""
    # Also write a page beside each trace, unless the page there is as new as the trace, or is not grue's.
    # Raises `TraceError` if the index cannot be written, or there is one that grue has not written.
    target = folder / INDEX_FILE
    refuse_foreign(target, "runs")
    rows = tuple(_row(folder, path) for path in runs)
    title = f"Episodes in {printable(folder.absolute().name)}"
    data = {"title": title, "folder": printable(str(folder)), "runs": rows}
    write_page(target, "runs", title, data)
    return target


def _row(folder: Path, path: Path) -> _Run:
    name = printable(str(path.relative_to(folder)), _NAME_CHARS)
    try:
        reader = open_episode(path)
        page = reader.path.with_suffix(".html")
        refuse_foreign(page, "page")
        if _is_current(page, reader.path):
            overview = Overview()
            for envelope in reader:
                overview.see(envelope)
        else:
            overview = write_html(path, page)
    except TraceError as error:
        return _Run(name=name, error=printable(str(error), _ERROR_CHARS))
    return _Run(
        name=name,
        page=f"./{quote(os.fsencode(page.relative_to(folder)))}",
        episode=printable(reader.header.episode, _NAME_CHARS),
        started=reader.header.started_at,
        overview=overview,
    )


def _is_current(page: Path, trace: Path) -> bool:
    try:
        return page.stat().st_mtime_ns >= trace.stat().st_mtime_ns
    except OSError:
        return False
