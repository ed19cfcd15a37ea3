"""One attempt of an episode, in a worker process: call the work, judge what it did, commit the result.

Come here to change what counts as a failure of the machine, the network or a server, which is tried again,
and what is a result.
"""

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

import grue
from grue.errors import ActorCrashed, FleetError, LLMError, MCPServerStartupError, TraceError
from grue.fleet.folder import TRACE, AttemptEnd, CaseFile, EpisodeFolder
from grue.fleet.identity import Case, FileDigests
from grue.fleet.request_count import requests_counted
from grue.fleet.sweep import Keep
from grue.fleet.work import Episode, KnownWork, as_scores, find_work
from grue.messages import JsonObject
from grue.protocol.prices import Price
from grue.protocol.secret_names import secrets_in
from grue.runtime.redaction import Redaction

_NETWORK = frozenset({"unreachable", "unavailable", "timed_out"})
"""Kinds of a failed completion that another try may mend."""

_ANSWERED = re.compile(rb'"type":"CompletionReceived"[^\n]*?"model":"([^"\\]{1,200})"')
_OUTPUT = "output.txt"
_MOST_TEXT = 2000


class Job(Struct, frozen=True, kw_only=True):
    """One attempt to make, as a worker gets it.

    Attributes:
        folder: The episode's folder.
        work: Name of the work.
        version: Version of the work.
        settings: The case's settings.
        repetition: The case's repetition.
        keep: What stays on disk once the episode is done.
        prices: Prices by model, to count what the attempt costs.
        files: SHA-256 of each file that the case names, by setting; `None`: they are not checked.
    """

    folder: Path
    work: str
    version: str
    settings: JsonObject
    repetition: int = 0
    keep: Keep = "all"
    prices: dict[str, Price] = {}
    files: dict[str, str] | None = None


class Attempted(Struct, frozen=True, kw_only=True):
    """An attempt that has ended.

    Attributes:
        end: How.
        attempt: Name of its folder.
        committed: Whether it is the episode's result. An attempt that ended well is not, if another one was
            committed first.
    """

    end: AttemptEnd
    attempt: str = ""
    committed: bool = False


def run_attempt(job: Job) -> Attempted:
    """Make an attempt. A failure of the work is an outcome.

    Raises:
        FleetError: The folder cannot be written, the work cannot be imported, or a file of the case has
            changed.
        KeyboardInterrupt: The attempt was cancelled.
    """
    known = find_work(job.work)
    _require_same_files(job, known)
    folder = EpisodeFolder(job.folder)
    before = folder.attempts()
    case = CaseFile(work=job.work, version=job.version, settings=job.settings, repetition=job.repetition)
    attempt = folder.begin(case)
    episode = Episode(
        id=folder.id,
        folder=attempt,
        repetition=job.repetition,
        interrupted=next((path for _, path in reversed(before) if _interrupted(folder, path)), None),
    )
    began = time.monotonic()
    with _output_in(attempt), requests_counted(job.prices) as count:
        end = _play(known, job, episode)
    model = _answering_model(attempt / TRACE)
    end = replace(end, duration_s=round(time.monotonic() - began, 3), model=model, spent=count.spent)
    if end.outcome == "infrastructure":
        folder.end(attempt, end)
        return Attempted(end=end, attempt=attempt.name)
    committed = folder.make_commit(attempt, end, version=grue.__version__)
    if not committed:
        folder.end(attempt, end)
    elif job.keep == "results" or (job.keep == "failed" and end.outcome == "scored"):
        folder.drop_trace()
    return Attempted(end=end, attempt=attempt.name, committed=committed)


def _require_same_files(job: Job, known: KnownWork) -> None:
    """Check that the files are those that the episode's id stands for."""
    if not job.files:
        return
    now = FileDigests().of(Case(settings=job.settings), known.files)
    for name, digest in job.files.items():
        if now.get(name) != digest:
            raise FleetError(
                f"{name} = {job.settings[name]!r} has changed while the fleet ran. Run the same command"
                " again: with another file the episodes are other ones, and those that are done are kept."
            )


def _play(known: KnownWork, job: Job, episode: Episode) -> AttemptEnd:
    try:
        returned = known.function(dict(job.settings), episode)
        return AttemptEnd(outcome="scored", scores=as_scores(returned, known.scores))
    except FleetError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the work raises is the outcome of the attempt
        return _failure(error)


def _failure(error: Exception) -> AttemptEnd:
    """Return how an attempt ended whose work raised this exception."""
    kind, endpoint = type(error).__name__, ""
    infrastructure = isinstance(error, MCPServerStartupError | ActorCrashed | TraceError | ConnectionError)
    if isinstance(error, LLMError):
        kind, endpoint = f"LLMError: {error.kind}", error.endpoint
        infrastructure = error.kind in _NETWORK
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM):
        infrastructure = True
    text = Redaction(secrets_in(os.environ)).redact_text(f"{type(error).__name__}: {error}"[:_MOST_TEXT])
    return AttemptEnd(
        outcome="infrastructure" if infrastructure else "failed", kind=kind, error=text, endpoint=endpoint
    )


def _interrupted(folder: EpisodeFolder, attempt: Path) -> bool:
    return (attempt / TRACE).is_file() and folder.end_of(attempt) is None


@contextlib.contextmanager
def _output_in(attempt: Path) -> Iterator[None]:
    """Write what the work prints into a file, so that it does not get into the driver's display."""
    path = attempt / _OUTPUT
    with path.open("w", encoding="utf-8", errors="replace") as file:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            yield
        empty = file.tell() == 0
    if empty:
        path.unlink(missing_ok=True)


def _answering_model(trace: Path) -> str:
    """Return the model that answered last; empty if the trace does not say."""
    try:
        with trace.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 2**20))
            found = _ANSWERED.findall(file.read())
    except OSError:
        return ""
    return found[-1].decode("utf-8", "replace") if found else ""
