"""Write a trace as one HTML page that needs only a browser, for `grue trace html FILE`.

The page's style and script are in `viewer_page/` and are put into the file, with the trace as JSON between
them. `page_file.py` says why text from models, tools and games cannot run as code there.
"""

import tempfile
from pathlib import Path
from typing import BinaryIO

from grue.errors import TraceError
from grue.tracing.overview import Overview
from grue.tracing.page_feed import MAX_MESSAGE_CHARS, EpisodePage, PageFeed
from grue.tracing.page_file import embedded, page_parts, replacing
from grue.tracing.page_media import ImageTable
from grue.tracing.reading import EpisodeReader, open_episode

STYLE = ("viewer", "story")
SCRIPTS = (
    "dom",
    "trace",
    "virtual_list",
    "flow_list",
    "lanes",
    "timeline",
    "json_view",
    "tree",
    "matches",
    "detail",
    "filters",
    "passages",
    "story",
    "head",
    "request",
    "plot",
    "address",
    "keys",
    "viewer",
    "live",
    "main",
)
"""The parts of the script, in the order in which they are joined; `main` starts the page."""


def write_html(
    trace: Path, target: Path, *, title: str = "", max_message_chars: int = MAX_MESSAGE_CHARS
) -> Overview:
    """Write a trace as a page that only its owner can read, and return the episode in figures.

    An existing file is replaced.

    The trace is read one line at a time. The same trace always gives the same bytes.

    Args:
        trace: The trace file, or the run folder that holds it.
        target: The page.
        title: The page's title; default: the episode's name.
        max_message_chars: Longer messages are cut; the page says so and names the trace file.

    Raises:
        TraceError: The trace cannot be read or the page cannot be written; no partial page is left.
    """
    reader = open_episode(trace)
    refuse_target(target, reader.path)
    try:
        with replacing(target) as page:
            return _write_page(page, reader, title or f"Trace of {reader.header.episode}", max_message_chars)
    except OSError as error:
        raise TraceError(f"Cannot write the page {target}: {error.strerror}.") from error


def refuse_target(target: Path, *traces: Path) -> None:
    """Refuse to write a page over a trace or a folder.

    Raises:
        TraceError: `target` is one of the traces, or a folder.
    """
    is_trace = target.exists() and any(target.samefile(trace) for trace in traces)
    if target.is_dir() or is_trace:
        raise TraceError(
            f"Cannot write the page {target}: that is {'a folder' if target.is_dir() else 'the trace'}."
        )


def _write_page(page: BinaryIO, reader: EpisodeReader, title: str, max_message_chars: int) -> Overview:
    before, between, third, after = page_parts("page", title, style=STYLE, scripts=SCRIPTS)
    with tempfile.TemporaryFile() as spool:
        images = ImageTable(spool)
        page.write(before)
        episode = write_messages(page, reader, title, PageFeed(images, max_message_chars))
        page.write(between)
        write_images(page, images)
        page.write(third)
    page.write(embedded(episode))
    page.write(after)
    return episode.overview


def write_messages(page: BinaryIO, reader: EpisodeReader, title: str, feed: PageFeed) -> EpisodePage:
    """Write a trace's messages and return the rest of the page's data."""
    for number, envelope in enumerate(reader):
        page.write(b",\n" if number else b"\n")
        page.write(embedded(feed.see(envelope)))
    feed.finish()
    return EpisodePage(
        title=title,
        header=reader.header,
        file=reader.path.name,
        cut_short=reader.cut_short,
        images=feed.images,
        actors=feed.actors,
        turns=tuple(feed.digests()),
        spans=tuple(feed.spans),
        story=tuple(feed.passages.values()),
        overview=feed.overview,
    )


def write_images(page: BinaryIO, images: ImageTable) -> None:
    """Write the images that the messages refer to."""
    for number, (name, mime, data) in enumerate(images):
        page.write(b",\n" if number else b"\n")
        # Base64 and media types hold nothing that has to be escaped.
        page.write(b'["%s","%s","%s"]' % (name.encode(), mime.encode(), data))
