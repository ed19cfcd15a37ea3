"""The report of a fleet: the data in its page."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from made_fleets import add_episode, ended, make_fleet
from typer.testing import CliRunner

from grue.cli.app import app
from grue.errors import FleetError
from grue.fleet.folder import AttemptEnd
from grue.fleet.report import write_report

pytest.importorskip("scipy", reason="scipy is not installed: pip install './grue[evaluate]'")


def errors(_: random.Random, prompt: str, question: int) -> float | AttemptEnd:
    """Return a number of errors: the long prompt has fewer, and one of its episodes fails."""
    if prompt == "long" and question == 3:
        return AttemptEnd(outcome="failed", kind="ValueError", error="ValueError: no")
    return float(question % 3 + 1) if prompt == "short" else float(question % 3)


def data(page: Path) -> Any:
    found = re.search(r'id="data">(.*?)</script>', page.read_text())
    assert found is not None
    return json.loads(found[1])


@pytest.mark.slow
def test_where_lower_is_better_verdicts_and_failures_are_about_large_scores(tmp_path: Path) -> None:
    make_fleet(tmp_path, errors, repetitions=1)
    page = tmp_path / "report.html"
    command = ["fleet", "report", str(tmp_path), "--by", "prompt", "--pass", "1"]
    done = CliRunner().invoke(app, [*command, "--lower-is-better", "--failed-as", "3"])
    assert done.exit_code == 0, done.output
    lower = data(page)
    assert lower["lower_is_better"] is True
    (verdict,) = lower["verdicts"]
    assert verdict.startswith("prompt=short: worse than prompt=long in score, +0.9")
    failed = [
        score
        for score, group in zip(lower["episodes"]["score"], lower["episodes"]["group"], strict=True)
        if group >= 0
    ]
    assert sorted(failed) == [2.0] * 20 + [3.0] * 11
    long = next(cell for cell in lower["cells"] if cell["name"] == "prompt=long")
    assert long["mean"] == pytest.approx((30 + 3) / 30)
    write_report(tmp_path, page, by=["prompt"], passing=1.0)
    higher = data(page)
    assert higher["lower_is_better"] is False
    assert higher["verdicts"][0].startswith("prompt=short: better than prompt=long in score")


def test_the_cells_may_be_those_of_a_setting_that_the_work_has_added(tmp_path: Path) -> None:
    make_fleet(tmp_path, lambda *_: 0.5, questions=2, repetitions=1)
    write_report(tmp_path, tmp_path / "report.html", by=["model"])
    assert [cell["name"] for cell in data(tmp_path / "report.html")["cells"]] == ["model=m"]


def test_cases_that_differ_only_after_a_long_beginning_are_different_cases(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, lambda *_: 1.0, questions=0)
    for number in range(4):
        case = {"prompt": "short", "question": f"Read this. {'word ' * 60}What is {number // 2}?"}
        case["base_url"] = f"http://127.0.0.1:{number % 2}/v1"  # a server that was restarted: the same case
        add_episode(fleet.episode(f"{number:024x}"), case, 0, ended(1.0))
    write_report(tmp_path, tmp_path / "report.html", by=["prompt"])
    found = data(tmp_path / "report.html")
    assert found["episodes"]["case"] == [0, 0, 1, 1]
    assert [label[-len("What is 0?") :] for label in found["cases"]] == ["What is 0?", "What is 1?"]
    assert [cell["cases"] for cell in found["cells"]] == [2]


@pytest.mark.slow
def test_scores_that_are_all_equal_have_an_interval_of_some_width(tmp_path: Path) -> None:
    make_fleet(tmp_path, lambda _, prompt, __: 1.0 if prompt == "short" else 0.0, repetitions=1)
    write_report(tmp_path, tmp_path / "report.html", by=["prompt"])
    found = [(cell["low"], cell["mean"], cell["high"]) for cell in data(tmp_path / "report.html")["cells"]]
    assert found == [(0.0, 0.0, pytest.approx(0.1)), (pytest.approx(0.9), 1.0, 1.0)]


def test_a_report_without_numpy_has_means_without_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    make_fleet(tmp_path, lambda *_: 0.5, questions=20, repetitions=1)
    page = tmp_path / "report.html"
    write_report(tmp_path, page, by=["prompt"])
    assert [(each["mean"], each["low"]) for each in data(page)["cells"]] == [(0.5, None)] * 2
    assert "p = 1" in data(page)["verdicts"][0]


def test_a_page_in_another_folder_leads_to_the_episodes(tmp_path: Path) -> None:
    make_fleet(tmp_path / "a fleet", lambda *_: 0.5, questions=2)
    (tmp_path / "pages").mkdir()
    for page, folder in (("a fleet/report.html", "."), ("pages/report.html", "../a%20fleet")):
        write_report(tmp_path / "a fleet", tmp_path / page)
        assert data(tmp_path / page)["folder"] == folder


def test_where_lower_is_better_a_failed_episode_is_no_perfect_one(tmp_path: Path) -> None:
    make_fleet(tmp_path, errors, repetitions=1)
    page = tmp_path / "report.html"
    with pytest.raises(FleetError, match=r"1 episode has failed\. As lower .* say with --failed-as"):
        write_report(tmp_path, page, lower_is_better=True)
    assert not page.exists()


def test_a_secret_in_a_setting_is_not_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "k3y-that-nobody-may-see"
    monkeypatch.setenv("A_TOKEN", secret)
    fleet = make_fleet(tmp_path, lambda *_: 1.0, questions=0)
    for number, prompt in enumerate(("short", secret)):
        case = {"prompt": prompt, "question": f"Read this. {'word ' * 60}{secret}"}
        add_episode(fleet.episode(f"{number:024x}"), case, 0, ended(1.0))
    write_report(tmp_path, tmp_path / "report.html", by=["prompt"])
    found = data(tmp_path / "report.html")
    assert {cell["name"] for cell in found["cells"]} == {"prompt=short", "prompt=[redacted:A_TOKEN]"}
    assert found["cases"][0].endswith("[redacted:A_TOKEN]")
    assert secret not in (tmp_path / "report.html").read_text()
