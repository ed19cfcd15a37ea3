"""The trace file's format: what a header, a line and a payload beside the file are.

A trace is JSON Lines. The first line is a `TraceHeader`, every further one a `TraceLine`: an envelope whose
body is the message, tagged with its type. A body that is larger than its writer keeps in a line stands in a
file beside the trace, `payloads/SHA256.json`, and the line holds a `PayloadReference` in its place.

An image that a tool returned is in several messages: the result, the request that shows it to the model, the
end of the turn. Its base64 is taken out of each of them and stands once, as a JSON string, in a file of the
same kind; the lines have `""` in its place, and an `Extract` each that says where it belongs.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from grue.errors import TraceError

FORMAT = 2
"""Version of the trace file's format; readers accept this and every older one (1 had no payloads)."""

PAYLOADS = "payloads"
"""Name of the folder beside the trace file that holds what is too large for a line."""


class TraceHeader(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="trace", tag="grue"):
    """First line of a trace file.

    Attributes:
        format: Version of the format.
        episode: Names the episode.
        started_at: Seconds since the epoch.
        version: Of the program that began the file; empty where it did not say.
    """

    format: int
    episode: str
    started_at: float
    version: str = ""


class TraceLine(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"sender": "from", "receiver": "to"}
):
    """An envelope as it stands in the file; the body is still JSON."""

    seq: int
    t: float
    at: float
    turn: int
    sender: str
    receiver: str
    cause: int | None = None
    redacted: bool = False
    extracts: tuple["Extract", ...] = ()
    body: msgspec.Raw


class PayloadReference(Struct, frozen=True, kw_only=True, rename={"sha256": "$payload"}):
    """What stands in a line for a body that is in a file of its own.

    Attributes:
        sha256: Of the body's JSON, in hexadecimal; the file's name.
        bytes: Its length.
        type: The body's tag, so that a reader of the line alone can tell what it is.
    """

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]+$", min_length=64, max_length=64)]
    bytes: int
    type: str | UnsetType = UNSET


class Extract(Struct, frozen=True, kw_only=True, rename={"sha256": "$payload"}):
    """A long string of a body that is in a file of its own.

    Attributes:
        at: Where `""` stands in the body that the line, or its payload, holds: the offset in bytes.
        sha256: Of the string's JSON, quotes included, in hexadecimal; the file's name.
        bytes: Its length.
    """

    at: int
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]+$", min_length=64, max_length=64)]
    bytes: int


REFERENCE_START = b'{"$payload":'
"""How a reference begins in a line, and a message never does: a message begins with its tag."""


def payload_path(trace: Path, sha256: str) -> Path:
    """Return the file that holds a payload of the trace file `trace`."""
    return trace.parent / PAYLOADS / f"{sha256}.json"


MIN_EXTRACT_BYTES = 1024
"""Shortest string that is taken out of a line."""

_BASE64_MEMBERS = (b'"data":"', b'"blob":"')
"""Where MCP's results and what is made of them hold base64. In JSON these bytes only ever begin a member: in
a string, the second quote would have a backslash before it."""


def long_strings(written: bytes) -> list[tuple[int, int]]:
    """Return where base64 stands in a line: the start of each string and its end, quotes included.

    Only the members that hold base64 are looked at, by searches that skip over it: a line may be megabytes.
    """
    found: list[tuple[int, int]] = []
    for member in _BASE64_MEMBERS:
        at = written.find(member)
        while at >= 0:
            start = at + len(member) - 1
            end = written.find(b'"', start + 1)
            if end < 0:
                break
            # With a backslash in it, it is no base64, and the quote may not be its end.
            if end - start >= MIN_EXTRACT_BYTES and written.find(b"\\", start, end) < 0:
                found.append((start, end + 1))
            at = written.find(member, start + 1)
    return sorted(found)


def read_header(path: Path, first: bytes) -> TraceHeader:
    """Read a trace file's first line.

    Raises:
        TraceError: It is no header, or one of a later format.
    """
    try:
        header = msgspec.json.decode(first, type=TraceHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path} is not a grue trace: {_wrong_start(first)}.") from error
    if header.format > FORMAT:
        raise TraceError(
            f"{path} has trace format {header.format}; this version reads up to {FORMAT}. Upgrade grue."
        )
    if header.format < 1:
        raise TraceError(f"{path} is not a grue trace: there is no trace format {header.format}.")
    return header


def _wrong_start(first: bytes) -> str:
    """Say what a file begins with in place of a header."""
    if not first:
        return "it is empty"
    for start, name, command in _PACKED:
        if first.startswith(start):
            return f"it is compressed with {name}; unpack it first: {command}"
    return "its first line is no trace header"


_PACKED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"\xfd7zXZ\x00", "xz", "unxz"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"PK\x03\x04", "zip", "unzip"),
)
