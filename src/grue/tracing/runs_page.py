"""Write an index page of a folder of episodes, for `grue runs --html`."""

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import msgspec
from msgspec import Struct

from grue.errors import TraceError
from grue.runtime.safe_text import printable
from grue.tracing.overview import Overview
from grue.tracing.page_file import refuse_foreign, write_page
from grue.tracing.reading import open_episode
from grue.tracing.viewer import write_html

INDEX_FILE = "index.html"

_NAME_CHARS = 300
_ERROR_CHARS = 1000


class _Run(Struct, frozen=True, kw_only=True):
    """A row of the index, which `viewer_page/runs.js` shows."""

    name: str  # path in the folder
    page: str = ""  # relative address; empty: `error` says why there is no page
    episode: str = ""
    started: float = 0.0  # since the epoch
    overview: Overview = msgspec.field(default_factory=Overview)
    error: str = ""


def write_index(folder: Path, runs: Iterable[Path]) -> Path:
    """Write `index.html` into a folder of episodes, with a row for each of `runs`."""
    # Also write a page beside each trace, unless the page that grue wrote there is as new as the trace. A
    # file of that name that grue did not write is kept, and the row says so. Raises `TraceError` if the index
    # cannot be written, or there is an `index.html` that grue has not written.
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
