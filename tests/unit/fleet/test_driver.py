"""What the driver tries again, what it counts, and when it stops; with an engine that fails as told."""

import os
import queue
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from grue.errors import FleetError
from grue.fleet import driver as driver_module
from grue.fleet.accounts import read_ledger
from grue.fleet.attempt import Ended, Job, Lost
from grue.fleet.batches import BATCHES
from grue.fleet.broker import Amount, Costs
from grue.fleet.driver import Driver, Finished, Plan, Tally, Watch, stop
from grue.fleet.folder import LEDGER, REQUESTS, AttemptEnd, CaseFile, EpisodeFolder, FleetFolder, Manifest
from grue.fleet.identity import Case
from grue.fleet.results import latest_results
from grue.fleet.sweep import Sweep
from grue.fleet.work import KnownWork
from grue.policies import Batching

SCORED = AttemptEnd(outcome="scored", scores={"score": 1.0})
DOWN = AttemptEnd(
    outcome="infrastructure", kind="LLMError: unreachable", error="nobody there", endpoint="http://x"
)
Outcome = AttemptEnd | Lost


class TellingEngine:
    """An engine that ends each job at once, as `tell` says; it writes what a worker would have written."""

    def __init__(self, tell: Callable[[Job, int], AttemptEnd | Lost | None]) -> None:
        self.slots = 2
        self.ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self.jobs: list[Job] = []
        self.most = 0
        self.refused = ""
        self._tell = tell
        self._held: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)
        told = self._tell(job, sum(each.folder == job.folder for each in self.jobs))
        folder = EpisodeFolder(job.folder)
        attempt = folder.begin(job.case)
        if told is None:
            self._held.append(job)
        elif isinstance(told, Lost):
            self.ended.put((job, told))
        elif told.outcome in ("infrastructure", "unpaid", "waiting"):
            folder.end(attempt, told)
            self.ended.put((job, told))
        else:
            folder.make_commit(attempt, told, version="1")
            self.ended.put((job, told))

    def costs(self) -> Costs:
        return Costs(refused=self.refused)

    def withdraw(self) -> None:
        pass

    def cancel(self) -> None:
        for job in self._held:
            self.ended.put((job, Lost("cancelled")))

    def close(self) -> None:
        pass


def plan(cases: Iterable[dict[str, Any]]) -> Plan:
    known = list(cases)
    work = KnownWork(name="m:f", function=lambda case, episode: 0.0)
    return Plan(work=work, version="1", cases=lambda: (Case(settings=each) for each in known))


def run(
    tmp_path: Path,
    tell: Callable[[Job, int], AttemptEnd | Lost | None],
    count: int = 5,
    *,
    watch: Watch = lambda *_: None,
    retry: bool = False,
    refused: str = "",
) -> tuple[Finished, TellingEngine]:
    engine = TellingEngine(tell)
    engine.refused = refused
    cases = plan({"n": number} for number in range(count))
    return Driver(FleetFolder(tmp_path), cases, engine, watch, retry=retry).run(), engine


def test_each_case_is_played_once_and_not_again_by_the_same_command(tmp_path: Path) -> None:
    finished, engine = run(tmp_path, lambda job, tries: SCORED)
    assert (finished.reason, finished.tally.done, len(engine.jobs)) == ("finished", 5, 5)
    assert finished.tally.scores == {"score": (5, 5.0)}
    finished, engine = run(tmp_path, lambda job, tries: SCORED, count=7)
    assert (finished.tally.before, finished.tally.done, len(engine.jobs)) == (5, 7, 2)


@pytest.mark.parametrize("fault", ["key", "base_url", "folder"])
def test_an_episode_whose_requests_cannot_be_sent_in_batches_is_given_up_alone(
    tmp_path: Path, fault: str
) -> None:
    asked = {"key": "1-a", "base_url": "http://127.0.0.1:1/v1", "wire": "chat_completions", "model": "m"}
    line = msgspec.json.encode({**asked, "body": {}, **({} if fault == "folder" else {fault: "x"})})

    def tell(job: Job, tries: int) -> AttemptEnd:
        if job.case.settings["n"]:
            return SCORED
        job.folder.mkdir(parents=True)
        (job.folder / REQUESTS).write_bytes(line + b"\n")
        return AttemptEnd(outcome="waiting")

    if fault == "folder":
        (tmp_path / BATCHES).write_text("not a folder")
    known = replace(plan({"n": number} for number in range(5)), batching=Batching(folder=""))
    finished = Driver(FleetFolder(tmp_path), known, TellingEngine(tell), lambda *_: None).run()
    assert (finished.reason, finished.tally.done, finished.tally.given_up) == ("finished", 4, 1)


