"""The format of a trace file: its header, its lines, the payload files beside it, and the checks of a line.

A trace is JSON Lines: a `TraceHeader`, then a `TraceLine` for each envelope. A body that is too large for a
line is written to `payloads/SHA256.json`, and the line holds a `PayloadReference` instead. A long string
without escapes in a member `data` or `blob`, such as the base64 of an image that a tool returned, is moved
into a payload file, which all messages with the same string share. In the body `""` takes its place, and the
line has an `Extract` that names the file.
"""

import os
import re
from array import array
from itertools import accumulate
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from grue.errors import MCPConfigError, TraceError
from grue.runtime.files import as_path
from grue.runtime.large_data import count_of
from grue.runtime.safe_text import beginning, printable

# Readers accept all older formats, too. Format 1 had no payloads. New fields and new kinds of notes need no
# new format, because older readers accept them.
FORMAT = 2
TRACE_FILE = "trace.jsonl"  # the name of the trace in a run folder


def trace_in(path: str | os.PathLike[str]) -> Path:
    """Return the trace in the run folder `path`, or `path` if it is no folder. May raise `MCPConfigError`."""
    path = as_path(path, "A trace")
    return path / TRACE_FILE if os.path.isdir(path) else path  # noqa: PTH112 - never raises


_ERROR_CHARS = 500

PAYLOADS = "payloads"  # the folder for payload files, beside the trace file


class TraceHeader(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="trace", tag="grue"):
    """First line of a trace file. `started_at`: seconds since the epoch; `version`: as in `TraceOptions`."""

    format: int
    episode: str
    started_at: float
    version: str = ""


class TraceLine(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"sender": "from", "receiver": "to"}
):
    """A line of a trace file: an envelope whose body is not decoded."""

    seq: int
    t: float
    at: float
    turn: int
    sender: str
    receiver: str
    cause: int | None = None
    redacted: bool = False
    copied: bool = False
    extracts: tuple["Extract", ...] = ()
    body: msgspec.Raw  # the last field: `Recorder._pass_on` replaces the end of the encoded line


class PayloadReference(Struct, frozen=True, kw_only=True, rename={"sha256": "$payload"}):
    """Replaces a body that is in a payload file, named by its SHA-256. `type` is the body's tag."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]+$", min_length=64, max_length=64)]
    bytes: int
    type: str | UnsetType = UNSET


class Extract(Struct, frozen=True, kw_only=True, rename={"sha256": "$payload"}):
    """A long string in a payload file."""

    at: int  # byte offset, in the body's JSON as it is written, of the `""` that replaces the string
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]+$", min_length=64, max_length=64)]
    bytes: int  # its size with the quotes


REFERENCE_START = b'{"$payload":'  # how a `PayloadReference` begins; a message begins with its tag
_TAG_AT_START = re.compile(rb'\{"type":"([\w.]{1,100})"')


def tag_at_start(body: bytes | memoryview | msgspec.Raw) -> str:
    """Return the tag at the start of a message's JSON; empty: no tag was found there."""
    found = _TAG_AT_START.match(body)
    return found[1].decode() if found else ""


def payload_path(trace: Path, sha256: str) -> Path:
    """Return the path of a payload file of the trace file `trace`."""
    return trace.parent / PAYLOADS / f"{sha256}.json"


MIN_EXTRACT_BYTES = 1024  # fewest bytes of a string that is moved into a payload file
# The members of MCP results that hold base64. Within the text of a JSON string, quotes have backslashes, so
# these bytes cannot stand there.
_BASE64_MEMBERS = (b'"data":"', b'"blob":"')


def long_strings(written: bytes) -> list[tuple[int, int]]:
    """Return start and end, quotes included, of a line's long `data` and `blob` strings without escapes."""
    found: list[tuple[int, int]] = []
    for member in _BASE64_MEMBERS:
        at = written.find(member)
        while at >= 0:
            start = at + len(member) - 1
            end = written.find(b'"', start + 1)
            if end < 0:
                break
            # Leave out a string with a backslash: it is not base64, and `end` may be an escaped quote in it.
            if end - start >= MIN_EXTRACT_BYTES and written.find(b"\\", start, end) < 0:
                found.append((start, end + 1))
            at = written.find(member, start + 1)
    return sorted(found)


def read_header(path: Path, first: bytes) -> TraceHeader:
    """Read a trace file's first line; raises `TraceError` if this version cannot read the file."""
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
    if not first:
        return "it is empty"
    for start, name, command in _PACKED:
        if first.startswith(start):
            return f"it is compressed with {name}; unpack it first: {command}"
    return "its first line is not a trace header. Name the trace.jsonl of a run, or the run's folder"


_PACKED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"\xfd7zXZ\x00", "xz", "unxz"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"PK\x03\x04", "zip", "unzip"),
)


MAX_DEPTH = 250  # most levels of nesting in a body; few enough for a recursive reader
# What decoding an untrusted file can raise; `MCPConfigError` if a message in it has an invalid limit.
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MCPConfigError)
_LATEST_S = 1e11  # with larger times, in seconds, the arithmetic of readers would overflow
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_CHUNK = 2**18
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # what is added to the depth: 1 or -1, as signed bytes
_NO_BRACKETS = bytes(sorted({*range(256)} - {*b"[]{}"}))


def damaged(path: Path, number: int, what: str) -> TraceError:
    """Return the error for a damaged line. `what` is the damage, without a full stop."""
    kept = f", or keep what precedes the line: head -n {number - 1}" if number > 2 else ""
    return TraceError(f"{path}, line {number}: {what}. The file is damaged: copy it again{kept}.")


def unknown(path: Path, number: int, error: Exception) -> TraceError:
    """Return the error for a body that is not a message of this version."""
    what = f"not a message this version knows: {error_text(error)}"
    if isinstance(error, msgspec.ValidationError):
        what += ". If a later grue or another version of the host has written it, use that one; otherwise"
        return TraceError(f"{path}, line {number}: {what} the file is damaged.")
    return damaged(path, number, what)


def error_text(error: Exception) -> str:
    """Return the text of a decoding error, for the middle of a sentence. It may quote a value of the file."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return printable(beginning(str(error).rstrip("."), _ERROR_CHARS))


def check_numbers(path: Path, number: int, line: TraceLine, after: int) -> None:
    """Raise `TraceError` if a line's message number is not above `after`, or a time is out of range."""
    if line.seq <= after:
        raise damaged(path, number, f"not in order: message {line.seq} comes after message {after}")
    if not (abs(line.t) <= _LATEST_S and abs(line.at) <= _LATEST_S):
        raise damaged(path, number, "not a trace line: its time is out of range")


def is_deeper(text: bytes, levels: int) -> bool:
    """Return whether a JSON text is nested deeper than `levels`."""
    if count_of(text, "[{") <= levels:
        return False
    steps = array("b", _STRINGS.sub(b"", text).translate(_STEPS, _NO_BRACKETS))
    depth = 0
    for at in range(0, len(steps), _CHUNK):
        # Other threads can run between two chunks. Each chunk takes a few milliseconds.
        chunk = steps[at : at + _CHUNK]
        if max(accumulate(chunk, initial=depth)) > levels:
            return True
        depth += sum(chunk)
    return False
