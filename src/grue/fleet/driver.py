"""The driver of a fleet: walks through the cases, keeps an engine busy, and decides what is tried again.

    missing ──▶ running ──▶ scored | failed        committed: never played again
                   │
                   ├─ infrastructure ──▶ running   after the third attempt: given up, until a run with `retry`
                   ├─ waiting ──▶ running          when the episode's batch has ended; see `batches.py`
                   └─ interrupted, unpaid ─▶ missing   played when the same command is run again

An attempt fails because of the infrastructure if, for example, its worker is lost, the endpoint cannot be
reached or refuses the key, or a server does not start. If the last twenty attempts all failed in the same way
at the same endpoint, the fleet pauses.

The work can do anything to its worker and to the episode's folder. So a reported result counts only if its
commit is in that folder. Results of ended episodes are not kept in memory: there may be thousands.
"""

import itertools
import queue
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

import grue
from grue.errors import FleetError, MCPError, TraceError
from grue.fleet.accounts import add_to_ledger
from grue.fleet.attempt import Engine, Job, Lost, Task, end_of_late
from grue.fleet.batches import FleetBatches, ask_failed_again
from grue.fleet.broker import Amount, Costs
from grue.fleet.folder import REQUESTS, STOP, AttemptEnd, CaseFile, Commit, EpisodeFolder, FleetFolder
from grue.fleet.identity import Case, FileDigests
from grue.fleet.results import note_result
from grue.fleet.sweep import Keep
from grue.fleet.work import KnownWork, forget_cached
from grue.policies import Batching
from grue.protocol.turn.prices import Price
from grue.runtime.files import os_errors_as
from grue.runtime.loops.interrupts import defer_interrupts, raise_deferred

ATTEMPTS = 3
SAME_FAILURES = 20
LEAST_FREE_BYTES = 50 * 2**20
_LOOK_S = 0.2
_LOOK_EVERY = 500
_DRAIN = 2

_MOST_TROUBLES = 5

Reason: TypeAlias = Literal["finished", "paused", "budget", "stopped", "interrupted"]


class Tally(Struct):
    """The counts of a fleet.

    Attributes:
        done: Number of episodes with a commit, which is a final result on disk.
        before: Number of episodes that had a commit before this run.
        failed: Number of episodes with a commit that have failed.
        given_up: Number of episodes that are not tried again: they failed three times because of the machine,
            the network or a server, or have unusable files, or have requests that cannot go into a batch.
        unpaid: Number of episodes that ended early because the budget refused a request.
        running: Number of episodes that a worker plays now.
        waiting: Number of episodes that wait for the replies of a batch.
        others: Number of episodes in the folder that do not belong to this run's cases. Counted only when a
            run ends with the reason `finished`; otherwise 0.
        scores: By the score's name: the number of episodes that have this score, and the sum of its values.
        spent: The cost of the requests of the committed attempts; other attempts are not counted.
        kinds: Number of attempts of this run that failed or were not paid for, by `AttemptEnd.kind`.
        troubles: The first few different reasons for which the episodes in `given_up` were given up, in this
            run or an earlier one, each as `ID: REASON` with the id of the first such episode.
    """

    total: int = 0
    done: int = 0
    before: int = 0
    failed: int = 0
    given_up: int = 0
    unpaid: int = 0
    running: int = 0
    waiting: int = 0
    others: int = 0
    scores: dict[str, tuple[int, float]] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    spent: Amount = Amount()

    def give_up(self, id_: str, why: str) -> None:
        """Count an episode that is not tried again; `why` says what went wrong."""
        self.given_up += 1
        known = any(each.endswith(f": {why}") for each in self.troubles)
        if not known and len(self.troubles) < _MOST_TROUBLES:
            self.troubles.append(f"{id_}: {why}")

    def add(self, end: AttemptEnd) -> None:
        """Count a finished episode. `end` is the result of its committed attempt."""
        self.done += 1
        self.failed += end.outcome == "failed"
        self.spent += end.spent
        for name, value in end.scores.items():
            count, total = self.scores.get(name, (0, 0.0))
            self.scores[name] = (count + 1, total + value)


# Called with the counts; the time (monotonic seconds) at which each running episode was submitted, by its id;
# and the cost of the requests (that of earlier runs alone, if neither budget nor rate has a limit).
Watch: TypeAlias = Callable[[Tally, dict[str, float], Costs], None]