def test_the_folder_knows_the_episodes_of_the_latest_sweep(tmp_path: Path) -> None:
    fleet = FleetFolder(tmp_path)

    def play(count: int, *, whole: bool = True, ends: bool = True, version: str = "1") -> None:
        known = replace(plan({"n": number} for number in range(count)), whole=whole, version=version)
        engine = TellingEngine(lambda job, tries: SCORED)
        Driver(fleet, known, engine, lambda *_: None if ends else stop(tmp_path)).run()

    play(5)
    assert fleet.latest() == {each.id for each in fleet.episodes()}
    play(3)
    assert len(fleet.latest() or ()) == 3
    before = {each.id for each in fleet.episodes()}
    play(20, ends=False, version="2")
    latest = fleet.latest() or frozenset()
    assert len(latest - before) == 20, "they are known before the first is played, so also after a stop"
    play(20, whole=False)
    assert fleet.latest() is None, "further cases of a program are not a sweep"


def test_of_two_contents_of_a_file_the_one_that_a_program_played_last_counts(tmp_path: Path) -> None:
    """Also if its episodes were there already, and were not played again, and in a copy of the folder."""
    prompt, place = tmp_path / "prompt.txt", tmp_path / "fleet"
    fleet = FleetFolder(place)
    known = plan([{"prompt": str(prompt)}])
    known = replace(known, work=replace(known.work, files=("prompt",)))

    def play(content: str) -> set[str]:
        prompt.write_text(content)
        engine = TellingEngine(lambda job, tries: SCORED)
        Driver(fleet, known, engine, lambda *_: None).run()
        return {job.folder.name for job in engine.jobs}

    fleet.write_manifest(Manifest(work="m:f"))
    played: list[str] = []
    for at, content in enumerate(("old", "new")):
        played += play(content)
        os.utime(fleet.episode(played[at]).path / "case.json", (9 - at, 9 - at))
        assert [each.id for each in latest_results(place)[0]] == [played[at]]
    assert not play("old")
    assert [each.id for each in latest_results(place)[0]] == [played[0]]


def test_a_case_that_occurs_twice_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    sweep = Sweep(work="zork", grid={"n": [1, 2]}, include=[{"n": 1}])
    engine = TellingEngine(lambda job, tries: SCORED)
    cases = replace(plan([]), cases=sweep.all_cases)
    with pytest.raises(FleetError, match=r'same one, \{"n":1\}\. Leave one out'):
        Driver(FleetFolder(tmp_path), cases, engine, lambda *_: None).run()
    assert not engine.jobs


def test_only_what_a_worker_plays_is_running(tmp_path: Path) -> None:
    """Two workers have four jobs, so that none waits for the driver: two of them run."""
    seen: list[tuple[int, int]] = []

    def watch(tally: Tally, running: dict[str, float], _costs: Costs) -> None:
        seen.append((tally.running, len(running)))
        (tmp_path / "stop").touch()
        engine.cancel()

    engine = TellingEngine(lambda job, tries: None)
    cases = plan({"n": number} for number in range(8))
    Driver(FleetFolder(tmp_path), cases, engine, watch).run()
    assert len(engine.jobs) == 4
    assert seen[0] == (2, 2)


def test_a_failure_of_the_work_is_a_result(tmp_path: Path) -> None:
    failed = AttemptEnd(outcome="failed", kind="ValueError", error="no")
    finished, engine = run(tmp_path, lambda job, tries: failed)
    assert (finished.tally.failed, finished.tally.done, len(engine.jobs)) == (5, 5, 5)


