"""The folder of a fleet, which holds its whole state.

    DIR/fleet.json                 the last run's work, limits and start; a folder without it is no fleet's
    DIR/driver.lock                locked while a driver works on the fleet
    DIR/stop                       a line for each `grue fleet stop` since the last run began
    DIR/ledger.jsonl               what requests have cost
    DIR/latest.txt                 the ids of the latest sweep's episodes, which reports and comparisons show
    DIR/named.txt                  the ids of all episodes; those of the latest run come last
    DIR/results.jsonl              an index of the commits, for readers; see `results.py`
    DIR/batches/                   requests that wait for batches; see `batches.py`
    DIR/scores/                    the costs and the kept verdicts of judges; see `scoring.py`
    DIR/ab/ID/case.json            the case of the episode `ID`, whose first digits are `ab`
    DIR/ab/ID/attempt-N/           the files that the work has written in the attempt N
    DIR/ab/ID/attempt-N/attempt.json   how the attempt ended; missing if it is committed or was interrupted
    DIR/ab/ID/commit.json          the result; written once
    DIR/ab/ID/commit/commit.json   the result, if the file system has no hard links
    DIR/ab/ID/scores/NAME@VERSION.json   a score that a scorer or a person has given later
    DIR/ab/ID/requests.jsonl, replies.jsonl   only with batches; see `batches.py`

An episode is done when `commit.json` exists, which is written once even if two workers finish the same
episode. The work can do anything to its episode's files. So a file that cannot be read is an error of its
episode only, and `attempts` and `end_of` never raise.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import FleetError
from grue.fleet.broker import Amount, FleetBudget, Rate
from grue.fleet.course import Course
from grue.fleet.identity import ID_LENGTH
from grue.runtime.files import draft_beside, drafted, os_cause, os_errors_as, read_regular, write_whole

MANIFEST, LOCK, LEDGER, STOP = "fleet.json", "driver.lock", "ledger.jsonl", "stop"
LATEST, NAMED = "latest.txt", "named.txt"
CASE, COMMIT, ATTEMPT, TRACE = "case.json", "commit.json", "attempt.json", "trace.jsonl"
REQUESTS, REPLIES = "requests.jsonl", "replies.jsonl"

_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.01
_HELD = "commit"
_DAMAGED = "damaged"
_MOST_BYTES = 16 * 2**20
_MOST_BYTES_OF_IDS = 64 * 2**20
# `episode_id` admits 8 MiB of settings; `case.json` may have the settings twice, and with indentation.
_MOST_BYTES_OF_CASE = 64 * 2**20

# Errors of file systems without hard links: vfat, exfat, and many FUSE and SMB file systems.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_NUMBERED = re.compile(r"attempt-([1-9][0-9]{0,5})")

Scores: TypeAlias = dict[str, float]
T = TypeVar("T")


FORMAT = 1


class Manifest(Struct, frozen=True, kw_only=True):
    """The file `fleet.json`: the last run's work, limits and start, but not which episodes are done."""

    format: int = FORMAT
    work: str = ""
    version: str = "1"
    total: int = 0
    axes: list[str] = []
    budget: FleetBudget = FleetBudget()
    rate: Rate = Rate()
    grue: str = ""
    started: str = ""


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """The end of an attempt; the content of `attempt.json`."""

    # `failed`: the model, the game or the work has failed, which is a result, too; `infrastructure`: the
    # machine, the network or a server has failed, so the episode is tried again; `unpaid`: the budget refused
    # a request; `waiting`: the attempt waits for a batch; this outcome is never written
    outcome: Literal["scored", "failed", "infrastructure", "unpaid", "waiting"]
    kind: str = ""  # the kind of failure, for example the error's class
    error: str = ""
    scores: Scores = {}
    endpoint: str = ""  # the endpoint of the `LLMError` that ended the attempt
    model: str = ""  # the model that answered last; empty if unknown
    duration_s: float = 0.0
    spent: Amount = Amount()
    course: Course | None = None  # `None`: for example no trace, or the worker has died


class Commit(Struct, frozen=True, kw_only=True):
    """The result of an episode; the content of `commit.json`."""

    attempt: int
    end: AttemptEnd
    trace_bytes: int | None = None  # `None`: the attempt has no trace
    trace_sha256: str | None = None
    version: str = ""  # the version of grue that played the episode


class CaseFile(Struct, frozen=True, kw_only=True):
    """The file `case.json`. `planned`: the settings before the work added its own; `None`: it added none."""

    work: str
    version: str
    settings: m.JsonObject
    repetition: int = 0
    planned: m.JsonObject | None = None


