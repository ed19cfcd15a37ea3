"""`grue runs`: list the recorded episodes in a folder. `latest_trace` finds the latest trace."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from grue.cli.saying import GRUE, say, say_page, shown_argument, shown_path
from grue.errors import MCPConfigError, TraceError
from grue.runtime.files import open_regular, os_errors_as, read_regular
from grue.runtime.trace.format import TRACE_FILE, trace_in
from grue.tracing.facts import counted
from grue.tracing.observers.run_folder import RESULT_FILE
from grue.tracing.overview import Overview
from grue.tracing.reading import open_episode

RUNS = Path("runs")  # the folder in which commands such as `grue play` put run folders
FORK = "-fork"  # the suffix of the names of run folders that `grue fork` makes
_MOST_RESULT_BYTES = 2**20
_MOST_READ_BYTES = 2**24  # the most, in all, that `list_runs` reads of traces without a usable result file
_HEADER = b'{"trace":"grue"'


class _Result(Struct):
    reason: str = ""
    turns: int = 0
    score: int | None = None
    max_score: int | None = None
    duration_s: float | None = None


def list_runs(folder: Path | None) -> None:
    """Print the episodes in `folder` (`None`: the working directory) and in its `runs`, latest first."""
    found = _episodes(RUNS, Path()) if folder is None else _episodes(folder, folder / RUNS)
    names = [shown_path(path) if str(path).isprintable() else shown_argument(path) for path in found]
    width = max(map(len, names))
    readable = _MOST_READ_BYTES
    for path, name in zip(found, names, strict=True):
        written, size = _time_and_size(path)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(written))
        outcome = _outcome(path)
        if not outcome and size > readable:
            outcome = f"not read, as these traces are long; see {GRUE} trace stats {shown_argument(path)}"
        elif not outcome:
            readable -= size
            outcome = _outcome_of_trace(path)
        say(f"{name:{width}}  {when}  {outcome}".rstrip())
    say(f"To read one: {GRUE} trace show {shown_argument(found[0])}")


def write_runs(folder: Path, open_browser: bool) -> None:
    """Write an HTML index of the episodes in a folder and its subfolder `runs`, and a page for each."""
    found = _episodes(folder, folder / RUNS)
    from grue.tracing.viewer import write_index

    say_page(write_index(folder, found), open_browser, f": {counted(len(found), 'episode')}")


def _episodes(folder: Path, beside: Path) -> list[Path]:
    found = sorted([*traces_in(folder), *traces_in(beside)], key=_time_and_size, reverse=True)
    if found:
        return found
    if folder.is_file():
        raise MCPConfigError(f"{shown_path(folder)} is a file, not a folder.")
    if not folder.is_dir():
        fault = f"There is no folder {shown_path(folder)}. `grue play --offline` makes one named runs."
        raise MCPConfigError(fault)
    raise MCPConfigError(f"There is no trace in {shown_path(folder)}.{_of_fleet(folder) or of_batch(folder)}")


def _of_fleet(folder: Path) -> str:
    from grue.fleet.folder import MANIFEST

    fleet = _first(folder, MANIFEST)
    if fleet is None:
        return ""
    place = shown_argument(fleet)
    return (
        f" {place} is a fleet: {GRUE} fleet table {place} and {GRUE} fleet failures {place} list its"
        f" episodes, and {GRUE} fleet show {place} ID names the trace of one."
    )


def of_batch(folder: Path) -> str:
    """Say where a batch's traces are, if `folder` or a folder in it is a batch; else return an empty text."""
    batch = _first(folder, "batch.json")
    if batch is None:
        return ""
    turns = shown_argument(batch / "turns")
    return f" {shown_argument(batch)} is a batch: the traces of its turns are in {turns}."


def _first(folder: Path, name: str) -> Path | None:
    folders = (folder, *sorted(folder.iterdir())) if folder.is_dir() else ()
    return next((each for each in folders if holds(each, name)), None)


def latest_trace() -> Path:
    """Return the latest trace in `runs` or here that is no failed or unfinished fork, or else the latest."""
    found = [*traces_in(RUNS), *traces_in(Path())]
    if not found:
        raise MCPConfigError(
            "There is no trace in runs or here. Name one: a trace.jsonl, or the run folder that holds it;"
            " or go to the folder that has runs. `grue play --offline` makes one."
        )
    latest_first = sorted(found, key=_time_and_size, reverse=True)
    return next((path for path in latest_first if not _is_failed_fork(path)), latest_first[0])


def _is_failed_fork(path: Path) -> bool:
    if not path.name.endswith(FORK):
        return False
    overview = _overview(path)
    return overview is None or overview.last in ("", "failed")


def _overview(path: Path) -> Overview | None:
    overview = Overview()
    try:
        for envelope in open_episode(path):
            overview.see(envelope)
    except TraceError:
        return None
    return overview


def traces_in(folder: Path) -> Iterator[Path]:
    """Yield the run folders and trace files in a folder, the latest first."""
    if not folder.is_dir():
        return
    with os_errors_as(MCPConfigError, f"read the folder {shown_path(folder)}"):
        paths = [path for path in folder.iterdir() if _is_trace(path)]
    yield from sorted(paths, key=_time_and_size, reverse=True)


def _is_trace(path: Path) -> bool:
    try:
        if path.is_dir():
            return holds(path, TRACE_FILE)
        if path.suffix != ".jsonl":
            return False
        with open_regular(path) as file:
            return file.read(len(_HEADER)) == _HEADER
    except OSError:
        return False


def holds(folder: Path, name: str) -> bool:
    """Return whether a folder has a file of this name; `False` if the folder cannot be read."""
    try:
        return (folder / name).is_file()
    except OSError:
        return False


def _time_and_size(path: Path) -> tuple[float, int]:
    try:
        found = trace_in(path).stat()
    except OSError:  # the trace was removed meanwhile
        return 0.0, 0
    return found.st_mtime, found.st_size


def _outcome_of_trace(path: Path) -> str:
    overview = _overview(path)
    if overview is None:
        return "cannot be read"
    if overview.forks:
        *others, last = overview.forks
        more = f" and {counted(len(others), 'other')}" if others else ""
        return f"{overview.last or 'not finished'}: a fork of {last}{more}, {overview.seconds:.1f} s"
    turns = counted(overview.turns, "turn")
    failed = f", {overview.failures} without an answer" if overview.failures else ""
    calls = f", {counted(overview.tool_calls, 'tool call')}"
    won = f", {overview.result}" if overview.result else ""
    ended = overview.ending or overview.last or "not finished"
    return f"{ended}: {turns}{failed}{calls}{won}, {overview.seconds:.1f} s  {overview.title}"


def _outcome(path: Path) -> str:
    try:
        written = read_regular(path / RESULT_FILE, _MOST_RESULT_BYTES)
        result = msgspec.json.decode(written, type=_Result)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    most = "" if result.max_score is None else f" of {result.max_score}"
    score = "" if result.score is None else f", {result.score}{most} points"
    lasted = "" if result.duration_s is None else f", {result.duration_s:.1f} s"
    return f"{result.reason}: {counted(result.turns, 'turn')}{score}{lasted}"