@pytest.mark.parametrize("lost", [DOWN, Lost("died", "status -9")])
def test_infrastructure_is_tried_three_times_and_then_given_up_until_a_retry(
    tmp_path: Path, lost: AttemptEnd | Lost
) -> None:
    finished, engine = run(tmp_path, lambda job, tries: lost if job.case.settings["n"] == 1 else SCORED)
    assert (finished.tally.done, finished.tally.given_up, len(engine.jobs)) == (4, 1, 7)
    finished, engine = run(tmp_path, lambda job, tries: SCORED)
    assert (finished.tally.given_up, len(engine.jobs)) == (1, 0)
    finished, engine = run(tmp_path, lambda job, tries: SCORED, retry=True)
    assert (finished.tally.done, finished.tally.given_up, len(engine.jobs)) == (5, 0, 1)


def test_attempts_of_an_earlier_run_count(tmp_path: Path) -> None:
    twice = run(tmp_path, lambda job, tries: DOWN if tries < 2 else Lost("cancelled"), count=1)
    assert len(twice[1].jobs) == 2
    _, engine = run(tmp_path, lambda job, tries: DOWN, count=1)
    assert len(engine.jobs) == 2


def test_an_episode_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    finished, engine = run(tmp_path, lambda job, tries: Lost("timed_out", "too long", 2.5), count=1)
    (episode,) = FleetFolder(tmp_path).episodes()
    assert (finished.tally.failed, len(engine.jobs)) == (1, 1)
    assert episode.commit is not None
    end = episode.commit.end
    assert (end.kind, end.error, end.duration_s) == ("timed_out", "too long", 2.5)


def test_an_episode_that_takes_too_long_leaves_no_files_where_none_are_kept(tmp_path: Path) -> None:
    engine = TellingEngine(lambda job, tries: Lost("timed_out", "too long"))
    cases = replace(plan([{"n": 1}]), keep="results")
    Driver(FleetFolder(tmp_path), cases, engine, lambda *_: None).run()
    (episode,) = FleetFolder(tmp_path).episodes()
    assert episode.commit is not None
    assert episode.attempts() == []


def test_a_worker_that_is_lost_after_its_commit_has_done_its_work(tmp_path: Path) -> None:
    def tell(job: Job, tries: int) -> Lost:
        folder = EpisodeFolder(job.folder)
        folder.make_commit(folder.begin(CaseFile(work="", version="", settings={})), SCORED, version="1")
        return Lost("died")

    finished, engine = run(tmp_path, tell, count=1)
    assert (finished.tally.done, len(engine.jobs)) == (1, 1)


def test_a_fleet_pauses_when_everything_fails_in_the_same_way(tmp_path: Path) -> None:
    finished, engine = run(tmp_path, lambda job, tries: DOWN, count=100)
    assert finished.reason == "paused"
    assert (
        finished.why == "the last 20 attempts all ended with LLMError: unreachable at http://x: nobody there"
    )
    assert 20 <= len(engine.jobs) < 30


def test_a_fleet_in_which_all_episodes_have_a_result_is_finished_and_not_paused(tmp_path: Path) -> None:
    failed = AttemptEnd(outcome="failed", kind="ValueError", error="no")
    finished, _ = run(tmp_path, lambda job, tries: failed, count=20)
    assert (finished.reason, finished.why, finished.tally.failed) == ("finished", "", 20)


def test_different_failures_do_not_pause(tmp_path: Path) -> None:
    def tell(job: Job, tries: int) -> AttemptEnd:
        return replace(DOWN, endpoint=f"http://{int(job.case.settings['n']) % 2}")

    assert run(tmp_path, tell, count=30)[0].reason == "finished"


def test_stop_lets_running_episodes_end_and_starts_no_others(tmp_path: Path) -> None:
    def watch(tally: Tally, running: dict[str, float], _costs: Costs) -> None:
        if tally.done >= 3 and tally.done < 5:
            stop(tmp_path)

    finished, engine = run(tmp_path, lambda job, tries: SCORED, count=100, watch=watch)
    assert (finished.reason, finished.tally.running) == ("stopped", 0)
    assert finished.tally.done == len(engine.jobs) < 20
    (tmp_path / "stop").unlink()
    assert run(tmp_path, lambda job, tries: SCORED, count=100)[0].tally.done == 100


