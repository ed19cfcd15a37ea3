"""A fleet whose works do the worst to their process and their folder: every other episode is right."""

import json
import os
import re
from pathlib import Path

import psutil
import pytest
from hostile_works import DIED, EXPECTED, HERE, LATE

from grue.fleet import Fleet, FleetOptions
from grue.fleet.driver import Finished
from grue.fleet.folder import Commit, FleetFolder

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("fleet")]

WORKERS = 3
LONGEST_S = 5.0


def played(folder: Path, cases: list[dict[str, object]], *, retry: bool = False) -> Finished:
    options = FleetOptions(episode_timeout_s=LONGEST_S)
    return Fleet(folder, workers=WORKERS, options=options).map(f"{HERE}:hostile", cases, retry=retry)


def committed(folder: Path) -> tuple[dict[str, Commit], dict[int, Commit]]:
    """The commits that can be read: of the hostile episodes by what they do, and of the honest ones."""
    hostile, honest = {}, {}
    for path in folder.glob("*/*/case.json"):
        found = re.search(r'"what": *"([^"]*)"', path.read_text(errors="replace"))
        if found is None or found[1] in ("commit", "commit folder"):
            continue
        commit = FleetFolder(folder).episode(path.parent.name).commit
        if commit is not None and found[1] == "honest":
            honest[json.loads(path.read_text())["settings"]["n"]] = commit
        elif commit is not None:
            hostile[found[1]] = commit
    return hostile, honest


@pytest.mark.slow
def test_whatever_an_episode_does_every_other_one_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    umask = os.umask(0o022)
    os.umask(umask)
    cases: list[dict[str, object]] = []
    for number, what in enumerate(EXPECTED):
        cases += [{"what": what}, {"what": "honest", "n": number, "folder": str(tmp_path), "umask": umask}]
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    finished = played(Path("fleet"), cases)  # a relative folder, and `chdir` is among the works
    hostile, honest = committed(tmp_path / "fleet")
    assert {number: commit.end.scores or commit.end for number, commit in honest.items()} == {
        number: {"score": 2.0 * number} for number in range(len(EXPECTED))
    }
    given_up = [what for what, (outcome, _) in EXPECTED.items() if outcome == DIED]
    ended = {
        what: ("failed" if outcome == LATE else outcome, kind) for what, (outcome, kind) in EXPECTED.items()
    }
    for what in given_up:
        del ended[what]
    del ended["other files"]  # its case cannot be read
    assert {what: (commit.end.outcome, commit.end.kind) for what, commit in hostile.items()} == ended
    tally = finished.tally
    assert (finished.reason, tally.given_up, tally.unpaid) == ("finished", len(given_up), 0)
    assert tally.done == len(cases) - len(given_up)
    assert all(re.match(r"[0-9a-f]{24}: ", trouble) for trouble in tally.troubles)
    assert max(path.stat().st_size for path in (tmp_path / "fleet").glob("*/*/*/output.txt")) <= 16 * 2**20
    assert capfd.readouterr().out == ""
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    helpers = ("forkserver", "resource_tracker", "grue-guard")
    assert [child for child in left if not any(name in " ".join(child.cmdline()) for name in helpers)] == []


def test_what_was_given_up_is_played_by_a_retry_also_where_the_commit_is_damaged(tmp_path: Path) -> None:
    cases: list[dict[str, object]] = [{"what": "commit"}, {"what": "exit"}]
    assert played(tmp_path, cases).tally.given_up == 1
    again = played(tmp_path, cases)
    assert (again.tally.done, again.tally.before, again.tally.given_up) == (1, 1, 1)
    assert "commit.json is damaged" in again.tally.troubles[0]
    damaged = tmp_path / again.tally.troubles[0][:2] / again.tally.troubles[0][:24]
    assert len(list(damaged.glob("attempt-*"))) == 1, "not paid for again without being told to"
    assert played(tmp_path, cases, retry=True).tally.given_up == 1
    assert len(list(damaged.glob("attempt-*"))) == 2
