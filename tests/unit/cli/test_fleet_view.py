"""`grue fleet status` and `table`: what they say of a folder in which something is damaged."""

import json
from pathlib import Path

import pytest
from made_fleets import make_fleet
from typer.testing import CliRunner

from grue import LlmSettings, Runner
from grue.cli import fleet, fleet_view
from grue.cli.app import app
from grue.cli.fleet import score_episodes
from grue.cli.fleet_view import (
    export_fleet,
    print_comparison,
    print_episode,
    print_failures,
    print_status,
    print_table,
)
from grue.errors import FleetError
from grue.fleet.compare import Options
from grue.fleet.folder import TRACE, AttemptEnd, CaseFile, FleetFolder, Manifest
from grue.fleet.report import write_report
from grue.fleet.results import results
from grue.testing.llm_server import ScriptedLlmServer
from grue.tracing.marks import Mark, write_mark

DOWN = AttemptEnd(outcome="infrastructure", error="nobody there")
FAILED = AttemptEnd(outcome="failed", kind="KeyError", error="KeyError: 'price'")


@pytest.mark.parametrize("damaged", ["commit.json", "case.json", "attempt-1/attempt.json"])
def test_a_damaged_file_concerns_its_own_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=3))
    for number in range(3):
        folder = fleet.episode(f"{number:024x}")
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings={"n": number}))
        if number or damaged != "attempt-1/attempt.json":
            folder.make_commit(attempt, AttemptEnd(outcome="scored", scores={"score": 1.0}), version="1")
    (fleet.episode("0" * 24).path / damaged).write_text("{")
    print_status(tmp_path, as_json=True)
    found = json.loads(capsys.readouterr().out)
    counts = (found["scored"], found["damaged"], found["not_played"])
    assert found["versions"] == {"1": found["scored"]}
    assert counts == {"commit.json": (2, 1, 0), "case.json": (3, 0, 0)}.get(damaged, (2, 0, 1))
    print_status(tmp_path, as_json=False)
    tried = "  tried without a result 1, interrupted or running 0"
    assert (tried in capsys.readouterr().out) == (damaged == "attempt-1/attempt.json")
    print_table(tmp_path, None, as_json=False)
    printed = capsys.readouterr().out
    assert printed.splitlines()[1:3] == [
        "1  1      1          0000000000",
        "2  1      1          0000000000",
    ]
    assert ("1 damaged episode, not in the table" in printed) == (damaged != "attempt-1/attempt.json")


def test_an_episode_without_an_answer_is_not_of_another_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_fleet(tmp_path, lambda *_: FAILED, prompts=["a"], questions=1, repetitions=1)
    make_fleet(tmp_path, lambda *_: 1.0, prompts=["b"], questions=1, repetitions=1, seed=2)
    print_status(tmp_path, as_json=False)
    assert "several" not in capsys.readouterr().out


def test_an_episode_whose_files_were_not_kept_is_shown_with_its_result(tmp_path: Path) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=1))
    folder = fleet.episode("0" * 24)
    folder.end(folder.begin(CaseFile(work="m:f", version="1", settings={})), DOWN)
    folder.make_commit(folder.begin(CaseFile(work="m:f", version="1", settings={})), FAILED, version="1")

    def shown() -> list[str]:
        return CliRunner().invoke(app, ["fleet", "show", str(tmp_path), "0"]).output.splitlines()[2:]

    both = ["  attempt 1: infrastructure nobody there, 0.0 s", "  attempt 2: failed KeyError: 'price', 0.0 s"]
    assert shown() == both
    folder.drop_trace()
    assert shown() == both[1:]
    write_mark(folder.path, Mark(scorer="polite", version="2", score=0.5, reason="so\n\x1b[1mso", attempt=2))
    assert shown() == [*both[1:], "    polite@2 0.5  so \\u001b[1mso"]


def test_a_score_with_the_name_of_a_setting_has_a_column_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=2))
    for turns in (10, 20):
        folder = fleet.episode(f"{turns:024}")
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings={"turns": turns}))
        end = AttemptEnd(outcome="scored", scores={"turns": turns - 1.0})
        folder.make_commit(attempt, end, version="1")
    print_table(tmp_path, None, as_json=False)
    assert capsys.readouterr().out.splitlines()[:3] == [
        "turns  turns (score)  n  episode",
        "10     9              1  0000000000",
        "20     19             1  0000000000",
    ]