def test_the_second_stop_cancels_what_still_runs(tmp_path: Path) -> None:
    calls = []

    def watch(tally: Tally, running: dict[str, float], _costs: Costs) -> None:
        if len(running) and len(calls) < 2:
            calls.append(stop(tmp_path))

    finished, _ = run(tmp_path, lambda job, tries: None, count=3, watch=watch)
    assert (finished.reason, finished.tally.done, calls) == ("stopped", 0, [1, 2])


def test_the_second_ctrl_c_cancels_and_what_was_cancelled_is_played_again(tmp_path: Path) -> None:
    presses = iter((True, True))

    def watch(tally: Tally, running: dict[str, float], _costs: Costs) -> None:
        if len(running) and next(presses, False):
            raise KeyboardInterrupt

    finished, _ = run(tmp_path, lambda job, tries: None, count=3, watch=watch)
    assert (finished.reason, finished.tally.done) == ("interrupted", 0)
    finished, engine = run(tmp_path, lambda job, tries: SCORED, count=3)
    assert (finished.tally.done, len(engine.jobs)) == (3, 3)


class StuckEngine(TellingEngine):
    """An engine that reports no end of a job that it has cancelled."""

    def cancel(self) -> None:
        pass


@pytest.mark.parametrize("stops", [0, 2])
def test_the_third_ctrl_c_ends_the_run_even_if_no_job_ends(tmp_path: Path, stops: int) -> None:
    looks = iter(range(9))

    def watch(tally: Tally, running: dict[str, float], _costs: Costs) -> None:
        look = next(looks, None)
        assert look is not None, "the run goes on"
        if look < stops:
            stop(tmp_path)
        elif look < stops + 3:
            signal.raise_signal(signal.SIGINT)

    engine = StuckEngine(lambda job, tries: None)
    driver = Driver(FleetFolder(tmp_path), plan([{"n": 1}]), engine, watch)
    with pytest.raises(KeyboardInterrupt):
        driver.run()
    assert next(looks) == stops + 3, "the third Ctrl-C has ended it"


class StrickenEngine(TellingEngine):
    """An engine during whose first `submit`, or right after whose first ended job, Ctrl-C strikes."""

    def __init__(self, at: str) -> None:
        super().__init__(lambda job, tries: SCORED)
        self.ended = self  # type: ignore[assignment]  # as far as the driver uses it
        self._at = at
        self._queue: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self.put, self.get_nowait = self._queue.put, self._queue.get_nowait

    def submit(self, job: Job) -> None:
        self._strike("submit")
        super().submit(job)

    def get(self, timeout: float) -> Ended:
        ended = self._queue.get(timeout=timeout)
        self._strike("get")
        return ended

    def _strike(self, at: str) -> None:
        if at == self._at:
            self._at = ""
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("at", ["submit", "get"])
def test_a_ctrl_c_at_any_instant_loses_no_job(at: str, tmp_path: Path) -> None:
    engine = StrickenEngine(at)
    cases = plan({"n": number} for number in range(100))
    finished = Driver(FleetFolder(tmp_path), cases, engine, lambda *_: None).run()
    assert (finished.reason, finished.tally.running) == ("interrupted", 0)
    assert finished.tally.done == len(engine.jobs) < 20


@pytest.mark.parametrize("done", [False, True])
def test_a_ctrl_c_while_many_cases_are_looked_through_ends_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    """After those that are done, too: their commits are read before the first job is submitted."""
    asked: list[Any] = []

    def complete(case: dict[str, Any]) -> dict[str, Any]:
        asked.append(case)
        if len(asked) == (count + 1 if done else 1):
            signal.raise_signal(signal.SIGINT)
        return case

    count = 12
    monkeypatch.setattr(driver_module, "_LOOK_EVERY", 5)
    known = plan({"n": number} for number in range(count))
    if done:
        Driver(FleetFolder(tmp_path), known, TellingEngine(lambda *_: SCORED), lambda *_: None).run()
    known = replace(known, work=replace(known.work, complete=complete))
    engine = TellingEngine(lambda *_: SCORED)
    finished = Driver(FleetFolder(tmp_path), known, engine, lambda *_: None).run()
    assert (finished.reason, engine.jobs) == ("interrupted", [])
    assert len(asked) == (count if done else 0) + 5


