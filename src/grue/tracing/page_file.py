"""A page as a file: its template, its style and script, its security policy, and data that is safe in it.

Three measures keep text from models, tools and games from running as code in a page. The text is data in a
script element that browsers do not execute, and cannot end that element. The page's script shows it only as
text. The content security policy allows only the page's own style and script, and no requests, except from a
page of `grue trace serve` to its server. An SVG image is not drawn, because it can contain code.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import IO

import msgspec

from grue.errors import MCPError, TraceError
from grue.runtime.files import open_regular, os_errors_as, replacing

_MARKED_WITHIN = 1000
_DATA = re.compile("<!--data-([a-z-]+)-->")
_PLACES = re.compile("<!--([a-z]+)-->")  # filled in one pass: inserted text is never a placeholder


def page_parts(
    name: str, title: str, *, style: Sequence[str], scripts: Sequence[str], served: bool = False
) -> list[bytes]:
    """Return a page's text, cut into parts at the places where its data will be inserted."""
    css = "\n".join(_part(f"{each}.css") for each in style)
    script = "\n".join(_part(f"{each}.js") for each in scripts)
    requests = "img-src 'self'; connect-src 'self'" if served else "img-src data:"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(css)}'; {requests};"
        " base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    parts = {"title": html.escape(title), "generator": f"grue {name}", "policy": policy}
    parts |= {"style": css, "script": script}
    template = _part("head.html") + _part(f"{name}.html")
    page = _PLACES.sub(lambda place: parts.get(place[1], place[0]), template)
    return [part.encode("utf-8", "replace") for part in _DATA.split(page)[::2]]


def write_page(
    target: Path, name: str, title: str, data: object, *, error: type[MCPError] = TraceError
) -> None:
    """Write a page with `data`; its own template, style and script are called `name`. May raise `error`."""
    before, after = page_parts(name, title, style=("viewer", name), scripts=("dom", name))
    with os_errors_as(error, f"write the page {target}"), replacing(target) as page:
        page.writelines((before, embedded(data), after))


def _part(name: str) -> str:
    return resources.files("grue.tracing").joinpath("viewer_page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def embedded(value: object) -> bytes:
    """Return JSON that is safe to embed in HTML and JavaScript: some characters in strings are escaped."""
    written = msgspec.json.encode(value)
    for char, escape in _ESCAPES:
        written = written.replace(char, escape)
    return written


_ESCAPES = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "<>&\u2028\u2029")


def refuse_foreign(target: Path, name: str) -> None:
    """Raise `TraceError` if `target` exists, unless grue wrote it from the template `name`."""
    mark = f'<meta name="generator" content="grue {name}">'.encode()
    with os_errors_as(TraceError, f"write the page {target}"), suppress(FileNotFoundError):
        with open_regular(target) as file:
            is_ours = mark in file.read(_MARKED_WITHIN)
        if not is_ours:
            raise TraceError(f"Cannot write the page {target}: a file that grue did not write has its name.")


REFERENCE = "grue-image:"  # the prefix of a string that replaces an image; the image's id follows
MAX_IMAGE_CHARS = 24_000_000  # most characters of an image in base64; a note replaces a larger one
MAX_IMAGES_CHARS = 96_000_000  # most characters of a page's images; a note replaces one that does not fit

# With `(?<!\\)`, a long run of backslashes is tried once, and not from each of its characters.
_IMAGE = re.compile(
    rb'(?<!\\)(\\*")(?:data:image/[a-z+.-]{1,20};base64,)?'
    rb"((iVBORw0KGgo|/9j/|R0lGOD[dl]h|UklGR)[A-Za-z0-9+/]{60,}+={0,2})"
    rb'(\\*")'
)
_MIMES = {
    b"iVBORw0KGgo": "image/png",
    b"/9j/": "image/jpeg",
    b"R0lGODdh": "image/gif",
    b"R0lGODlh": "image/gif",
    b"UklGR": "image/webp",
}


class ImageTable:
    """Collects the images of a page. `spool` is a file for their base64, so that it is not kept in memory."""

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool = spool
        self._places: dict[str, tuple[str, int, int]] = {}
        self._chars = 0

    def take_out(self, body: bytes) -> bytes:
        """Return a message's JSON. Base64 images become `REFERENCE` and an id or, without room, a note."""
        return _IMAGE.sub(self._reference, body) if len(body) > _SHORTEST else body

    def _reference(self, found: re.Match[bytes]) -> bytes:
        data = found[2]
        name = hashlib.sha256(data).hexdigest()[:32]
        if name not in self._places:
            if len(data) > MAX_IMAGE_CHARS or self._chars + len(data) > MAX_IMAGES_CHARS:
                return found[1] + f"an image of {len(data):,} base64 characters, left out".encode() + found[4]
            self._places[name] = (_MIMES[found[3]], self._chars, len(data))
            self._spool.seek(self._chars)
            self._spool.write(data)
            self._chars += len(data)
        return found[1] + f"{REFERENCE}{name}".encode() + found[4]

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield each image: its id, its media type and its base64."""
        for name in tuple(self._places):
            yield name, *self.image(name)

    def image(self, name: str) -> tuple[str, bytes]:
        """Return the media type and the base64 of the image with the id `name`, or raise `KeyError`."""
        mime, start, length = self._places[name]
        self._spool.seek(start)
        return mime, self._spool.read(length)


_SHORTEST = 100  # a message of at most this many bytes is too short for an image