def test_a_path_that_is_too_wide_loses_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=2))
    for number in (1, 2):
        path = f"/home/me/project/runs/2026-try-{number}/trace.jsonl"
        folder = fleet.episode(f"{number:024}")
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings={"trace": path, "long": "x" * 40}))
        folder.make_commit(attempt, AttemptEnd(outcome="scored", scores={"score": 1.0}), version="1")
    print_table(tmp_path, ["trace", "long"], as_json=False)
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:3]] == [
        [f"…runs/2026-try-{number}/trace.jsonl", f"{'x' * 27}…"] for number in (1, 2)
    ]


def test_a_name_that_a_work_has_made_up_stays_in_its_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=1))
    folder = fleet.episode("0" * 24)
    attempt = folder.begin(CaseFile(work="m:f", version="1", settings={}))
    folder.make_commit(attempt, AttemptEnd(outcome="scored", scores={"a\nb": 1.0}), version="1")
    print_table(tmp_path, None, as_json=False)
    assert capsys.readouterr().out.splitlines()[:2] == ["a\\nb  n  episode", "1     1  0000000000"]


def test_a_table_says_how_many_episodes_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=3))
    for number, end in enumerate((AttemptEnd(outcome="scored", scores={"score": 1.0}), FAILED, DOWN)):
        folder = fleet.episode(f"{number:024}")
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings={"n": number}))
        if end is DOWN:
            folder.end(attempt, end)
        else:
            folder.make_commit(attempt, end, version="1")
    print_table(tmp_path, None, as_json=False)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "1 failed episode, not in the table.",
        "1 episode without a result, not in the table.",
    ]


def test_a_mean_of_very_large_scores_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_fleet(tmp_path, lambda *_: 1.7e308, prompts=("short",), questions=2, repetitions=2)
    print_table(tmp_path, [], as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"score": {"mean": 1.7e308, "standard_error": 0.0, "n": 4}}
    ]


def test_the_spread_of_very_large_scores_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = iter((1.7e308, -1.7e308))
    make_fleet(tmp_path, lambda *_: next(scores), prompts=("short",), questions=2, repetitions=1)
    print_table(tmp_path, [], as_json=False)
    assert "0 ± 1.7e+308" in capsys.readouterr().out


def test_an_episode_without_any_score_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=1))
    folder = fleet.episode("0" * 24)
    attempt = folder.begin(CaseFile(work="m:f", version="1", settings={"n": 1}))
    folder.make_commit(attempt, AttemptEnd(outcome="scored"), version="1")
    print_table(tmp_path, ["n"], as_json=False)
    assert capsys.readouterr().out == (
        "n  n (count)  episode\n1  0          0000000000\n"
        f"An episode of each row is named; to see it: grue fleet show {tmp_path} ID\n"
    )
    other = fleet.episode("1" * 24)
    attempt = other.begin(CaseFile(work="m:f", version="1", settings={"n": "\U000e0041"}))
    other.make_commit(attempt, AttemptEnd(outcome="scored"), version="1")
    print_table(tmp_path, ["n"], as_json=True)
    assert {"n": "\U000e0041"} in json.loads(capsys.readouterr().out), "a character that is not printable"


