"""What a sweep would take, before and after its first ten episodes."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from grue.cli.app import app
from grue.cli.fleet import warnings_of
from grue.fleet.broker import Amount, FleetBudget
from grue.fleet.folder import AttemptEnd, CaseFile, FleetFolder
from grue.fleet.identity import FileDigests, episode_id
from grue.fleet.sweep import read_plan, read_sweep
from grue.fleet.work import find_work
from grue.protocol.turn.prices import Price

SWEEP = """
work = "zork"
settings = { offline = true, turns = 3 }
grid.seed = { first = 1, last = 30 }
"""
PRICES = {"o*": Price(input=1.0, output=2.0)}


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
    for case in list(sweep.all_cases())[:count]:
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


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"money_usd": 1.0, "requests": 7}, "no price at all, so the limit that holds is 7 requests"),
        ({"money_usd": 1.0, "requests": 7, "prices": PRICES}, "no price for two, so the limit that holds is"),
        ({"money_usd": 1.0, "prices": PRICES}, "no price for two, so their requests are refused"),
    ],
)
def test_models_without_a_price_are_named_before_anything_starts(
    sweep: Path, budget: dict[str, Any], words: str
) -> None:
    models = {} if words.startswith("no price at all") else {"model": ["one", "two"]}
    found = replace(read_sweep(sweep), budget=FleetBudget(**budget), grid=models)
    assert words in " ".join(warnings_of(found))


def test_without_a_budget_in_money_prices_are_not_missed(sweep: Path) -> None:
    assert warnings_of(replace(read_sweep(sweep), budget=FleetBudget(requests=7))) == []


def test_a_wrong_key_is_found_before_anything_starts(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("turns", "trns"))
    assert "sweep.toml, line 3: unknown setting 'trns'. Did you mean 'turns'?" in said(str(sweep))
    assert not Path("runs").exists()
