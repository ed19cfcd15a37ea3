"""Checks of a trace line before it is used, and the errors for lines that fail them.

Pure functions; this module opens no files.
"""

import re
from array import array
from itertools import accumulate
from pathlib import Path

import msgspec

from grue.errors import TraceError
from grue.runtime.large_data import STEP, count_of
from grue.runtime.trace.format import TraceLine

MAX_DEPTH = 250
"""Largest nesting of a body. Input from models and servers is limited to 100 levels where it enters, so a
valid trace is never nested more deeply than a recursive reader can handle."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that decoding JSON from an untrusted file can raise."""

_LATEST_S = 1e11
"""Largest valid time. With larger ones the arithmetic of readers would overflow."""

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CHUNK = 2**18
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""By how much each bracket changes the depth, as signed bytes."""

_NO_BRACKETS = bytes(sorted({*range(256)} - {*b"[]{}"}))


def damaged(path: Path, number: int, what: str) -> TraceError:
    """Return the error for a damaged line. `what` is the damage, without a full stop."""
    kept = f", or keep what precedes the line: head -n {number - 1}" if number > 2 else ""
    return TraceError(f"{path}, line {number}: {what}. The file is damaged: copy it again{kept}.")


def unknown(path: Path, number: int, error: Exception) -> TraceError:
    """Return the error for a body that is not a message of this version."""
    what = f"not a message this version knows: {error_text(error)}"
    if isinstance(error, msgspec.ValidationError):
        what += ". If a later grue has written it, upgrade; otherwise"
        return TraceError(f"{path}, line {number}: {what} the file is damaged.")
    return damaged(path, number, what)


def error_text(error: Exception) -> str:
    """Return the text of a decoding error, for the middle of a sentence."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")


def check_numbers(path: Path, number: int, line: TraceLine, after: int) -> None:
    """Check that a line's sequence number is above that of the previous line, and that its times are valid.

    Args:
        path: The trace, for the error.
        number: Number of the line in the file, from 1.
        line: The line.
        after: Sequence number of the previous line; 0: this is the first.

    Raises:
        TraceError: The line is damaged, was moved, or is there twice.
    """
    if line.seq <= after:
        raise damaged(path, number, f"not in order: message {line.seq} comes after message {after}")
    if not (abs(line.t) <= _LATEST_S and abs(line.at) <= _LATEST_S):
        raise damaged(path, number, "not a trace line: its time is out of range")


def check_depth(path: Path, number: int, body: bytes) -> None:
    """Check that a body is nested at most `MAX_DEPTH` levels deep.

    Raises:
        TraceError: It is nested more deeply.
    """
    if len(body) <= STEP:
        # The usual message. This runs for each line of a trace, so it makes no call of ours.
        if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
            return
    elif count_of(body, "[{") <= MAX_DEPTH:
        return
    steps = array("b", _STRINGS.sub(b"", body).translate(_STEPS, _NO_BRACKETS))
    depth = 0
    for at in range(0, len(steps), _CHUNK):
        # A few milliseconds each, so that other threads can run in between.
        chunk = steps[at : at + _CHUNK]
        if max(accumulate(chunk, initial=depth)) > MAX_DEPTH:
            raise damaged(path, number, f"nested deeper than {MAX_DEPTH} levels")
        depth += sum(chunk)
