"""`grue fleet compare`: what it prints, and the status for CI."""

import json
import sys
from pathlib import Path

import pytest
from made_fleets import add_episode, make_fleet, unread_pipe
from typer.testing import CliRunner

from grue.cli.app import app
from grue.cli.fleet_view import print_comparison
from grue.fleet import Fleet
from grue.fleet.compare import Options


def compared(fleet: Path, *words: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["fleet", "compare", f"{fleet}:prompt=short", ":prompt=long", *words])
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def better(tmp_path: Path) -> Path:
    make_fleet(tmp_path, lambda chance, prompt, question: float(prompt == "long" or chance.random() < 0.5))
    return tmp_path


@pytest.mark.slow
def test_the_verdict_stands_with_its_interval_and_the_cases(better: Path) -> None:
    said = compared(better)
    assert "B is better by 0.5" in said
    assert "prompt: short in A, long in B" in said
    assert "0 cases lost" in said
    assert said.count("grue fleet show") == 2 * 5
    assert compared(better, "--all").count("grue fleet show") > 2 * 20
    found = json.loads(compared(better, "--json"))
    assert (found["verdict"], found["is_worse"], len(found["changes"])) == ("better", None, 30)
    assert (found["better"] > 10, found["worse"]) == (True, 0)


@pytest.mark.slow
def test_the_status_is_for_ci(better: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared(better, "--fail-if-worse", "0.05")
    assert "Worse" in compared(better, "--fail-if-worse", "0.05", "--lower-is-better", status=1)
    assert "give a loss above 0" in compared(better, "--fail-if-worse", "0", status=2)
    assert "There is no fleet" in compared(tmp_path / "absent", "--fail-if-worse", "0.05", status=2)
    assert "finite" in compared(better, "--fail-if-worse", "0.05", "--failed-as", "nan", status=2)
    with unread_pipe() as pipe, monkeypatch.context() as unread:
        unread.setattr(sys, "stdout", pipe)
        options = Options(margin=0.05)
        cells = (f"{better}:prompt=short", ":prompt=long")
        assert print_comparison(*cells, options, as_json=False, show_all=True) is False, "B is not worse"
    few = tmp_path / "few"
    make_fleet(few, lambda _, prompt, question: float(prompt == "long" or question < 6), questions=14)
    said = compared(few)
    assert "B is better in 8 cases, worse in 0, equal in 6." in said
    assert "B is better in score: chance alone seldom gives that (p = 0.0078, sign test)." in said
    assert "An interval needs 15 cases." in said
    assert said.count("grue fleet show") == 2 * 8, "each is named"
    assert "  1  question: Question 5" in said
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "numpy", None)
        assert "Too few" in compared(few, "--fail-if-worse", "0.05", status=2)
    assert json.loads(compared(few, "--json"))["measures"][0]["difference"]["low"] is None
    equal = tmp_path / "equal"
    make_fleet(equal, lambda *_: 1.0, questions=15)
    assert "Too few" in compared(equal, "--fail-if-worse", "0.05", status=2)


def test_a_case_is_named_by_what_differs_with_the_question_first(tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, lambda *_: 1.0, questions=0)
    for number in range(12):
        prompt = ("short", "long")[number % 2]
        question = f"What is {number // 2} + 1?"
        planned = {"a": "all the same", "easy": number > 5, "prompt": prompt, "inputs": [question]}
        add_episode(fleet.episode(f"{number:024x}"), planned, 0, float(prompt == "long"))
    said = compared(tmp_path)
    assert "  0 -> 1  inputs: What is 0 + 1?, easy: false" in said
    assert "all the same" not in said


@pytest.mark.slow
def test_what_a_case_says_cannot_drive_the_terminal(tmp_path: Path) -> None:
    make_fleet(
        tmp_path, lambda chance, prompt, _: float(prompt == "\x1b[2Jlong"), prompts=["s", "\x1b[2Jlong"]
    )
    done = CliRunner().invoke(app, ["fleet", "compare", f"{tmp_path}:prompt=s", ":prompt=\x1b[2Jlong"])
    assert "B is better by 1" in done.output
    assert "\x1b" not in done.output
    found = Fleet(tmp_path).compare({"prompt": "s"}, {"prompt": "\x1b[2Jlong"})
    assert "\x1b" not in str(found)
    assert "\\u001b[2Jlong in B" in str(found)


def test_two_long_questions_that_begin_in_the_same_way_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "k3y-that-nobody-may-see")
    fleet = make_fleet(tmp_path, lambda *_: 1.0, questions=0)
    for number in range(4):
        asked = f"{'Read the ticket and say what it is about. ' * 3}k3y-that-nobody-may-see {number // 2}"
        planned = {"prompt": ("short", "long")[number % 2], "question": asked}
        add_episode(fleet.episode(f"{number:024x}"), planned, 0, float(number % 2))
    for said in (compared(tmp_path), str(Fleet(tmp_path).compare({"prompt": "short"}, {"prompt": "long"}))):
        assert {line[-2:] for line in said.splitlines() if " -> " in line} == {" 0", " 1"}
        assert "may-see" not in said