class EpisodeFolder:
    """The folder of one episode; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @property
    def commit(self) -> Commit | None:
        """The result; `None` if the episode is not done. Raises `FleetError` if it cannot be read."""
        return _read(self.path / COMMIT, Commit) or _read(self.path / _HELD / COMMIT, Commit)

    @property
    def usable_commit(self) -> Commit | None:
        """The result; `None` if the episode is not done, or the result cannot be read."""
        try:
            return self.commit
        except FleetError:
            return None

    @property
    def case(self) -> CaseFile | None:
        """The case; `None` if the episode was never begun. Raises `FleetError` if it cannot be read."""
        return _read(self.path / CASE, CaseFile, _MOST_BYTES_OF_CASE)

    def attempts(self) -> list[tuple[int, Path]]:
        """Return the number and the folder of each attempt, sorted by number."""
        found = ((_NUMBERED.fullmatch(entry.name), entry) for entry in _sorted(self.path))
        return sorted((int(match[1]), entry) for match, entry in found if match)

    def end_of(self, attempt: Path) -> AttemptEnd | None:
        """Return the end in `attempt.json` (if unreadable: `infrastructure`); `None`: the file is missing."""
        try:
            return _read(attempt / ATTEMPT, AttemptEnd)
        except FleetError as error:
            return AttemptEnd(outcome="infrastructure", kind=_DAMAGED, error=str(error))

    def begin(self, case: CaseFile) -> Path:
        """Write `case.json` if it is missing; make and return the folder of a new attempt."""
        with _writing(self.path):
            # Do not pass `parents=True`: this has to fail if the fleet's folder was deleted.
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            if not (self.path / CASE).exists():
                write_whole(self.path / CASE, _written(case), fsync=True)
            number = max((number for number, _ in self.attempts()), default=0) + 1
            while True:
                attempt = self.path / f"attempt-{number}"
                try:
                    attempt.mkdir(mode=0o700)
                except FileExistsError:  # another process has made this folder first
                    number += 1
                else:
                    return attempt

    def end(self, attempt: Path, end: AttemptEnd) -> None:
        """Record how an attempt ended."""
        with _writing(attempt):
            write_whole(attempt / ATTEMPT, _written(end), fsync=True)

    def make_commit(self, attempt: Path, end: AttemptEnd, *, version: str) -> bool:
        """Commit an attempt, whose files must be closed; `False`: another attempt is committed already."""
        trace = attempt / TRACE
        with _writing(self.path):
            size, digest = _synced_digest(trace) if trace.is_file() else (None, None)
            commit = Commit(
                attempt=int(attempt.name.removeprefix("attempt-")),
                end=end,
                trace_bytes=size,
                trace_sha256=digest,
                version=version,
            )
            return _commit_at(self.path, commit)

    def set_aside_commit(self) -> None:
        """Move the commit into a folder `damaged-...`, so that the episode can be played again.

        Record an end of the last attempt without one: that is the attempt that was committed.
        """
        committed = next((path for _, path in reversed(self.attempts()) if self.end_of(path) is None), None)
        if committed is not None:
            fault = "its result could not be read"
            self.end(committed, AttemptEnd(outcome="infrastructure", kind=_DAMAGED, error=fault))
        with _writing(self.path):
            for name in (COMMIT, _HELD):
                if os.path.lexists(self.path / name):
                    aside = Path(tempfile.mkdtemp(prefix=f"{_DAMAGED}-", dir=self.path))
                    (self.path / name).rename(aside / name)

    def drop_trace(self) -> None:
        """Delete the attempts with all their files, and the batch requests and replies; keep the commit."""
        for _, attempt in self.attempts():
            shutil.rmtree(attempt, ignore_errors=True)
        for name in (REQUESTS, REPLIES):
            with contextlib.suppress(OSError):
                (self.path / name).unlink()


def require_fleet(path: Path) -> None:
    """Raise `FleetError` if a folder is not a fleet's."""
    if not (path / MANIFEST).is_file():
        raise FleetError(
            f"There is no fleet in {path}: it has no {MANIFEST}."
            " `grue fleet run SWEEP.toml` makes one, in runs/SWEEP."
        )


