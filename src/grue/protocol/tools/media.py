"""Check the images, audio and PDF files of a tool's result before they are attached for the model.

A provider refuses a whole request for one image with the wrong media type or broken base64, and the image is
then in the history of every later request. So what is attached here is checked first: its type is read from
its first bytes, its base64 has only the characters of base64, and it fits the limits. What fails a check is
described to the model, with the reason.

To add a media type, add it to the tables below. Which of these an endpoint takes is decided by
`chat_wire/media.py`.
"""

import base64
import re
import string
from urllib.parse import unquote, urlsplit

from grue import messages as m
from grue.policies import MediaKind, TurnLimits
from grue.runtime.safe_text import printable

MAX_ATTACHMENTS = 20
"""Most attachments of one reply's results. Anthropic limits an image to 2,000 pixels a side in a request with
more than 20 of them, and some servers take fewer still."""

_MAX_TEXT_BYTES = 1024 * 1024
_MAX_NAME = 100
_HEAD_CHARS = 64
_ALPHABET = (string.ascii_letters + string.digits + "+/").encode()


_SIGNATURES: tuple[tuple[re.Pattern[bytes], MediaKind, str], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image", "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image", "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image", "image/gif"),
    (re.compile(rb"RIFF.{4}WEBP", re.DOTALL), "image", "image/webp"),
    (re.compile(rb"RIFF.{4}WAVE", re.DOTALL), "audio", "audio/wav"),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), "audio", "audio/mpeg"),
    (re.compile(rb"%PDF-"), "file", "application/pdf"),
)
"""How the files begin that models take."""

_EXPECTED = {
    "image": "it is not a PNG, JPEG, GIF or WebP image",
    "audio": "it is neither WAV nor MP3",
}


class MediaRoom:
    """Collects the attachments of one reply's tool results, up to the limits of the turn.

    Args:
        limits: The limits of the turn.
        used_bytes: Decoded size of the attachments of earlier replies.

    Attributes:
        attachments: What was attached so far.
    """

    def __init__(self, limits: TurnLimits, used_bytes: int = 0) -> None:
        self.attachments: list[m.Attachment] = []
        self._limits = limits
        self._left = limits.max_media_bytes - used_bytes

    def attach(self, declared: str, data: str, uri: str = "") -> str:
        """Attach `data`, and return an empty text, or why it is not attached.

        Args:
            declared: `image`, `audio` or `resource`, as the block calls it.
            data: Its base64.
            uri: Of a resource, for its name.
        """
        data = _without_prefix(data)
        found = _sniffed(data[:_HEAD_CHARS])
        if found is None:
            return _EXPECTED.get(declared, "it is not an image, a WAV, an MP3 or a PDF")
        kind, mime = found
        size = decoded_bytes(data)
        if reason := self._too_much(kind, size):
            return reason
        clean = _clean(data)
        if clean is None:
            return "its base64 cannot be read"
        size = decoded_bytes(clean)
        self._left -= size
        name = _file_name(uri) if kind == "file" else ""
        self.attachments.append(m.Attachment(kind=kind, mime=mime, data=clean, bytes=size, name=name))
        return ""

    def _too_much(self, kind: MediaKind, size: int) -> str:
        limits = self._limits
        if kind == "image" and size > limits.max_image_bytes:
            return f"it is larger than max_image_bytes, {limits.max_image_bytes:,}"
        if size > self._left:
            return f"with it the turn would show more than max_media_bytes, {limits.max_media_bytes:,}"
        if len(self.attachments) >= MAX_ATTACHMENTS:
            return f"a reply shows no more than {MAX_ATTACHMENTS}"
        return ""


def text_in(mime: object, data: str) -> str | None:
    """Return the text that base64 stands for where the media type is one of text, SVG among them.

    `None`: it is not text, not UTF-8, or larger than a megabyte.
    """
    if not isinstance(mime, str) or not _TEXTUAL.match(mime) or decoded_bytes(data) > _MAX_TEXT_BYTES:
        return None
    try:
        return base64.b64decode(_without_prefix(data)).decode()
    except ValueError:
        return None


_TEXTUAL = re.compile(
    r"text/|application/(?:json|xml|javascript|yaml|toml|sql)\b|[^;]*\+(?:json|xml)\b", re.IGNORECASE
)


def decoded_bytes(base64_text: str) -> int:
    """Return the decoded size of base64 text in bytes, without decoding what may be megabytes."""
    tail = base64_text[-4:]
    return (len(base64_text) - len(tail) + len(tail.rstrip("="))) * 3 // 4


def known_bytes(data: str) -> int | None:
    """Return the decoded size of base64 in bytes; `None`: its first megabyte is not base64.

    What is not base64 may be a text with a secret in it. A number made of its length would not come out the
    same when the turn is replayed from the trace, where a placeholder stands for the secret.
    """
    data = _without_prefix(data)
    clean = data if len(data) > _MAX_TEXT_BYTES else _clean(data)
    return None if clean is None else decoded_bytes(clean)


def _without_prefix(data: str) -> str:
    """Return the part of a data URL after its comma; some servers send such URLs in place of base64."""
    comma = data.find(",", 0, 200) if data.startswith("data:") else -1
    return data[comma + 1 :]


def _sniffed(base64_head: str) -> tuple[MediaKind, str] | None:
    head = "".join(base64_head.split())
    try:
        start = base64.b64decode(head[: len(head) // 4 * 4])
    except ValueError:
        return None
    return next((known[1:] for known in _SIGNATURES if known[0].match(start)), None)


def _clean(data: str) -> str | None:
    """Return base64 as providers take it: padded and without white space; `None` if it is not base64.

    Translating finds foreign characters in a tenth of the time that decoding takes.
    """
    foreign = data.encode("ascii", "replace").translate(None, _ALPHABET)
    if foreign.strip(b"="):
        data = "".join(data.split())
        foreign = data.encode("ascii", "replace").translate(None, _ALPHABET)
    padding = len(foreign)
    if foreign.strip(b"=") or padding > 2 or not data.endswith("=" * padding):
        return None
    missing = -len(data) % 4
    if missing == 0:
        return data
    return data + "=" * missing if padding == 0 and missing < 3 else None


def _file_name(uri: str) -> str:
    """Return the last part of a URI, fit for a request; a PDF without a name is called `file.pdf`."""
    try:
        last = unquote(urlsplit(uri).path.rstrip("/").rpartition("/")[2])
    except ValueError:
        last = ""
    name = re.sub(r"[^\w. -]", "_", printable(last, _MAX_NAME)).strip(". ") or "file"
    return name if name.lower().endswith(".pdf") else f"{name}.pdf"
