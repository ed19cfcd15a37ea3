"""Marks: the scores that scorers and people give an episode, in `RUN/scores/NAME@VERSION.json`.

`RUN` is the run folder; in a fleet, the folder that holds the run folders `attempt-N`; for a trace without a
folder of its own, such as `bot.jsonl`, the folder `bot.marks` beside it.
"""

import os
import re
from pathlib import Path

import msgspec
from msgspec import Struct

from grue.errors import TraceError
from grue.runtime.files import os_errors_as, read_regular, write_whole
from grue.runtime.trace.format import TRACE_FILE

SCORES = "scores"
HUMAN = "human"  # the scorer of the marks that people give in the viewer
MOST_REASON = 2000
_MOST_BYTES = 2**20
_MOST_MARKS = 100
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_ATTEMPT = re.compile(r"attempt-([1-9][0-9]{0,5})")


class Mark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A score of one episode."""

    scorer: str
    version: str = "1"
    score: float  # a finite number
    reason: str = ""  # untrusted, as a model may have written it
    attempt: int = 0  # number in a fleet; 0: outside fleets, or a mark for all attempts
    requests: int = 0  # how many requests to a model the scoring took; likewise `tokens`
    tokens: int = 0
    money_usd: float = 0.0  # the cost of these requests, as far as it is known

    @property
    def name(self) -> str:
        """`SCORER@VERSION`, the name of the mark's file without its suffix."""
        return f"{self.scorer}@{self.version}"


def require_name(word: str) -> None:
    """Raise `ValueError` if a scorer's name or version cannot be a part of a file's name."""
    if not _NAME.fullmatch(word):
        raise ValueError(f"{word!r:.80}: use letters, digits, `_`, `.` and `-`, 64 of them at most")


def place_of_marks(trace: Path) -> tuple[Path, int]:
    """Return the folder that contains a trace's `scores`, and the attempt's number (0 outside fleets)."""
    if trace.name != TRACE_FILE:  # the folder may hold other traces
        return trace.absolute().with_suffix(".marks"), 0
    run = trace.absolute().parent
    match = _ATTEMPT.fullmatch(run.name)
    return (run.parent, int(match[1])) if match else (run, 0)


def write_mark(folder: Path, mark: Mark) -> Path:
    """Write a mark into `scores` in `folder`. It replaces a mark of the same scorer and version."""
    # Raises `ValueError` for a bad name, and `TraceError` if the file cannot be written, or would be one
    # more than the 100 that are read.
    require_name(mark.scorer)
    require_name(mark.version)
    path = folder / SCORES / f"{mark.name}.json"
    names = _names(folder)
    if path.name not in names and len(names) >= _MOST_MARKS:
        raise TraceError(
            f"Cannot write {path}: {path.parent} has {len(names)} marks, and no more are read. Delete some."
        )
    with os_errors_as(TraceError, f"write {path}"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(mark), indent=1) + b"\n")
    return path


def read_marks(folder: Path) -> list[Mark]:
    """Return the marks in the first 100 files by name; files that hold no mark of their name are skipped."""
    marks = []
    for name in _names(folder)[:_MOST_MARKS]:
        try:
            mark = msgspec.json.decode(read_regular(folder / SCORES / name, _MOST_BYTES), type=Mark)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if f"{mark.name}.json" == name:
            marks.append(mark)
    return marks


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder / SCORES) if entry.name.endswith(".json"))
    except OSError:
        return []