class FleetFolder:
    """The folder of a fleet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def episode(self, id_: str) -> EpisodeFolder:
        """Return the folder of an episode; the folder need not exist."""
        return EpisodeFolder(self.path / id_[:2] / id_)

    def episodes(self) -> Iterator[EpisodeFolder]:
        """Yield the episodes that were begun, sorted by id."""
        for group in _sorted(self.path):
            if len(group.name) == 2 and group.is_dir():
                yield from (EpisodeFolder(entry) for entry in _sorted(group) if _ID.fullmatch(entry.name))

    def find(self, beginning: str) -> EpisodeFolder:
        """Return the episode whose id begins with `beginning`; raises `FleetError` if none or several do."""
        found = [episode for episode in self.episodes() if episode.id.startswith(beginning)]
        if len(found) == 1:
            return found[0]
        what = "is no episode" if not found else f"are {len(found)} episodes"
        raise FleetError(f"There {what} in {self.path} whose id begins with {beginning!r}.")

    def read_manifest(self) -> Manifest:
        """Return the manifest, empty if there is no file; raises `FleetError` if it is damaged."""
        return _read(self.path / MANIFEST, Manifest) or Manifest()

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest; make the folder if it does not exist."""
        with _writing(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path / MANIFEST, _written(manifest), fsync=True)

    def write_latest(self, ids: Iterable[str] | None) -> None:
        """Write the ids of the latest sweep's episodes, if possible; `None`: remove the file."""
        path = self.path / LATEST
        with contextlib.suppress(OSError):
            if ids is None:
                path.unlink(missing_ok=True)
            else:
                write_whole(path, "\n".join(ids).encode())

    def latest(self) -> frozenset[str] | None:
        """Return the ids of the episodes of the latest sweep; `None`: its file is missing or unreadable."""
        ids = self._ids(LATEST)
        return None if ids is None else frozenset(ids)

    def write_named(self, ids: Collection[str]) -> None:
        """Put `ids` at the end of `named.txt`, if possible."""
        # Readers use the order in this file, not the times of files, which a copy of the folder may not have.
        before = (each for each in self.named() if each not in ids)
        with contextlib.suppress(OSError):
            write_whole(self.path / NAMED, "\n".join((*before, *ids)).encode())

    def named(self) -> list[str]:
        """Return the ids in `named.txt`, the latest run's at the end; empty if the file cannot be read."""
        return self._ids(NAMED) or []

    def _ids(self, name: str) -> list[str] | None:
        try:
            return read_regular(self.path / name, _MOST_BYTES_OF_IDS).decode("ascii").split()
        except (OSError, UnicodeDecodeError):
            return None

    def require_commits(self) -> None:
        """Check that an episode can be committed in this folder, and only once; raises `FleetError`."""
        with _writing(self.path):
            place = Path(tempfile.mkdtemp(prefix=".trial-", dir=self.path))
            try:
                once = [
                    _commit_at(place, Commit(attempt=n, end=AttemptEnd(outcome="scored"))) for n in (1, 2)
                ]
            finally:
                shutil.rmtree(place, ignore_errors=True)
        if once != [True, False]:
            raise FleetError(
                f"The file system of {self.path} lets two workers commit the same episode: it has no hard"
                " links, and renames a folder over another. Name a folder elsewhere with --dir."
            )

    def free_bytes(self) -> int:
        """Return the free space of the disk that holds the folder, even before the folder exists."""
        place = next(
            folder for folder in (self.path.absolute(), *self.path.absolute().parents) if folder.exists()
        )
        return shutil.disk_usage(place).free


@contextlib.contextmanager
def driver_lock(folder: FleetFolder, *, end_it_with: str = "`grue fleet stop`") -> Iterator[None]:
    """Lock a fleet's folder (made if missing) for one driver; raises `FleetError` if that is impossible."""
    path = folder.path / LOCK
    with _writing(path):
        if folder.path.is_file():
            raise FleetError(f"{folder.path} is a file, not a folder. Name a folder with --dir.")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with _writing(path, "lock"):
            if not _lock_for_driver(descriptor):
                holder = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip()
                raise FleetError(
                    f"Another driver works on {path.parent} (process {holder or 'unknown'}). A folder has one"
                    f" driver: wait for it, or end it with {end_it_with}."
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock_for_driver(descriptor: int) -> bool:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_S)  # the holder may be `is_driven`, which holds the lock for an instant
        else:
            return True
    return False


def is_driven(folder: FleetFolder) -> bool:
    """Return whether a driver on this machine has locked a fleet's folder."""
    try:
        with (folder.path / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _writing(place: Path, doing: str = "write") -> contextlib.AbstractContextManager[None]:
    return os_errors_as(
        lambda said: FleetError(f"{said} Nothing that was finished is lost."), f"{doing} {place}"
    )


def _sorted(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # the folder does not exist, was removed, or cannot be listed
        return []


def _read(path: Path, kind: type[T], most_bytes: int = _MOST_BYTES) -> T | None:
    try:
        return msgspec.json.decode(read_regular(path, most_bytes), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FleetError(f"Cannot read {path}: {os_cause(error)}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        remedy = (
            "Run the sweep again, and it is written anew."
            if path.name == MANIFEST
            else "Move the episode's folder away, and the sweep plays it again."
        )
        raise FleetError(f"{path} is damaged: {error}. {remedy}") from error


def _written(content: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def _commit_at(folder: Path, commit: Commit) -> bool:
    """Write a commit into an episode's folder; return `False` if the folder has a commit already."""
    # `os.link` fails if `commit.json` exists. Without hard links, a folder with the file is renamed to
    # `commit`, which fails if that folder exists and is not empty.
    path = folder / COMMIT
    draft = draft_beside(path)
    with drafted(draft, fsync=True) as file:
        file.write(_written(commit))
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _rename_into_place(draft, folder / _HELD)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(folder)
    return True


def _rename_into_place(draft: Path, held: Path) -> bool:
    """Move the commit `draft` into a new folder, and rename that to `held`; `False`: `held` has a commit."""
    holder = Path(tempfile.mkdtemp(prefix=f".{held.name}.", dir=held.parent))
    try:
        draft.rename(holder / COMMIT)
        _sync_folder(holder)
        holder.rename(held)
    except OSError:
        if not (held / COMMIT).exists():
            raise
        return False
    finally:
        shutil.rmtree(holder, ignore_errors=True)
    _sync_folder(held.parent)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some file systems cannot sync folders
        if error.errno not in (errno.EINVAL, *_NO_LINKS):
            raise
    finally:
        os.close(descriptor)


def _synced_digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest
