"""Forks that are killed: the record stays as it is, nothing is called, and the fork can be made again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "killed_forks.py"
KILLS = 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_killed_forks_leave_the_record_and_the_world_as_they_were(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, tmp_path, "1", str(KILLS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(each["killed"] for each in ended) == KILLS
    for each in ended:
        assert each["effects"] == "", "the record has all results, so no tool is called"
        assert each["record unchanged"]
        assert each["sound"]
        assert each["same again"]
