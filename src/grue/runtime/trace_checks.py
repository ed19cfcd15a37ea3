"""What a line of a trace is held to before anybody makes something of it, and the errors for one that fails.

Pure: no file is opened here.
"""

import re
from pathlib import Path

import msgspec

from grue.errors import TraceError
from grue.runtime.trace_format import TraceLine

MAX_DEPTH = 250
"""Levels of nesting in a body. What models and servers say is held to 100 where it enters, so that no reader
has to recurse deeper than Python can."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON from an untrusted file can raise."""

_LATEST_S = 1e11
"""Times beyond are no times: a reader's arithmetic would overflow."""

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = bytes.maketrans(b"[]{}", b"()()")
_NO_BRACKETS = bytes(sorted({*range(256)} - {*b"[]{}"}))


def damaged(path: Path, number: int, what: str) -> TraceError:
    """Return the error for a line that is not as it was written; `what` says why, without a full stop."""
    kept = f", or keep what precedes the line: head -n {number - 1}" if number > 2 else ""
    return TraceError(f"{path}, line {number}: {what}. The file is damaged: copy it again{kept}.")


def unknown(path: Path, number: int, error: Exception) -> TraceError:
    """Return the error for a body that is no message of this version."""
    what = f"not a message this version knows: {told(error)}"
    if isinstance(error, msgspec.ValidationError):
        what += ". If a later grue has written it, upgrade; otherwise"
        return TraceError(f"{path}, line {number}: {what} the file is damaged.")
    return damaged(path, number, what)


def told(error: Exception) -> str:
    """Return what decoding complains of, for the middle of a sentence."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")


def check_numbers(path: Path, number: int, line: TraceLine, after: int) -> None:
    """Refuse a line whose number does not come after that of the line before, or with an impossible time.

    Args:
        path: The trace.
        number: Of the line in the file, from 1.
        line: The line.
        after: Sequence number of the line before; 0: there is none.

    Raises:
        TraceError: The line is damaged, stands in another place than it was written, or twice.
    """
    if line.seq <= after:
        raise damaged(path, number, f"not in order: message {line.seq} comes after message {after}")
    if not (abs(line.t) <= _LATEST_S and abs(line.at) <= _LATEST_S):
        raise damaged(path, number, "not a trace line: its time is out of range")


def check_depth(path: Path, number: int, body: bytes) -> None:
    """Refuse a body that is nested deeper than `MAX_DEPTH`.

    Raises:
        TraceError: It is.
    """
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    rest = _STRINGS.sub(b"", body).translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not rest:
            return
        rest = rest.replace(b"()", b"")  # the innermost level
    if rest:
        raise damaged(path, number, f"nested deeper than {MAX_DEPTH} levels")
