"""What is on disk: one commit an episode, whoever comes first."""

import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from grue.errors import FleetError
from grue.fleet.folder import LOCK, AttemptEnd, CaseFile, EpisodeFolder, FleetFolder, driver_lock, is_driven
from grue.fleet.identity import Case, episode_id

CASE = CaseFile(work="m:f", version="1", settings={"a": 1})
RACES = 1000
SCORED = AttemptEnd(outcome="scored", scores={"score": 1.0})


def test_attempts_are_numbered_and_their_ends_are_found_again(tmp_path: Path) -> None:
    folder = FleetFolder(tmp_path).episode("ab" * 12)
    first, second = folder.begin(CASE), folder.begin(CASE)
    folder.end(first, AttemptEnd(outcome="infrastructure", kind="died"))
    assert folder.path == tmp_path / "ab" / ("ab" * 12)
    assert folder.attempts() == [(1, first), (2, second)]
    assert [end and end.kind for end in map(folder.end_of, (first, second))] == ["died", None]
    assert folder.case == CASE


@pytest.mark.slow
def test_of_many_racing_commits_one_counts_in_every_episode(tmp_path: Path) -> None:
    won: list[tuple[int, bool]] = []

    def race(folder: EpisodeFolder, attempt: Path, number: int, barrier: threading.Barrier) -> None:
        barrier.wait()
        won.append((number, folder.make_commit(attempt, SCORED, version="1")))

    for number in range(RACES):
        folder = FleetFolder(tmp_path).episode(f"{number:024x}")
        attempts, barrier = [folder.begin(CASE), folder.begin(CASE)], threading.Barrier(2)
        racers = [threading.Thread(target=race, args=(folder, each, number, barrier)) for each in attempts]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        commit = folder.commit
        assert commit is not None
        assert commit.attempt in (1, 2)
    assert sorted(won) == sorted((number, outcome) for number in range(RACES) for outcome in (False, True))


def test_a_commit_has_the_size_and_the_hash_of_the_trace(tmp_path: Path) -> None:
    folder = FleetFolder(tmp_path).episode("0" * 24)
    attempt = folder.begin(CASE)
    (attempt / "trace.jsonl").write_bytes(b"line\n")
    assert folder.make_commit(attempt, SCORED, version="9")
    commit = folder.commit
    assert commit is not None
    assert (commit.trace_bytes, commit.version, commit.end) == (5, "9", SCORED)
    assert commit.trace_sha256 == hashlib.sha256(b"line\n").hexdigest()
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_a_damaged_commit_is_named_and_what_to_do_with_it(tmp_path: Path) -> None:
    folder = FleetFolder(tmp_path).episode("0" * 24)
    folder.begin(CASE)
    (folder.path / "commit.json").write_text('{"attempt": 1,')
    with pytest.raises(FleetError, match=r"commit\.json is damaged.*Move the episode's folder away"):
        _ = folder.commit


@pytest.mark.slow
def test_the_longest_case_can_be_read_again(tmp_path: Path) -> None:
    folder, long = FleetFolder(tmp_path).episode("0" * 24), {"text": "x" * (8 * 2**20 - 100)}
    case = CaseFile(work="m:f", version="1", settings=long, planned=long)
    episode_id("m:f", "1", Case(settings=long), {})
    folder.begin(case)
    assert folder.case == case


def test_a_folder_has_one_driver(tmp_path: Path) -> None:
    folder = FleetFolder(tmp_path)
    with (
        driver_lock(folder),
        pytest.raises(FleetError, match=f"process {os.getpid()}.*one driver"),
        driver_lock(folder),
    ):
        pass
    with driver_lock(folder):
        pass


def test_a_driver_that_starts_while_another_command_looks_at_the_lock_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FleetFolder(tmp_path)
    with driver_lock(folder):
        pass
    with (tmp_path / LOCK).open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)  # as `is_driven` does for an instant
        monkeypatch.setattr(time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        with driver_lock(folder):
            assert is_driven(folder)


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = FleetFolder(tmp_path).episode("0" * 24)

    def full(descriptor: int) -> None:
        del descriptor
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FleetError, match=r"Cannot write .*No space left on device\. Nothing"):
        folder.begin(CASE)


def test_an_episode_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    fleet = FleetFolder(tmp_path)
    for id_ in ("a" * 24, "ab" + "0" * 22):
        fleet.episode(id_).begin(CASE)
    assert [episode.id for episode in fleet.episodes()] == ["a" * 24, "ab" + "0" * 22]
    assert fleet.find("ab").id == "ab" + "0" * 22
    with pytest.raises(FleetError, match="are 2 episodes"):
        fleet.find("a")
    with pytest.raises(FleetError, match="is no episode"):
        fleet.find("f")


@pytest.fixture(params=[None, errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with hard links, and those without."""
    if request.param is not None:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("file_system")
def test_also_without_hard_links_the_first_commit_counts(tmp_path: Path) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.require_commits()
    folder = fleet.episode("0" * 24)
    first, second = folder.begin(CASE), folder.begin(CASE)
    assert folder.commit is None
    assert folder.make_commit(second, SCORED, version="1")
    assert not folder.make_commit(first, SCORED, version="1")
    assert folder.commit is not None
    assert folder.commit.attempt == 2
    assert [path.name for path in [*tmp_path.iterdir(), *folder.path.iterdir()] if path.name[0] == "."] == []


@pytest.mark.slow
def test_without_hard_links_one_of_many_racing_commits_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    won: list[tuple[int, int]] = []

    def race(folder: EpisodeFolder, attempt: Path, number: int, barrier: threading.Barrier) -> None:
        barrier.wait()
        if folder.make_commit(attempt, SCORED, version="1"):
            won.append((number, int(attempt.name[-1])))

    for number in range(30):
        folder = FleetFolder(tmp_path).episode(f"{number:024x}")
        attempts, barrier = [folder.begin(CASE) for _ in range(4)], threading.Barrier(4)
        racers = [threading.Thread(target=race, args=(folder, each, number, barrier)) for each in attempts]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert folder.commit is not None
        assert won[number:] == [(number, folder.commit.attempt)]


def test_a_file_system_that_cannot_commit_once_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    rename = Path.rename

    def over(path: Path, target: Path) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        return rename(path, target)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(Path, "rename", over)
    with pytest.raises(FleetError, match="lets two workers commit the same episode"):
        FleetFolder(tmp_path).require_commits()


def test_a_file_system_without_locks_is_not_another_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FleetError, match=r"Cannot lock .*driver.lock: "), driver_lock(FleetFolder(tmp_path)):
        pass
