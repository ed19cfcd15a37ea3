"""Read the results of a fleet: each episode with its case, its outcome and its scores."""
# `results.jsonl` is a cache, because thousands of small files take seconds to read: a line counts only if the
# episode's `commit.json` and `scores` have not changed since.

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.config.documents import did_you_mean
from grue.errors import FleetError
from grue.fleet.course import Course
from grue.fleet.folder import COMMIT, TRACE, AttemptEnd, EpisodeFolder, FleetFolder, require_fleet
from grue.runtime.files import next_line, open_regular
from grue.tracing.marks import SCORES, Mark, read_marks

INDEX = "results.jsonl"
DEFAULT_SCORE = "score"  # the score that commands use if none is named
_MOST_LINE = 2**20

# `scored` and `failed` are results. `infrastructure`: the machine, the network or a server failed in the last
# attempt; `unpaid`: the budget refused one of its requests; `interrupted`: no attempt has begun, or the last
# was cut off, runs or waits for a batch; `damaged`: the episode's files cannot be read.
ResultOutcome: TypeAlias = Literal["scored", "failed", "infrastructure", "unpaid", "interrupted", "damaged"]
_Stamp: TypeAlias = tuple[int, int, int]


class Result(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An episode of a fleet.

    Attributes:
        outcome: Says whether the episode has a result, and if not, why.
        version: Version of the work; empty: unknown.
        settings: The settings that the work got.
        planned: The settings that the sweep gave, before the work added its own.
        repetition: Number of the episode among those with equal settings, from 0.
        attempt: Number of the committed attempt, or else of the last; 0: no attempt, or unreadable files.
        end: How the committed attempt, or else the last, ended; `None`: it has not ended, or cannot be read.
        trouble: Why the episode's files cannot be read; empty if they can be read.
        trace_bytes: Size of the trace; `None`: the attempt has no trace or is not committed.
        grue: The version of grue that played the episode; empty if no attempt is committed.
        marks: The scores that scorers and people have given the committed attempt later.
    """

    id: str
    outcome: ResultOutcome
    work: str = ""
    version: str = ""
    settings: m.JsonObject = {}
    planned: m.JsonObject = {}
    repetition: int = 0
    attempt: int = 0
    end: AttemptEnd | None = None
    trouble: str = ""
    trace_bytes: int | None = None
    grue: str = ""
    marks: tuple[Mark, ...] = ()

    @property
    def played(self) -> bool:
        """`True` if the episode has a result."""
        return self.outcome in ("scored", "failed")

    @property
    def course(self) -> Course | None:
        """The summary of attempt number `attempt`; `None`, for example, while the attempt runs."""
        return None if self.end is None else self.end.course

    @property
    def error(self) -> str:
        """A text that says what failed; empty: nothing failed, or the last attempt has not ended."""
        return self.trouble or ("" if self.end is None else self.end.error)

    @property
    def scores(self) -> dict[str, float]:
        """The scores by name: the work's, and those of scorers as `SCORER@VERSION`.

        `SCORER` is the score of its newest version, unless the work has a score of that name.
        """
        found = dict(self.end.scores) if self.end is not None and self.outcome == "scored" else {}
        for mark in sorted(self.marks, key=lambda mark: _in_order(mark.version), reverse=True):
            found.setdefault(mark.scorer, mark.score)
            found.setdefault(mark.name, mark.score)
        return found

    def folder(self, fleet: str | os.PathLike[str]) -> Path:
        """Return the episode's folder in the folder of the fleet."""
        return FleetFolder(Path(fleet)).episode(self.id).path

    def run(self, fleet: str | os.PathLike[str]) -> Path:
        """Return the folder of attempt number `attempt`, such as `attempt-1`. It need not exist."""
        return self.folder(fleet) / f"attempt-{self.attempt}"


class _IndexLine(Struct, frozen=True):
    """A line of the index: an episode's result, and the state of the files from which the result was read."""

    stamp: _Stamp
    result: Result


_LINES = msgspec.json.Decoder(_IndexLine)


def results(fleet: Path) -> Iterator[Result]:
    """Yield a `Result` for each episode that a fleet has begun, sorted by id; may raise `FleetError`."""
    require_fleet(fleet)
    known, read = _read_index(fleet / INDEX), []
    for episode in FleetFolder(fleet).episodes():
        stamp = _stamp(episode.path)
        line = known.pop(episode.id, None)
        # Do not use an index line that an older grue has written: its result has no version.
        if line is not None and line.stamp == stamp and line.result.version:
            yield line.result
            continue
        result = _read_result(episode)
        if stamp is not None and result.played and line != (made := _IndexLine(stamp, result)):
            read.append(made)
        yield result
    _append(fleet, read)


def of_latest_sweep(fleet: Path, found: list[Result]) -> tuple[list[Result], int]:
    """Return those of `found` that are in the latest sweep, or all if none is; and how many are left out.

    After `Fleet.map`, there is no sweep: then leave out episodes of other versions of the work. Then, too,
    if episodes differ only in the content of the case's files, leave out all but the last in `named.txt`.
    """
    ours = _latest_of(fleet, found)
    return (ours, len(found) - len(ours)) if ours else (found, 0)


def latest_results(fleet: Path) -> tuple[list[Result], int]:
    """Do the same as `of_latest_sweep` for all episodes, but leave out all if none is in the latest sweep."""
    found = list(results(fleet))
    ours = _latest_of(fleet, found)
    return ours, len(found) - len(ours)


def _latest_of(fleet: Path, found: list[Result]) -> list[Result]:
    folder = FleetFolder(fleet)
    latest = folder.latest()
    if latest is not None:
        return [each for each in found if each.id in latest]
    try:
        version = folder.read_manifest().version
    except FleetError:  # the manifest is damaged
        return found
    named = {id_: place for place, id_ in enumerate(folder.named())}
    found = [each for each in found if each.version in ("", version)]
    newest: dict[bytes, Result] = {}
    for each in found:
        case = [each.settings, each.repetition] if each.work else each.id  # `case.json` is unreadable
        key = msgspec.json.encode(case, order="deterministic")
        before = newest.setdefault(key, each)
        if before is not each and named.get(each.id, -1) > named.get(before.id, -1):
            newest[key] = each
    kept = {each.id for each in newest.values()}
    return [each for each in found if each.id in kept]


def require_settings(found: Iterable[Result], names: Iterable[str], whose: str = "The episodes") -> None:
    """If any settings are known, refuse unknown `names` with a `FleetError` that begins with `whose`."""
    known = {name: None for each in found for name in (*each.planned, *each.settings)}
    for name in names:
        if known and name not in known:
            raise FleetError(
                f"{whose} have no setting {name!r}.{did_you_mean(name, known)} They have {', '.join(known)}."
            )


def require_score(found: Iterable[Result], score: str) -> str:
    """Return "" if an episode has `score` or none has scores; else a warning, or raise `FleetError`."""
    # Warn only if `score` is the default, which the user may not have chosen.
    known = {name: None for each in found for name in each.scores}
    if not known or score in known:
        return ""
    said = f"No episode has the score {score!r}. The scores are {', '.join(known)}."
    if score != DEFAULT_SCORE:
        raise FleetError(said)
    return f"{said} Name one with --score."


def note_result(fleet: Path, episode: Path) -> None:
    """Add a committed episode to the index, if the episode can be read and the index can be written."""
    stamp = _stamp(episode)
    if stamp is not None:
        result = _read_result(EpisodeFolder(episode))
        if result.played:
            _append(fleet, [_IndexLine(stamp, result)])


def _read_result(episode: EpisodeFolder) -> Result:
    result = Result(id=episode.id, outcome="interrupted")
    try:
        commit = episode.commit
        if commit is not None:
            result = replace(result, end=commit.end, grue=commit.version)
        case = episode.case
    except FleetError as error:
        return replace(result, outcome="damaged", trouble=str(error))
    if case is not None:
        result = replace(
            result,
            work=case.work,
            version=case.version,
            settings=case.settings,
            planned=case.settings if case.planned is None else case.planned,
            repetition=case.repetition,
        )
    if commit is None:
        attempts = episode.attempts()
        if not attempts:
            return result
        number, path = attempts[-1]
        end = episode.end_of(path)
        if end is None:
            return replace(result, attempt=number)
        # `end` may even be a result: another attempt was committed first, and that commit was set aside.
        missing: ResultOutcome = "unpaid" if end.outcome == "unpaid" else "infrastructure"
        return replace(result, attempt=number, outcome=missing, end=end)
    marks = tuple(mark for mark in read_marks(episode.path) if mark.attempt in (0, commit.attempt))
    return replace(
        result,
        outcome=commit.end.outcome,
        attempt=commit.attempt,
        trace_bytes=commit.trace_bytes,
        marks=marks,
    )


def _stamp(episode: Path) -> _Stamp | None:
    """Return a value that changes with `commit.json` and the scores; `None`: there is no `commit.json`."""
    commit = _status(f"{episode}/{COMMIT}") or _status(f"{episode}/commit/{COMMIT}")
    if commit is None:
        return None
    marks = _status(f"{episode}/{SCORES}")
    return commit.st_mtime_ns, commit.st_size, 0 if marks is None else marks.st_mtime_ns


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - `Path.stat` is slower, and a fleet has thousands of files
    except OSError:
        return None


def _read_index(path: Path) -> dict[str, _IndexLine]:
    known: dict[str, _IndexLine] = {}
    with contextlib.suppress(OSError), open_regular(path) as file:
        while text := next_line(file, _MOST_LINE):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                line = _LINES.decode(text)
                known[line.result.id] = line
    return known


def _append(fleet: Path, lines: Iterable[_IndexLine]) -> None:
    # Leave out a line that is too long for `_read_index`: each call of `results` would append it again.
    whole = (each for each in map(msgspec.json.encode, lines) if len(each) < _MOST_LINE)
    # Begin with a newline, in case a kill has cut the last line of the file short.
    written = b"".join(b"\n" + each + b"\n" for each in whole)
    if not written:
        return
    # Ignore a read-only folder or a full disk: readers then read the episodes' files instead.
    with contextlib.suppress(OSError):
        descriptor = os.open(fleet / INDEX, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(written)


def _in_order(version: str) -> list[tuple[int, str]]:
    """Return a sort key for versions: version 10 comes after version 9."""
    return [
        (int(part[:18]), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", version)
    ]


def all_settings(result: Result) -> m.JsonObject:
    """Return an episode's settings: those of the sweep, as it gave them, and those that the work added."""
    return {**result.settings, **result.planned}


def has_trace(result: Result, fleet: Path) -> bool:
    """Return whether the trace of an episode still exists."""
    return (result.run(fleet) / TRACE).is_file()


# --- Which scores pass ---


class Passing(Struct, frozen=True):
    """Which scores pass. `worst` is the worst one that passes; `None`: not known, so every score passes."""

    worst: float | None = 1.0
    lower_is_better: bool = False

    @classmethod
    def of(cls, scores: Iterable[float], worst: float | None, *, lower_is_better: bool) -> "Passing":
        """Decide which scores pass. `worst=None` becomes 1 (0 if lower is better) if all are in 0..1."""
        known = list(scores)
        if worst is None and known and all(0 <= score <= 1 for score in known):
            worst = 0.0 if lower_is_better else 1.0
        return cls(worst, lower_is_better)

    def passes(self, score: float) -> bool:
        """Return whether a score passes."""
        if self.worst is None:
            return True
        return score <= self.worst if self.lower_is_better else score >= self.worst


def failed_score(found: Iterable[Result], failed_as: float | None, *, lower_is_better: bool) -> float:
    """Return `failed_as`, or 0 if it is `None`. Raise `FleetError` if that 0 would favour failed episodes."""
    if failed_as is not None:
        return failed_as
    failed = sum(each.outcome == "failed" for each in found) if lower_is_better else 0
    if failed:
        have = "1 episode has" if failed == 1 else f"{failed:,} episodes have"
        raise FleetError(
            f"{have} failed. As lower scores are better, 0 would be a good score for that: say with"
            " --failed-as (failed_as= in Python) which score a failed episode counts with."
        )
    return 0.0


def score_of(result: Result, name: str, failed_as: float) -> float | None:
    """Return the score that an episode counts with; `None`: it has no result, or it lacks this score."""
    if not result.played:
        return None
    return failed_as if result.outcome == "failed" else result.scores.get(name)
