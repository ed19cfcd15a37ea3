"""Kill -9 at 20 random instants, then resume: the same files in the end, and nothing half written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import killed_runs
import pytest
from commands import environment, forked

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="it forks")]

SEED = int(os.environ.get("GRUE_KILL_SEED", "14"))
REPORT = """\
# Weekly report

| project | hours |
|---|---|
| roof | 18.5 |
| heating | 15 |
| garden | 12 |
| **sum** | 45.5 |

Longest: roof, 7 h: New tiles
"""


def test_20_kills_at_random_instants_end_in_the_same_files(tmp_path: Path) -> None:
    ran = subprocess.run(
        forked(killed_runs.__file__, str(tmp_path), str(SEED), "20"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    runs = json.loads(ran.stdout)
    assert sum(each["kills"] for each in runs) >= 20
    for each in runs:
        assert each["reason"] == "finished", each["log"]
        assert sorted(each["files"]) == ["notes/ada.csv", "notes/bob.csv", "notes/cleo.csv", "report.md"]
        assert each["files"]["report.md"] == REPORT
