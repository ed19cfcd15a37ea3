"""`grue fleet status` and `table`: what they say of a folder in which something is damaged."""

import json
from pathlib import Path

import pytest

from grue.cli.fleet_view import print_status, print_table
from grue.fleet.folder import AttemptEnd, CaseFile, FleetFolder, Manifest


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
    assert counts == {"commit.json": (2, 1, 0), "case.json": (3, 0, 0)}.get(damaged, (2, 0, 1))
    print_table(tmp_path, None, as_json=False)
    printed = capsys.readouterr().out
    assert printed.splitlines()[1:3] == ["1  1 ± 0  1", "2  1 ± 0  1"]
    assert ("1 episodes cannot be read" in printed) == (damaged != "attempt-1/attempt.json")


def test_an_episode_without_any_score_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetFolder(tmp_path)
    fleet.write_manifest(Manifest(total=1))
    folder = fleet.episode("0" * 24)
    attempt = folder.begin(CaseFile(work="m:f", version="1", settings={"n": 1}))
    folder.make_commit(attempt, AttemptEnd(outcome="scored"), version="1")
    print_table(tmp_path, ["n"], as_json=False)
    assert capsys.readouterr().out == "n  n\n1  0\n"


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
        "prompt  score  n",
        "plain   0 ± 0  90",
        "steps   1 ± 0  90",
        "Each row is a mean over a, b. A row for each: --by prompt,a,b",
    ]
    print_table(tmp_path, ["a"], as_json=False)
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [int(row.split()[0]) for row in rows] == list(range(5, 15)), (
        "numbers stand in the order of their size"
    )
    print_table(tmp_path, None, as_json=True)
    assert len(json.loads(capsys.readouterr().out)) == 180
