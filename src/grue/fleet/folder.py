"""The folder of a fleet, which holds its whole state.

    DIR/fleet.json                 what the fleet does, for people and for `grue fleet status`
    DIR/driver.lock                held by the one driver
    DIR/ledger.jsonl               what requests have cost
    DIR/ab/ID/case.json            the case of the episode `ID`, whose first digits are `ab`
    DIR/ab/ID/attempt-N/           an attempt, as the work leaves it
    DIR/ab/ID/attempt-N/attempt.json   how the attempt ended; missing if it was interrupted
    DIR/ab/ID/commit.json          the result; made once

An episode is done when `commit.json` exists. It is written to another name first, synced, and then linked:
`os.link` fails if the name exists, so that of two workers that finish the same episode one commits.
Come here for what is on disk. This module decides nothing about what is tried again.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from grue.errors import FleetError
from grue.fleet.broker import Amount
from grue.fleet.identity import ID_LENGTH
from grue.messages import JsonObject
from grue.runtime.safe_open import read_regular

MANIFEST, LOCK, LEDGER, STOP = "fleet.json", "driver.lock", "ledger.jsonl", "stop"
CASE, COMMIT, ATTEMPT, TRACE = "case.json", "commit.json", "attempt.json", "trace.jsonl"

_MOST_BYTES = 16 * 2**20
_ID = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_NUMBERED = re.compile(r"attempt-([1-9][0-9]{0,5})")

Scores: TypeAlias = dict[str, float]
T = TypeVar("T")


class AttemptEnd(Struct, frozen=True, kw_only=True):
    """How an attempt ended; `attempt.json`.

    Attributes:
        outcome: `scored`; `failed`: by the model, the game or the work, which is a result too;
            `infrastructure`: the machine, the network or a server failed, so that it is tried again.
        kind: The kind of failure, for example the error's class; empty if it was scored.
        error: What went wrong, as a sentence.
        scores: The scores by name.
        endpoint: The LLM endpoint that was asked; empty if unknown.
        model: The model that answered; empty if unknown.
        duration_s: Seconds that it took.
        spent: What its requests have cost, as far as it is known.
    """

    outcome: Literal["scored", "failed", "infrastructure"]
    kind: str = ""
    error: str = ""
    scores: Scores = {}
    endpoint: str = ""
    model: str = ""
    duration_s: float = 0.0
    spent: Amount = Amount()


class Commit(Struct, frozen=True, kw_only=True):
    """The result of an episode; `commit.json`.

    Attributes:
        attempt: Number of the attempt that counts.
        end: How it ended.
        trace_bytes: Size of its trace; `None`: it has none.
        trace_sha256: SHA-256 of its trace.
        version: The version of grue that made it.
    """

    attempt: int
    end: AttemptEnd
    trace_bytes: int | None = None
    trace_sha256: str | None = None
    version: str = ""


class CaseFile(Struct, frozen=True, kw_only=True):
    """The work and the settings of an episode; `case.json`."""

    work: str
    version: str
    settings: JsonObject
    repetition: int = 0


class EpisodeFolder:
    """The folder of one episode.

    Args:
        path: The folder; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @property
    def commit(self) -> Commit | None:
        """The result; `None` if the episode is not done.

        Raises:
            FleetError: The file cannot be read.
        """
        return _read(self.path / COMMIT, Commit)

    @property
    def case(self) -> CaseFile | None:
        """The case; `None` if it was never begun."""
        return _read(self.path / CASE, CaseFile)

    def attempts(self) -> list[tuple[int, Path]]:
        """Return the attempts by number."""
        if not self.path.is_dir():
            return []
        found = ((_NUMBERED.fullmatch(entry.name), entry) for entry in self.path.iterdir())
        return sorted((int(match[1]), entry) for match, entry in found if match)

    def end_of(self, attempt: Path) -> AttemptEnd | None:
        """Return how an attempt ended; `None`: it was interrupted, or still runs."""
        return _read(attempt / ATTEMPT, AttemptEnd)

    def begin(self, case: CaseFile) -> Path:
        """Make and return the folder of a new attempt."""
        with _writing(self.path):
            # Without `parents`: a fleet whose folder was deleted must not begin a new one.
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            if not (self.path / CASE).exists():
                _write(self.path / CASE, case)
            number = max((number for number, _ in self.attempts()), default=0) + 1
            while True:
                attempt = self.path / f"attempt-{number}"
                try:
                    attempt.mkdir(mode=0o700)
                except FileExistsError:  # another driver was quicker
                    number += 1
                else:
                    return attempt

    def end(self, attempt: Path, end: AttemptEnd) -> None:
        """Record how an attempt ended."""
        with _writing(attempt):
            _write(attempt / ATTEMPT, end)

    def make_commit(self, attempt: Path, end: AttemptEnd, *, version: str) -> bool:
        """Commit an attempt whose files are closed; return `False` if another one was committed first."""
        trace = attempt / TRACE
        with _writing(self.path):
            size, digest = _synced_digest(trace) if trace.is_file() else (None, None)
            match = _NUMBERED.fullmatch(attempt.name)
            commit = Commit(
                attempt=int(match[1]) if match else 0,
                end=end,
                trace_bytes=size,
                trace_sha256=digest,
                version=version,
            )
            return _link(self.path / COMMIT, commit)

    def drop_trace(self) -> None:
        """Delete all attempts and keep the commit."""
        for _, attempt in self.attempts():
            shutil.rmtree(attempt, ignore_errors=True)