@pytest.mark.slow
def test_a_big_table_has_the_rows_that_have_enough_cases_and_says_what_they_are_means_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two prompts, asked about 90 pairs of numbers: two rows, and not 180."""
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=180))
    numbers = [{"a": a, "b": b} for a in range(5, 15) for b in range(9)]
    cases = [{"prompt": prompt, **each} for prompt in ("plain", "steps") for each in numbers]
    for number, case in enumerate(cases):
        folder = fleet.episode(f"{number:024x}")
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings=case))
        end = AttemptEnd(outcome="scored", scores={"score": float(case["prompt"] == "steps")})
        folder.make_commit(attempt, end, version="1")
    print_table(tmp_path, None, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "prompt  score  n   episode",
        "plain   0 ± 0  90  0000000000",
        "steps   1 ± 0  90  0000000000",
        f"An episode of each row is named; to see it: grue fleet show {tmp_path} ID",
        "Each row is a mean over a, b. A row for each: --by prompt,a,b",
    ]
    print_table(tmp_path, ["a"], as_json=False)
    rows = capsys.readouterr().out.splitlines()[1:11]
    assert [int(row.split()[0]) for row in rows] == list(range(5, 15)), (
        "numbers stand in the order of their size"
    )
    print_table(tmp_path, None, as_json=True)
    assert len(json.loads(capsys.readouterr().out)) == 180


def test_commands_to_be_copied_call_grue_as_the_user_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (fleet_view, fleet):
        monkeypatch.setattr(module, "GRUE", ".venv/bin/grue")
    make_fleet(tmp_path, lambda _, prompt, question: float(prompt == "long"), questions=2, trace=b"{")
    print_table(tmp_path, None, as_json=False)
    id_ = next(results(tmp_path)).id
    print_episode(tmp_path, id_)
    print_failures(tmp_path, score="score", passing=1.0, lower_is_better=False, as_json=False, every=False)
    sides = (f"{tmp_path}:prompt=short", ":prompt=long")
    print_comparison(*sides, Options(), as_json=False, show_all=False)
    said = capsys.readouterr().out
    assert said.count(".venv/bin/grue fleet show") >= 1 + 2 * 2
    assert said.count(".venv/bin/grue trace show") >= 2
    assert said.count(".venv/bin/grue ") == said.count("grue fleet ") + said.count("grue trace ")
    assert fleet.trace_command(tmp_path, id_).startswith(".venv/bin/grue trace show ")


def test_what_the_latest_sweep_has_not_is_left_out_and_a_cut_text_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=4, axes=["system"]))
    for number in range(4):
        folder = fleet.episode(f"{number:024x}")
        case = {"system": f"{number % 2} {'Answer the question. ' * 3}", "base_url": f"http://{number // 2}"}
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings=case))
        folder.make_commit(attempt, AttemptEnd(outcome="scored", scores={"score": 1.0}), version="1")
    fleet.write_latest([f"{2:024x}", f"{3:024x}"])
    print_table(tmp_path, None, as_json=False)
    head, *rows, _, left_out = capsys.readouterr().out.splitlines()
    assert head.split() == ["system", "score", "n", "episode"]
    assert [row.split("  ")[0] for row in rows] == [f"{n} Answer the question. Answ…" for n in (0, 1)]
    assert left_out == "2 episodes not in the latest sweep, and not in the table; --all counts them."
    print_table(tmp_path, None, as_json=True)
    assert len(json.loads(capsys.readouterr().out)) == 2
    print_table(tmp_path, None, as_json=True, every=True)
    assert len(json.loads(capsys.readouterr().out)) == 4


def test_status_failures_and_report_are_about_the_latest_sweep_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(work="m:f", total=2))
    for number in range(3):
        folder = fleet.episode(f"{number:024x}")
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings={"n": number}))
        folder.make_commit(attempt, AttemptEnd(outcome="scored", scores={"score": 0.0}), version="1")

    def status() -> list[str]:
        print_status(tmp_path, as_json=False)
        return capsys.readouterr().out.splitlines()

    assert status()[0] == f"{tmp_path}: 3 episodes of m:f done; the latest run was about 2."
    fleet.write_latest([f"{2:024x}", f"{3:024x}"])
    assert status() == [
        f"{tmp_path}: 1 of 2 episodes of m:f done.",
        "  scored 1, failed 0",
        "  2 other episodes in the folder: not in the latest sweep, and not counted",
    ]
    print_failures(tmp_path, score="score", passing=1.0, lower_is_better=False, as_json=False, every=False)
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [
        "1 of 1 episode failed, missing, or with a score below 1.",
        "2 other episodes in the folder: not in the latest sweep, and not counted.",
    ]
    for wrong in (
        lambda: print_failures(
            tmp_path, score="no such", passing=None, lower_is_better=False, as_json=False, every=False
        ),
        lambda: write_report(tmp_path, tmp_path / "report.html", score="no such"),
        lambda: export_fleet(tmp_path, None, "samples", "no such"),
    ):
        with pytest.raises(FleetError, match="No episode has the score 'no such'"):
            wrong()
    for wrong in (
        lambda: print_table(tmp_path, ["no such"], as_json=False),
        lambda: write_report(tmp_path, tmp_path / "report.html", by=["no such"]),
    ):
        with pytest.raises(FleetError, match=r"have no setting 'no such'\. They have "):
            wrong()
    assert write_report(tmp_path, tmp_path / "report.html") == 1
    assert '"earlier":2' in (tmp_path / "report.html").read_text()
    fleet.write_latest([f"{3:024x}"])
    assert status()[0] == f"{tmp_path}: 0 of 2 episodes of m:f done."
    with pytest.raises(FleetError, match=r"No episode .* has begun; the folder has 3 other episodes"):
        write_report(tmp_path, tmp_path / "report.html")


def test_episodes_without_a_trace_are_not_said_to_have_lost_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_fleet(tmp_path, lambda *_: 1.0, questions=1, repetitions=1)
    assert score_episodes(tmp_path, "builtins:len", again=False)
    assert "2 without a trace: the work has written none, or" in capsys.readouterr().out


def test_an_interrupted_run_of_scorers_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fleet(tmp_path, lambda *_: 1.0, questions=1, repetitions=1, trace=b"x")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("grue.fleet.scoring._run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        score_episodes(tmp_path, "builtins:len", again=False)
    assert "the same command computes the others" in capsys.readouterr().err


def test_it_is_said_if_no_episode_has_the_default_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_fleet(
        tmp_path,
        lambda *_: AttemptEnd(outcome="scored", scores={"accuracy": 0.0}),
        questions=1,
        repetitions=1,
    )
    print_failures(tmp_path, score="score", passing=None, lower_is_better=False, as_json=False, every=False)
    said = "No episode has the score 'score'. The scores are accuracy. Name one with --score.\n"
    assert capsys.readouterr().out == f"0 of 2 episodes failed or missing.\n{said}"
    export_fleet(tmp_path, None, "samples", "score")
    assert said in capsys.readouterr().err


def test_failures_of_a_score_of_which_less_is_better_are_those_above_the_passing_score(
    tmp_path: Path,
) -> None:
    make_fleet(tmp_path, lambda _, prompt, question: float(question), questions=4, repetitions=1)

    def said(*words: str) -> list[str]:
        done = CliRunner().invoke(app, ["fleet", "failures", str(tmp_path), *words])
        assert done.exit_code == 0, done.output
        return done.output.splitlines()

    lower = said("--lower-is-better", "--pass", "1")
    assert lower[0] == "4 of 8 episodes failed, missing, or with a score above 1."
    assert lower[2] == "4 x a bad score, and nothing else went wrong"
    assert said("--pass", "1")[0] == "2 of 8 episodes failed, missing, or with a score below 1."
    asked = "Which score passes? Say it with --pass, and those {} it are grouped too."
    assert said("--lower-is-better")[-1] == asked.format("above")
    assert said()[-1] == asked.format("below")


@pytest.mark.parametrize(
    "words",
    [
        "failures . --pass nan",
        "report . --pass inf",
        "report . --failed-as nan",
        "compare . . --fail-if-worse inf",
    ],
)
def test_a_score_that_is_no_number_is_refused(words: str) -> None:
    done = CliRunner().invoke(app, ["fleet", *words.split()])
    assert (done.exit_code, "is not a usable number" in done.output) == (2, True)


def test_failures_that_differ_in_a_value_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(work="m:f", total=4))
    for number, name in enumerate(["\x1b[2Jname", "\x1b[2Jname", "\x1b[2Jname", "price"]):
        folder = fleet.episode(f"{number:024x}")
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings={"n": number}))
        end = AttemptEnd(outcome="failed", kind="KeyError", error=f"KeyError: '{name}'")
        folder.make_commit(attempt, end, version="1")
    print_failures(tmp_path, score="score", passing=None, lower_is_better=False, as_json=False, every=False)
    said = capsys.readouterr().out
    assert "4 x the work failed: KeyError: '\\u001b[2Jname'|'price'\n" in said
    assert "\n    KeyError: 'price'\n" in said, "one of each is shown before a second one"
    assert "\x1b" not in said


@pytest.mark.slow
def test_failures_come_with_question_and_answer_and_say_how_many_are_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = tmp_path / "played.jsonl"
    with ScriptedLlmServer(["It is 32."]) as model:
        llm = LlmSettings(base_url=model.base_url, model="m")
        with Runner(llm=llm, trace=played) as runner:
            runner.run_turn("What is 17 + 25?")
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=5))
    for number in range(5):
        folder = fleet.episode(f"{number:024x}")
        case = {"question": "What is 17 + 25?", "expected": "42"}
        attempt = folder.begin(CaseFile(work="m:f", version="1", settings=case, repetition=number))
        (attempt / TRACE).write_bytes(played.read_bytes() if number else b"{")
        folder.make_commit(attempt, AttemptEnd(outcome="scored", scores={"score": 0.0}), version="1")
    print_failures(tmp_path, score="score", passing=None, lower_is_better=False, as_json=False, every=False)
    said = capsys.readouterr().out
    assert said.count("Q: What is 17 + 25?\n") == 2, "the trace of one cannot be read"
    assert said.count("A: It is 32.   (expected: 42)\n") == 2
    assert said.count("grue trace show") == 3
    assert "... and 2 more: --all names them." in said
    print_failures(tmp_path, score="score", passing=None, lower_is_better=False, as_json=False, every=True)
    assert "--all" not in capsys.readouterr().out
