"""Make one attempt of an episode, in a worker process: call the work, classify its end, commit the result."""
# The work is user code: it may raise anything, even what `str` fails on, and leave its process in any state.

import contextlib
import errno
import io
import os
import queue
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

import grue
from grue.errors import ActorCrashed, FleetError, LLMError, MCPServerStartupError, TraceError, TurnTimedOut
from grue.fleet.batches import waiting_in
from grue.fleet.broker import Amount, Costs, may_pass, requests_counted
from grue.fleet.course import read_course, read_spent
from grue.fleet.folder import TRACE, AttemptEnd, CaseFile, EpisodeFolder
from grue.fleet.identity import Case, FileDigests
from grue.fleet.sweep import Keep
from grue.fleet.work import Episode, KnownWork, as_scores, find_work, plain_text
from grue.protocol.turn.prices import Price
from grue.runtime.loops.host_code import raised_by
from grue.runtime.secrets.redaction import Redaction

_ANSWERED = re.compile(rb'"type":"CompletionReceived"[^\n]*?"model":"([^"\\]{1,200})"')
_OUTPUT = "output.txt"
_MOST_OUTPUT = 16 * 2**20
_MOST_TEXT = 2000
_UNPAID = "budget"
_OTHERWISE = (
    "it was played again with the reply that it had waited for, and did not ask for it: with --batch a work"
    " asks the same each time, so its requests may not depend on the time, on chance or on its folder"
)


class Task(Struct, frozen=True, kw_only=True):
    """A task for a worker: make an attempt of the episode in `folder`, or score the episode."""

    folder: Path

    def prepare(self) -> None:
        """Import what `make` calls. Whatever this changes in the process, the worker is kept."""
        raise NotImplementedError

    def make(self) -> AttemptEnd:
        """Do the task, in the worker process, and return how the task ended."""
        raise NotImplementedError


class Job(Task, frozen=True, kw_only=True):
    """A task: make one attempt of an episode."""

    case: CaseFile
    keep: Keep = "all"
    prices: dict[str, Price] = {}
    files: dict[str, str] | None = None  # the SHA-256 of files, by setting; `None`: do not check
    batch: bool = False

    def prepare(self) -> None:
        """Import the work."""
        find_work(self.case.work)

    def make(self) -> AttemptEnd:
        """Make an attempt, and record its end unless it waits for a batch. May raise `FleetError`."""
        known = find_work(self.case.work)
        _require_same_files(self, known)
        folder = EpisodeFolder(self.folder)
        # With `batch`, do not resume: a resumed work would not repeat the requests that have stored replies.
        attempts = () if self.batch else reversed(folder.attempts())
        ends = ((path, folder.end_of(path)) for _, path in attempts if (path / TRACE).is_file())
        # The last attempt that has a trace, and no recorded end, or whose worker died.
        interrupted = next((path for path, end in ends if end is None or end.kind == "died"), None)
        attempt = folder.begin(self.case)
        number = self.case.repetition
        episode = Episode(id=folder.id, folder=attempt, repetition=number, interrupted=interrupted)
        began = time.monotonic()
        with _unchanged_umask(), _output_in(attempt), requests_counted(self.prices) as count:
            waiting = waiting_in(self.folder, count) if self.batch else contextlib.nullcontext()
            with waiting as room:
                end = _play(known, self.case, episode)
        if room is not None and room.waits and not count.refused:
            if not room.asks_otherwise:
                # The episode will be played again from its beginning.
                shutil.rmtree(attempt, ignore_errors=True)
                return AttemptEnd(outcome="waiting", kind="batch")
            end = AttemptEnd(outcome="failed", kind="NotRepeatable", error=_OTHERWISE)
        if end.kind == TurnTimedOut.__name__ and count.waiting:
            # The fleet's limits, or a `Retry-After`, held a request back until the turn's time was over.
            end = replace(end, outcome="infrastructure")
        if count.refused:  # a part of the episode was not played, so its score does not count
            end = AttemptEnd(outcome="unpaid", kind=_UNPAID, error=count.refused)
        end = replace(
            end,
            duration_s=round(time.monotonic() - began, 3),
            model=_answering_model(attempt / TRACE),
            spent=count.spent,
            course=read_course(attempt / TRACE),
        )
        has_result = end.outcome not in ("infrastructure", "unpaid")
        if not (has_result and folder.make_commit(attempt, end, version=grue.__version__)):
            folder.end(attempt, end)
        elif self.keep == "results" or (self.keep == "failed" and end.outcome == "scored"):
            folder.drop_trace()
        return end


def end_of_late(attempt: Path, why: str, after_s: float, prices: Mapping[str, Price]) -> AttemptEnd:
    """Return the end of an attempt that was killed at its time limit, with the costs in its trace."""
    course = read_course(attempt / TRACE)
    return AttemptEnd(
        outcome="failed",
        kind="timed_out",
        error=why,
        model=_answering_model(attempt / TRACE),
        duration_s=after_s,
        spent=Amount() if course is None else read_spent(attempt / TRACE, prices),
        course=course,
    )


def _require_same_files(job: Job, known: KnownWork) -> None:
    if not job.files:
        return
    now = FileDigests().of(Case(settings=job.case.settings), known.files)
    for name, digest in job.files.items():
        if now.get(name) != digest:
            raise FleetError(
                f"{name} = {job.case.settings[name]!r} has changed while the fleet ran. Run the same command"
                " again: with another file the episodes are other ones, and those that are done are kept."
            )