def test_an_attempt_that_cannot_be_made_costs_its_own_episode(tmp_path: Path) -> None:
    def tell(job: Job, tries: int) -> AttemptEnd | Lost:
        return Lost("error", "no luck") if job.case.settings["n"] == 2 else SCORED

    finished, engine = run(tmp_path, tell)
    assert (finished.tally.done, finished.tally.given_up, len(engine.jobs)) == (4, 1, 7)
    assert finished.tally.troubles == [f"{engine.jobs[2].folder.name}: no luck"]
    again, _ = run(tmp_path, tell)
    assert again.tally.troubles == finished.tally.troubles, "said again, as long as it is so"


def test_a_reason_that_several_episodes_share_is_said_once(tmp_path: Path) -> None:
    finished, _ = run(tmp_path, lambda *_: Lost("error", "no luck"))
    assert (finished.tally.given_up, len(finished.tally.troubles)) == (5, 1)


def test_where_no_worker_starts_the_run_ends(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="No worker process starts"):
        run(tmp_path, lambda job, tries: Lost("unable", "No worker process starts."))


def test_an_unpaid_episode_is_played_by_the_next_run_and_never_counted_as_failed(tmp_path: Path) -> None:
    unpaid = AttemptEnd(outcome="unpaid", kind="budget", error="no price")
    finished, engine = run(tmp_path, lambda job, tries: unpaid if job.case.settings["n"] < 2 else SCORED)
    tally = finished.tally
    assert (finished.reason, tally.done, tally.unpaid, tally.failed, len(engine.jobs)) == (
        "finished",
        3,
        2,
        0,
        5,
    )
    finished, engine = run(tmp_path, lambda job, tries: SCORED)
    assert (finished.tally.done, finished.tally.unpaid, len(engine.jobs)) == (5, 0, 2)


def test_a_budget_that_is_used_up_ends_the_run_and_the_rest_is_not_begun(tmp_path: Path) -> None:
    unpaid = AttemptEnd(outcome="unpaid", kind="budget", error="used up")
    finished, engine = run(
        tmp_path, lambda job, tries: SCORED if job.case.settings["n"] < 3 else unpaid, 50, refused="used up"
    )
    assert (finished.reason, finished.why, finished.tally.done) == ("budget", "used up", 3)
    assert len(engine.jobs) < 15
    assert run(tmp_path, lambda job, tries: SCORED, 50)[0].tally.done == 50


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: shutil.rmtree(folder),
        lambda folder: (folder / "commit.json").write_text("{"),
        lambda folder: ((folder / "commit.json").unlink(), (folder / "commit.json").mkdir()),
        lambda folder: (shutil.rmtree(folder), folder.write_text("no folder")),
    ],
)
def test_what_a_worker_says_counts_only_if_the_folder_says_the_same(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    class Lying(TellingEngine):
        def submit(self, job: Job) -> None:
            if job.case.settings["n"] != 2 or not job.folder.is_file():
                super().submit(job)
                if job.case.settings["n"] == 2:
                    damage(job.folder)
            else:
                self.jobs.append(job)
                self.ended.put((job, SCORED))

    engine = Lying(lambda job, tries: SCORED)
    cases = plan({"n": number} for number in range(5))
    finished = Driver(FleetFolder(tmp_path), cases, engine, lambda *_: None).run()
    assert (finished.reason, finished.tally.done, finished.tally.given_up) == ("finished", 4, 1)
    assert engine.jobs[2].folder.name in finished.tally.troubles[0]


def test_an_end_that_cannot_be_recorded_costs_its_own_episode(tmp_path: Path) -> None:
    def tell(job: Job, tries: int) -> AttemptEnd | Lost:
        return SCORED if job.case.settings["n"] != 1 else Lost("timed_out", "too long")

    class Removing(TellingEngine):
        def submit(self, job: Job) -> None:
            super().submit(job)
            if job.case.settings["n"] == 1:
                shutil.rmtree(job.folder)
                job.folder.write_text("no folder")

    engine = Removing(tell)
    cases = plan({"n": number} for number in range(3))
    finished = Driver(FleetFolder(tmp_path), cases, engine, lambda *_: None).run()
    assert (finished.reason, finished.tally.done, finished.tally.given_up) == ("finished", 2, 1)


def test_what_attempts_have_cost_without_limits_is_in_the_ledger_too(tmp_path: Path) -> None:
    """A later run may have a budget, and `grue fleet status` shows what was spent."""
    down = AttemptEnd(outcome="infrastructure", kind="died", spent=Amount(1, 5, 0.25))
    paid = replace(SCORED, spent=Amount(2, 30, 0.5))
    run(tmp_path, lambda job, tries: down if tries == 1 else paid, count=2)
    assert read_ledger(FleetFolder(tmp_path)) == Amount(6, 70, 1.5)


def test_a_ledger_that_cannot_be_written_is_told_once_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    paid = replace(SCORED, spent=Amount(1, 5, 0.25))
    with pytest.warns(RuntimeWarning, match="no later budget counts them") as warned:
        finished, _ = run(tmp_path, lambda job, tries: paid)
    assert (finished.reason, finished.tally.done, len(warned)) == ("finished", 5, 1)


def test_a_nearly_full_disk_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FleetFolder, "free_bytes", lambda self: 1000)
    with pytest.raises(FleetError, match="nearly full: 0 MB are free"):
        run(tmp_path, lambda job, tries: SCORED)


