"""The images in a trace, taken out of its messages for a page: each is in the page only once.

An image is base64 text that begins as a PNG, JPEG, GIF or WebP file does, alone in a JSON string. The string
then names the image instead, and the page shows it in its place. No other media type is shown, so that a page
never draws SVG that a tool wrote.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import IO

REFERENCE = "grue-image:"
"""How a string begins that stands for an image; the image's id follows."""

MAX_IMAGE_CHARS = 24_000_000
"""Longest base64 of an image that a page shows."""
MAX_IMAGES_CHARS = 96_000_000
"""Most base64 of all images of a page. The messages of further ones say that they are left out."""

_IMAGE = re.compile(
    rb'(\\*")(?:data:image/[a-z+.-]{1,20};base64,)?'
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
    """Collects the images of a page.

    Args:
        spool: A file for their base64, so that they are not kept in memory.
    """

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool = spool
        self._places: dict[str, tuple[str, int, int]] = {}
        self._chars = 0

    def take_out(self, body: bytes) -> bytes:
        """Return a message's JSON with a reference in the place of each image."""
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
        """Return the number of different images."""
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield each image: its id, its media type and its base64."""
        for name in tuple(self._places):
            yield name, *self.image(name)

    def image(self, name: str) -> tuple[str, bytes]:
        """Return an image's media type and its base64.

        Raises:
            KeyError: There is no such image.
        """
        mime, start, length = self._places[name]
        self._spool.seek(start)
        return mime, self._spool.read(length)


_SHORTEST = 100
"""A shorter message holds no image."""