def _play(known: KnownWork, case: CaseFile, episode: Episode) -> AttemptEnd:
    process = os.getpid()
    try:
        returned = known.function(dict(case.settings), episode)
        return AttemptEnd(outcome="scored", scores=as_scores(returned, known.scores))
    except BaseException as error:  # noqa: BLE001 - whatever the work raises is the outcome of the attempt
        return _failure(error)
    finally:
        if os.getpid() != process:
            # The work has forked, and this is the child. End it: only the parent may commit the attempt.
            os._exit(1)


def text_of(error: BaseException) -> str:
    """Return an exception's class (unless a `FleetError`) and text, without secrets. Never raises."""
    kind = "exception"
    try:
        kind = plain_text(type(error).__name__)
        text = plain_text(str(error), _MOST_TEXT)
    except BaseException:  # noqa: BLE001 - raised by methods of the exception
        return f"{kind}: its text cannot be made"
    said = text if isinstance(error, FleetError) else f"{kind}: {text}"
    return Redaction.of_environment().redact_text(said)


def _failure(error: BaseException) -> AttemptEnd:
    end = AttemptEnd(outcome="failed", kind="exception", error=text_of(error))
    try:
        return _judged(error, replace(end, kind=plain_text(type(error).__name__)))
    except BaseException:  # noqa: BLE001 - raised by members of the exception
        return end


def _judged(error: BaseException, end: AttemptEnd) -> AttemptEnd:
    infrastructure = isinstance(error, MCPServerStartupError | ActorCrashed | TraceError | ConnectionError)
    if isinstance(error, ActorCrashed) and error.__cause__ is not None and raised_by(error.__cause__):
        return _judged(error.__cause__, end)  # the work's own code, such as its `on_delta`, raised it
    if isinstance(error, LLMError):
        end = replace(end, kind=f"LLMError: {plain_text(error.kind)}", endpoint=plain_text(error.endpoint))
        infrastructure = may_pass(error.kind, error.reason)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM):
        infrastructure = True
    return replace(end, outcome="infrastructure") if infrastructure else end


@contextlib.contextmanager
def _unchanged_umask() -> Iterator[None]:
    """Restore the umask after the work, because the umask decides who can read the result's files."""
    before = os.umask(0o077)
    os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


class _Bounded(io.FileIO):
    def write(self, data: Any, /) -> int:
        left = _MOST_OUTPUT - self.tell()
        return super().write(memoryview(data)[:left]) if left > 0 else len(memoryview(data))


class _Output:
    """The work's `sys.stdout` and `sys.stderr`: passes everything on to the `file` of the attempt.

    All attempts of a process get the same object, because handlers of `logging` keep the first that they get.
    """

    file: io.TextIOWrapper

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


_STREAM: Any = _Output()


@contextlib.contextmanager
def _output_in(attempt: Path) -> Iterator[None]:
    """Write what the work prints into a file, because it would disturb the driver's progress display."""
    path = attempt / _OUTPUT
    file = io.TextIOWrapper(io.BufferedWriter(_Bounded(path, "w")), encoding="utf-8", errors="replace")
    _STREAM.file = file
    with contextlib.redirect_stdout(_STREAM), contextlib.redirect_stderr(_STREAM):
        yield
    with contextlib.suppress(OSError, ValueError):  # the work may have closed the file, or removed its folder
        file.close()
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def _answering_model(trace: Path) -> str:
    """Return the model that answered last, if the last MiB of the trace names it; otherwise an empty text."""
    try:
        if not trace.is_file():  # a named pipe, which the work may have made, would block `open`
            return ""
        with trace.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 2**20))
            found = _ANSWERED.findall(file.read())
    except OSError:
        return ""
    return found[-1].decode("utf-8", "replace") if found else ""


# --- Engines, which do tasks in other processes ---


class Lost(Struct, frozen=True):
    """Why a task has no result from its worker."""

    # `died`: the worker was killed, crashed or sent nonsense; `error`: the task could not be done or
    # recorded; `unable`: no worker can be started, or the engine has failed
    kind: Literal["died", "timed_out", "cancelled", "error", "unable"]
    why: str = ""  # empty for `cancelled`
    after_s: float = 0.0  # the time limit that a timed-out task exceeded


Ended: TypeAlias = tuple[Task, AttemptEnd | Lost]


class Engine(Protocol):
    """Does tasks in worker processes, on this machine (`local.py`) or with Ray."""

    @property
    def slots(self) -> int:
        """How many tasks the engine can do at the same time."""

    @property
    def ended(self) -> "queue.SimpleQueue[Ended]":
        """The queue that gets one `Ended` for each submitted task, also for one that was never begun."""

    def costs(self) -> Costs:
        """Return the cost of the requests, as `Accounts.costs` does."""

    def submit(self, job: Task) -> None:
        """Queue a task for the next free slot. If the engine has failed, report `Lost("unable")`."""

    def withdraw(self) -> None:
        """Remove the queued tasks, and report each as `Lost("cancelled")`. Running tasks go on."""

    def cancel(self) -> None:
        """End all tasks, running or queued, and report each as `Lost("cancelled")`."""

    def close(self) -> None:
        """End all tasks and the worker processes."""