def test_a_folder_that_is_deleted_is_said_and_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()

    def deleted(job: Job, number: int) -> AttemptEnd:
        shutil.rmtree(folder)
        raise FleetError("the worker cannot write")

    with pytest.raises(FleetError, match="the worker cannot write"):
        run(folder, deleted)
    with pytest.raises(FleetError, match=r"Cannot write .*: No such file or directory. Nothing that was"):
        run(folder, lambda job, number: SCORED)
    assert not folder.exists()


def test_a_folder_that_goes_away_under_running_episodes_ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    with pytest.raises(FleetError, match=r"The fleet's folder .*fleet is gone, so its results would be lost"):
        run(folder, lambda job, number: None, watch=lambda *_: folder.rename(tmp_path / "away"))


def test_a_commit_that_cannot_be_read_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    run(tmp_path, lambda job, number: SCORED, count=3)
    damaged = min(tmp_path.glob("*/*/commit.json"))
    damaged.write_text('{"attempt": ')
    finished, engine = run(tmp_path, lambda job, number: SCORED, count=4)
    tally = finished.tally
    assert (finished.reason, tally.before, tally.done, tally.given_up) == ("finished", 2, 3, 1)
    assert len(engine.jobs) == 1
    assert tally.troubles[0].startswith(f"{damaged.parent.name}: {damaged} is damaged: ")
    finished, engine = run(tmp_path, lambda job, number: SCORED, count=4, retry=True)
    assert (finished.tally.before, finished.tally.done, len(engine.jobs)) == (3, 4, 1)
    assert [path.read_text() for path in damaged.parent.glob("damaged-*/commit.json")] == ['{"attempt": ']


def test_a_damaged_commit_that_cannot_be_set_aside_costs_its_own_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: EpisodeFolder) -> None:
        raise FleetError(f"Cannot write {folder.path}: Permission denied.")

    run(tmp_path, lambda job, number: SCORED, count=3)
    min(tmp_path.glob("*/*/commit.json")).write_text("{")
    monkeypatch.setattr(EpisodeFolder, "set_aside_commit", refuse)
    finished, engine = run(tmp_path, lambda job, number: SCORED, count=4, retry=True)
    assert (finished.tally.done, finished.tally.given_up, len(engine.jobs)) == (3, 1, 1)


def test_episodes_of_other_settings_are_counted(tmp_path: Path) -> None:
    run(tmp_path, lambda job, tries: SCORED, count=3)
    engine = TellingEngine(lambda job, tries: SCORED)
    finished = Driver(FleetFolder(tmp_path), plan([{"other": 1}]), engine, lambda *_: None).run()
    assert finished.tally.others == 3


def test_the_driver_remembers_nothing_of_episodes_that_have_ended(tmp_path: Path) -> None:
    assert driver_module.ATTEMPTS == 3
    engine = TellingEngine(lambda job, tries: SCORED)
    ran = Driver(
        FleetFolder(tmp_path),
        plan({"n": number} for number in range(50)),
        engine,
        lambda *_: None,
    )
    ran.run()
    held = [
        value for value in vars(ran).values() if isinstance(value, dict | list) or hasattr(value, "popleft")
    ]
    assert sum(len(each) for each in held) <= driver_module.SAME_FAILURES
