"""What a sweep would take, before and after its first ten episodes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from grue.cli.app import app
from grue.fleet.broker import Amount
from grue.fleet.folder import AttemptEnd, CaseFile, FleetFolder
from grue.fleet.identity import FileDigests, episode_id
from grue.fleet.plan import read_plan
from grue.fleet.sweep import read_sweep
from grue.fleet.work import find_work

SWEEP = """
work = "zork"
settings = { offline = true, turns = 3 }
grid.seed = { first = 1, last = 30 }
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


def finish(path: Path, folder: FleetFolder, count: int, spent: Amount) -> None:
    """Commit the first episodes of a sweep, each with a trace of 1,000 bytes."""
    folder.path.mkdir(parents=True)
    sweep, work = read_sweep(path), find_work("zork")
    for case in list(sweep.cases())[:count]:
        case = work.completed(case)
        id_ = episode_id(work.name, work.version, case, FileDigests().of(case, work.files))
        episode = folder.episode(id_)
        attempt = episode.begin(CaseFile(work=work.name, version="1", settings=case.settings))
        (attempt / "trace.jsonl").write_bytes(b"x" * 1000)
        episode.make_commit(attempt, AttemptEnd(outcome="scored", spent=spent), version="1")


def said(*words: str) -> str:
    return CliRunner().invoke(app, ["fleet", "run", *words, "--plan"]).output


def test_before_ten_episodes_the_disk_is_assumed_and_the_cost_is_unknown(sweep: Path) -> None:
    finish(sweep, FleetFolder(Path("runs/sweep")), 9, Amount(3, 100, 0.5))
    planned = read_plan(read_sweep(sweep), Path("runs/sweep"))
    assert (planned.total, planned.missing, planned.bytes_needed) == (30, 21, 21 * 48_000)
    assert "Cost: known after the first 10 episodes." in said(str(sweep))


def test_after_ten_episodes_disk_and_cost_are_those_of_the_others(sweep: Path) -> None:
    finish(sweep, FleetFolder(Path("runs/sweep")), 10, Amount(3, 100, 0.5))
    assert read_plan(read_sweep(sweep), Path("runs/sweep")).bytes_needed == 1.3 * 1000 * 20
    assert "Cost: about $10.00, 60 requests and 2,000 tokens more, by the 10 that are done." in said(
        str(sweep)
    )


def test_without_a_price_the_plan_says_so(sweep: Path) -> None:
    finish(sweep, FleetFolder(Path("runs/sweep")), 10, Amount(3, 100))
    out = said(str(sweep))
    assert "Cost: about 60 requests and 2,000 tokens more" in out
    assert "No price is known: see budget.prices." in out


def test_a_wrong_key_is_found_before_anything_starts(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("turns", "trns"))
    assert "sweep.toml, line 3: unknown setting 'trns'. Did you mean 'turns'?" in said(str(sweep))
    assert not Path("runs").exists()
