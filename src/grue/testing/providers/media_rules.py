"""The rules of strict providers for images, audio and files in a chat completions request.

Requests in the other formats are translated to chat completions first.
"""

import base64
import re
from collections.abc import Iterator

from grue.testing.providers.chat_shapes import Json

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)
_BEGINNINGS = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "application/pdf": re.compile(rb"%PDF-"),
    "wav": re.compile(rb"RIFF.{4}WAVE", re.DOTALL),
    "mp3": re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"),
}


def part_refusals(
    where: str, part: Json, *, images: bool, audio: bool, files: bool, max_base64: int
) -> Iterator[str]:
    """Yield why a part of a user's message is refused.

    Args:
        where: The part's place in the request, for messages.
        part: A part that is not text.
        images: The model takes images.
        audio: It takes audio.
        files: It takes PDF files.
        max_base64: Longest base64 text of an image.
    """
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            if not images:
                yield f"Invalid content type. image_url is only supported by certain models. ({where})"
            yield from _url(where, url, "image/", max_base64)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": "wav" | "mp3" as form}}:
            if not audio:
                yield f"This model does not support audio input. ({where})"
            yield from _data(where, str(form), data)
        case {"type": "file", "file": {"filename": str(name), "file_data": str(url)}} if name:
            if not files:
                yield f"This model does not support file content. ({where})"
            yield from _url(where, url, "application/pdf", max_base64)
        case {"type": kind}:
            yield f"Invalid value: '{kind}'. Supported values are: 'text', 'image_url'... ({where}.type)"
        case _:
            yield f"Missing required parameter: '{where}.type'."


def _url(where: str, url: str, expected: str, max_base64: int) -> Iterator[str]:
    if url.startswith("https://"):
        return
    found = _DATA_URL.fullmatch(url)
    if found is None or not found[1].startswith(expected):
        yield f"Invalid '{where}': expected a base64-encoded data URL of '{expected}'."
        return
    if found[1].startswith("image/") and len(found[2]) > max_base64:
        yield f"{where}: image exceeds the maximum: {len(found[2])} bytes > {max_base64} bytes"
    yield from _data(where, found[1], found[2])


def _data(where: str, media_type: str, data: str) -> Iterator[str]:
    beginning = _BEGINNINGS.get(media_type)
    if beginning is None:
        supported = "'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
        yield f"{where}: media_type: Input should be {supported}"
        return
    try:
        head = base64.b64decode(data, validate=True)[:16]
    except ValueError:
        yield f"{where}: invalid base64 data"
        return
    if not beginning.match(head):
        yield f"{where}: the data was specified as {media_type}, but appears to be something else."