class Finished(Struct, frozen=True, kw_only=True):
    """How a run of a fleet ended.

    Attributes:
        reason: `finished`: the driver went through all cases; `tally` says whether episodes were given up or
            not paid for. `paused`: the last 20 attempts all failed in the same way. `budget`: the budget is
            used up. `stopped`: by `grue fleet stop`. `interrupted`: by Ctrl-C.
        why: A sentence that explains `paused` or `budget`; otherwise empty.
    """

    reason: Reason
    tally: Tally
    why: str = ""


class Plan(Struct, frozen=True, kw_only=True):
    """The input of a `Driver`: a work, its cases, and the settings for playing them."""

    work: KnownWork
    version: str
    cases: Callable[[], Iterable[Case]]  # each call returns the same cases
    keep: Keep = "all"
    prices: dict[str, Price] = {}
    limited: bool = False  # whether the broker, and not the driver, writes the ledger
    batching: Batching | None = None  # `None`: each request is sent by itself
    # whether the cases are those of a `Sweep`, so that reports leave out all other episodes
    whole: bool = False


class Driver:
    """Runs a plan on an engine; `folder` must be locked. `retry` is as for `Fleet.map`."""

    def __init__(
        self,
        folder: FleetFolder,
        plan: Plan,
        engine: Engine,
        watch: Watch | None,
        *,
        retry: bool = False,
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._engine = engine
        self._watch = watch
        self._retry = retry
        self.tally = Tally()
        self._running: dict[str, float] = {}
        self._again: deque[Task] = deque()
        self._tries: dict[str, int] = {}
        self._last: deque[tuple[str, str]] = deque(maxlen=SAME_FAILURES)
        self._presses = 0  # how often Ctrl-C was pressed
        self._cancelled = False
        self._stop: Finished | None = None
        self._batches = None if plan.batching is None else FleetBatches(folder.path, plan.batching)
        self._waiting: dict[str, Task] = {}
        # Why the budget refuses requests; used only with batches. A batch that was sent is paid for, so the
        # run goes on until the episodes that wait for the batch's replies have ended.
        self._refused = ""
        self._warned = False

    def run(self) -> Finished:
        """Play the episodes that have no result and were not given up; return how the run ended."""
        # A first Ctrl-C or `grue fleet stop` lets the running episodes end. A second Ctrl-C, or a second
        # `grue fleet stop`, cancels them. A third Ctrl-C ends the run at once.
        self.tally.total = sum(1 for _ in self._plan.cases())
        # A Ctrl-C between recording a job as running and submitting it would leave a job that counts as
        # running for ever. So the first two presses are deferred until `raise_deferred` is called.
        try:
            with defer_interrupts():
                self._do(self._jobs())
        finally:
            if self._batches is not None:
                self._batches.close()
        if self._batches is not None and self._plan.keep == "results":
            self._batches.drop()
        if self._refused and self._stop is None:
            self._end("budget", self._refused)
        if self._stop is not None and self._stop.reason == "paused" and self.tally.done == self.tally.total:
            self._stop = None  # all episodes have a result, so nothing is left to go on with
        if self._stop is None:
            ours = self.tally.done + self.tally.given_up + self.tally.unpaid
            self.tally.others = max(0, sum(1 for _ in self._folder.episodes()) - ours)
        self._tell()
        return self._stop or Finished(reason="finished", tally=self.tally)

    def _do(self, jobs: Iterator[Job]) -> None:
        while True:
            try:
                raise_deferred()
                more = self._fill(jobs)
                idle = not self._running and (self._stop is not None or not more)
                if idle and (self._stop is not None or not self._waiting):
                    return
                self._look()
                if self._batches is not None and self._stop is None:
                    # Send the waiting requests only when no other work is left, so that batches get large.
                    for id_ in self._batches.step(send=idle):
                        self._again.append(self._waiting.pop(id_))
            except KeyboardInterrupt:
                self._presses += 1
                if self._presses > _DRAIN:
                    raise  # this press was not deferred, so the report of an ended job may be lost
                if self._stop is None:
                    self._end("interrupted")
                if self._presses >= _DRAIN:
                    self._cancel()

    def _fill(self, jobs: Iterator[Job]) -> bool:
        """Give the engine a few more jobs than slots; `False`: no job is left, or the budget is used up."""
        room = self._engine.slots + min(self._engine.slots, 4)
        while len(self._running) < room and self._stop is None:
            job = self._again.popleft() if self._again else None if self._refused else next(jobs, None)
            if job is None:
                return False
            self._running[job.folder.name] = time.monotonic()
            self._engine.submit(job)
        return True

    def _jobs(self) -> Iterator[Job]:
        """Yield a job for each episode that has to be played; count the others as done or given up."""
        work, digests = self._plan.work, FileDigests()
        forget_cached()
        # Write the ids before an episode is played, so that reports on a running or killed sweep are right.
        self._write_ids(digests)
        for number, planned in enumerate(self._plan.cases()):
            if number % _LOOK_EVERY == 0:
                raise_deferred()
                self._require_space()
            case, files, id_ = work.identified(planned, self._plan.version, digests)
            folder = self._folder.episode(id_)
            try:
                commit = self._commit_of(folder)
            except FleetError as error:
                self.tally.give_up(id_, str(error))
                continue
            if commit is not None:
                self.tally.add(commit.end)
                self.tally.before += 1
                continue
            ends = [] if self._retry else [folder.end_of(attempt) for _, attempt in folder.attempts()]
            failed = [end for end in ends if end is not None]
            tries = sum(end.outcome == "infrastructure" for end in failed)
            if tries >= ATTEMPTS:
                self.tally.give_up(id_, failed[-1].error)
                continue
            if tries:
                self._tries[id_] = tries
            case_file = CaseFile(
                work=work.name,
                version=self._plan.version,
                settings=case.settings,
                repetition=case.repetition,
                planned=None if planned.settings == case.settings else planned.settings,
            )
            yield Job(
                folder=folder.path,
                case=case_file,
                keep=self._plan.keep,
                prices=self._plan.prices,
                files=files,
                batch=self._batches is not None,
            )

    def _write_ids(self, digests: FileDigests) -> None:
        """Write the ids of all cases; raises `FleetError` if two cases make the same episode."""
        ids: dict[str, None] = {}
        for number, planned in enumerate(self._plan.cases()):
            if number % _LOOK_EVERY == 0:
                raise_deferred()  # a million cases take a minute
            case, _, id_ = self._plan.work.identified(planned, self._plan.version, digests)
            if id_ in ids:
                written = msgspec.json.encode(case.settings).decode()
                raise FleetError(
                    f"Two cases are the same one, {written:.200}. Leave one out; for more episodes of it,"
                    " raise repetitions."
                )
            ids[id_] = None
        self._folder.write_latest(ids if self._plan.whole else None)
        # If a case's file changed between two runs of `map`, reports use the id that is last in `named.txt`.
        self._folder.write_named(ids)

    def _commit_of(self, folder: EpisodeFolder) -> Commit | None:
        try:
            return folder.commit
        except FleetError:
            if not self._retry:
                raise
            folder.set_aside_commit()
            return None

    def _look(self) -> None:
        try:
            self._ended(*self._engine.ended.get(timeout=_LOOK_S))
            while True:
                self._ended(*self._engine.ended.get_nowait())
        except queue.Empty:
            pass
        calls = _stops(self._folder.path)
        if calls and self._stop is None:
            self._end("stopped")
        elif calls >= _DRAIN:
            self._cancel()
        self._require_folder()
        self._tell()

    def _tell(self) -> None:
        """Call `watch`. Jobs beyond the engine's number of slots are queued, and do not count as running."""
        playing = dict(itertools.islice(self._running.items(), self._engine.slots))
        self.tally.running, self.tally.waiting = len(playing), len(self._waiting)
        if self._watch is not None:
            self._watch(self.tally, playing, self._engine.costs())

    def _ended(self, job: Task, ended: AttemptEnd | Lost) -> None:
        id_ = job.folder.name
        self._running.pop(id_, None)
        folder = EpisodeFolder(job.folder)
        try:
            commit = folder.commit
        except FleetError as error:
            self._give_up(id_, str(error))
            return
        if commit is not None:
            note_result(self._folder.path, job.folder)
        end = self._end_without_commit(folder, ended) if commit is None else commit.end
        if end is None:
            if self._refused and (job.folder / REQUESTS).exists():
                self._again.append(job)  # play it although the budget is used up: its batch is paid for
            return
        try:
            if self._batches is not None and end.outcome == "waiting":
                self._batches.add(job.folder)
                self._waiting[id_] = job
                return
            if self._batches is not None and end.outcome == "infrastructure":
                ask_failed_again(job.folder)
        except MCPError as error:  # such as files that the work has damaged, or a model without batches
            self._give_up(id_, str(error))
            return
        # With batches, add the cost of the committed attempt only: that attempt has read all replies to the
        # episode's requests, and counted their cost.
        if not self._plan.limited and end.spent.requests and (commit is not None or self._batches is None):
            self._record_cost(id_, end.spent)
        self._last.append((end.kind, end.endpoint))
        if end.kind:
            self.tally.kinds[end.kind] = self.tally.kinds.get(end.kind, 0) + 1
        if end.outcome == "infrastructure":
            self._require_folder()
            self._require_space()
            tries = self._tries.get(id_, 0) + 1
            if tries >= ATTEMPTS:
                self._give_up(id_, end.error)
            else:
                self._tries[id_] = tries
                self._again.append(job)
        else:
            self._tries.pop(id_, None)
            if end.outcome == "unpaid":
                self.tally.unpaid += 1
                refused = self._engine.costs().refused
                if refused and self._stop is None and self._batches is None:
                    self._end("budget", refused)
                elif refused and not self._refused:
                    self._refused = refused
                    self._engine.withdraw()
            else:
                self.tally.add(end)
        self._pause_if_all_fail(end)

    def _record_cost(self, episode: str, spent: Amount) -> None:
        try:
            add_to_ledger(self._folder, episode, spent)
        except TraceError as error:
            # The run has no budget, so it goes on. Only a later run with a budget would need this cost.
            if not self._warned:
                self._warned = True
                text = f"Costs of this fleet are not recorded, and no later budget counts them. {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _end_without_commit(self, folder: EpisodeFolder, ended: AttemptEnd | Lost) -> AttemptEnd | None:
        """Return how an attempt without a commit ended (`None`: cancelled); record a lost attempt's end."""
        if isinstance(ended, AttemptEnd):
            if ended.outcome in ("infrastructure", "unpaid", "waiting"):
                return ended
            ended = Lost("error", "its result was removed before it was counted")
        if ended.kind == "unable":
            raise FleetError(ended.why)
        if ended.kind == "cancelled":
            return None
        end = AttemptEnd(outcome="infrastructure", kind=ended.kind, error=ended.why)
        attempt = next((path for _, path in reversed(folder.attempts()) if folder.end_of(path) is None), None)
        if attempt is None:
            return end
        try:
            if ended.kind == "timed_out":
                end = end_of_late(attempt, ended.why, ended.after_s, self._plan.prices)
                folder.make_commit(attempt, end, version=grue.__version__)
                if self._plan.keep == "results":
                    folder.drop_trace()
            else:
                folder.end(attempt, end)
        except FleetError as error:  # the episode's folder cannot be written
            return replace(end, outcome="infrastructure", error=f"{ended.why}; {error}")
        return end

    def _give_up(self, id_: str, why: str) -> None:
        self._tries.pop(id_, None)
        self.tally.give_up(id_, why)

    def _pause_if_all_fail(self, end: AttemptEnd) -> None:
        if self._stop is not None or self._refused or not end.kind:
            return
        if len(self._last) == SAME_FAILURES and len(set(self._last)) == 1:
            where = f" at {end.endpoint}" if end.endpoint else ""
            why = f"the last {SAME_FAILURES} attempts all ended with {end.kind}{where}: {end.error}"
            self._end("paused", why)

    def _end(self, reason: Reason, why: str = "") -> None:
        self._stop = Finished(reason=reason, tally=self.tally, why=why)
        self._engine.withdraw()

    def _cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._engine.cancel()

    def _require_folder(self) -> None:
        if not self._folder.path.is_dir():
            raise FleetError(
                f"The fleet's folder {self._folder.path} is gone, so its results would be lost. Put it back"
                " and run the same command again; what is in it counts."
            )

    def _require_space(self) -> None:
        free = self._folder.free_bytes()
        if free < LEAST_FREE_BYTES:
            raise FleetError(
                f"The disk of {self._folder.path} is nearly full: {free // 2**20} MB are free. Free some"
                " space and run the same command again; nothing that was finished is lost."
            )


def stop(path: Path) -> int:
    """Have the driver start no more episodes; a second call ends running ones. Return the number of calls."""
    place = path / STOP
    with os_errors_as(FleetError, f"write {place}"), place.open("a") as file:
        file.write("stop\n")
    return _stops(path)


def _stops(path: Path) -> int:
    try:
        return (path / STOP).read_bytes().count(b"\n") or 1
    except FileNotFoundError:
        return 0