class FleetFolder:
    """The folder of a fleet.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def episode(self, id_: str) -> EpisodeFolder:
        """Return the folder of an episode; it need not exist."""
        return EpisodeFolder(self.path / id_[:2] / id_)

    def episodes(self) -> Iterator[EpisodeFolder]:
        """Yield the episodes that were begun, by id."""
        for group in _sorted(self.path):
            if len(group.name) == 2 and group.is_dir():
                yield from (EpisodeFolder(entry) for entry in _sorted(group) if _ID.fullmatch(entry.name))

    def find(self, beginning: str) -> EpisodeFolder:
        """Return the episode whose id begins like this.

        Raises:
            FleetError: There is none, or more than one.
        """
        found = [episode for episode in self.episodes() if episode.id.startswith(beginning)]
        if len(found) == 1:
            return found[0]
        what = "is not an episode" if not found else f"are {len(found)} episodes"
        raise FleetError(f"There {what} in {self.path} whose id begins with {beginning!r}.")

    def read_manifest(self, kind: type[T]) -> T | None:
        """Return the manifest; `None` if the folder has none."""
        return _read(self.path / MANIFEST, kind)

    def write_manifest(self, manifest: object) -> None:
        """Write the manifest."""
        with _writing(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self.path / MANIFEST, manifest)

    def free_bytes(self) -> int:
        """Return the free space of the disk."""
        place = next(
            folder for folder in (self.path.absolute(), *self.path.absolute().parents) if folder.exists()
        )
        return shutil.disk_usage(place).free


class DriverLock:
    """Holds a fleet's folder for one driver, as long as it is entered.

    Raises:
        FleetError: Another driver has it.
    """

    def __init__(self, folder: FleetFolder) -> None:
        self._path = folder.path / LOCK
        self._descriptor = -1

    def __enter__(self) -> Self:
        with _writing(self._path):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 100, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise FleetError(
                f"Another driver works on {self._path.parent} (process {holder or 'unknown'}). A folder has"
                " one driver: wait for it, or end it with `grue fleet stop`."
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


class _writing:  # noqa: N801 - used as a `with` statement's word
    """Turn an `OSError` into a `FleetError` that names the place and the cause."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if isinstance(exc, OSError):
            raise FleetError(
                f"Cannot write {self._place}: {exc.strerror}. Nothing that was finished is lost."
            ) from exc


def _sorted(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(read_regular(path, _MOST_BYTES), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FleetError(f"Cannot read {path}: {error.strerror}.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FleetError(
            f"{path} is damaged: {error}. Move it away, and its episode is played again."
        ) from error


def _draft(path: Path, content: Any) -> Path:
    """Write and sync a file beside `path`, and return it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return Path(name)


def _write(path: Path, content: Any) -> None:
    _draft(path, content).replace(path)


def _link(path: Path, content: Any) -> bool:
    draft = _draft(path, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    _sync_folder(path.parent)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _synced_digest(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while block := file.read(2**20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
