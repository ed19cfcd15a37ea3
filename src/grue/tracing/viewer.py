"""Write a trace as one HTML page that needs only a browser, for `grue trace html FILE`.

The page's style and script are in `viewer_page/` and are put into the file, with the trace as JSON between
them. Text from models, tools and games cannot run as code there. Each of three measures would suffice: the
text is data in a script element that browsers do not execute, and it cannot end that element; the script
shows it only as text; and the content security policy allows the page's own style and script, by their
hashes, but no other script, no request, no form, and no text that becomes markup.
"""

import base64
import contextlib
import hashlib
import html
import os
import re
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from grue.errors import TraceError
from grue.protocol.safe_text import printable
from grue.runtime.trace_format import TraceHeader
from grue.tracing.digests import DigestWriter, TurnDigest
from grue.tracing.presentation import kind_of, mark_of, severity_of, summarize
from grue.tracing.reading import EpisodeEnvelope, EpisodeReader, open_episode
from grue.tracing.spans import Span, SpanFinder

MAX_MESSAGE_CHARS = 200_000
"""Longest message, as JSON, that the page holds in full; the trace holds longer ones."""

_SUMMARY_CHARS = 300
_SCRIPTS = ("dom", "trace", "virtual_list", "lanes", "timeline", "json_view", "detail", "filters", "main")
"""The parts of the script, in the order in which they are joined; `main` starts the page."""

_FIRST_ACTORS = ("host", "agent", "llm")
_NOTES = "trace"


class _Row(Struct, frozen=True, kw_only=True, array_like=True):
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


class _Episode(Struct, frozen=True, kw_only=True):
    """The page's data apart from its messages."""

    title: str
    header: TraceHeader
    file: str
    cut_short: bool
    actors: tuple[str, ...]
    turns: tuple[TurnDigest, ...]
    spans: tuple[Span, ...]


def write_html(
    trace: Path, target: Path, *, title: str = "", max_message_chars: int = MAX_MESSAGE_CHARS
) -> None:
    """Write a trace as a page that only its owner can read; an existing file is replaced.

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
    if target.is_dir() or (target.exists() and target.samefile(reader.path)):
        raise TraceError(
            f"Cannot write the page {target}: that is {'a folder' if target.is_dir() else 'the trace'}."
        )
    try:
        with _replacing(target) as page:
            _write_page(page, reader, title or f"Trace of {reader.header.episode}", max_message_chars)
    except OSError as error:
        raise TraceError(f"Cannot write the page {target}: {error.strerror}.") from error


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    # A temporary file is made with mode 0600, and the page takes it over.
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as page:
            yield page
        temporary.replace(target)
    except BaseException:
        temporary.unlink()
        raise


def _write_page(page: BinaryIO, reader: EpisodeReader, title: str, max_message_chars: int) -> None:
    before, between, after = _template(title)
    page.write(before)
    digests, spans, actors = DigestWriter(), SpanFinder(), dict.fromkeys(_FIRST_ACTORS, False)
    found: list[Span] = []
    for number, envelope in enumerate(reader):
        turn = digests.see(envelope)
        found += spans.see(envelope)
        actors |= dict.fromkeys((envelope.sender, envelope.receiver), True)
        page.write(b",\n" if number else b"\n")
        page.write(_embedded(_row(envelope, turn, max_message_chars)))
    found += spans.finish()
    page.write(between)
    episode = _Episode(
        title=title,
        header=reader.header,
        file=reader.path.name,
        cut_short=reader.cut_short,
        actors=tuple(actor for actor, seen in actors.items() if seen and actor != _NOTES),
        turns=tuple(digests.digests.values()),
        spans=tuple(found),
    )
    page.write(_embedded(episode))
    page.write(after)


def _row(envelope: EpisodeEnvelope, turn: int, max_message_chars: int) -> _Row:
    body = msgspec.json.encode(envelope.body).decode()
    mark = mark_of(envelope.body)
    return _Row(
        seq=envelope.seq,
        t=round(envelope.t, 6),
        at=round(envelope.at, 3),
        turn=turn,
        sender=envelope.sender,
        receiver="" if envelope.receiver == _NOTES else envelope.receiver,
        cause=envelope.cause,
        kind=kind_of(envelope.body),
        summary=printable(summarize(envelope.body), _SUMMARY_CHARS),
        mark=mark,
        grade=severity_of(envelope.body) if mark else "",
        batch=getattr(envelope.body, "batch", None),
        redacted=envelope.redacted,
        chars=len(body),
        body=body[:max_message_chars],
    )


def _template(title: str) -> tuple[bytes, bytes, bytes]:
    """Return the page's text before, between and after the two places that hold the trace."""
    style = _part("viewer.css")
    script = "\n".join(_part(f"{name}.js") for name in _SCRIPTS)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    parts = {"title": html.escape(title), "policy": policy, "style": style, "script": script}
    page = _PLACES.sub(lambda place: parts.get(place[1], place[0]), _part("page.html"))
    before, rest = page.encode("utf-8", "replace").split(b"<!--messages-->")
    between, after = rest.split(b"<!--episode-->")
    return before, between, after


_PLACES = re.compile("<!--([a-z]+)-->")
"""Placeholders of the page. They are filled in one pass, so that inserted text is never taken for one."""


def _part(name: str) -> str:
    return resources.files("grue.tracing").joinpath("viewer_page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _embedded(value: object) -> bytes:
    """Return JSON that is safe to embed in HTML and JavaScript.

    In JSON these characters occur only in strings, so each can be written as an escape.
    """
    written = msgspec.json.encode(value)
    for char, escape in _ESCAPES:
        written = written.replace(char, escape)
    return written


_ESCAPES = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "<>&\u2028\u2029")
