"""`grue runs` lists episodes, and the trace commands take the latest one."""

import json
import os
from pathlib import Path

from commands import grue


def episode(path: Path, when: int, **result: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"trace": "grue", "format": 2, "episode": path.parent.name, "started_at": 0.0}
    path.write_text(json.dumps(header, separators=(",", ":")) + "\n")
    if result:
        (path.parent / "result.json").write_text(json.dumps(result))
    os.utime(path, (when, when))


def test_runs_lists_the_latest_first_with_how_each_ended(tmp_path: Path) -> None:
    episode(
        tmp_path / "runs/old/trace.jsonl", 1000, reason="won", turns=1, score=5, max_score=10, duration_s=2.0
    )
    episode(tmp_path / "runs/new/trace.jsonl", 2000)
    (tmp_path / "runs/notes.txt").write_text("no trace")
    listed = grue("runs", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    new, old, hint = listed.stdout.splitlines()
    assert new.startswith("runs/new  ")
    assert old.startswith("runs/old  ")
    assert old.endswith("won: 1 turn, 5 of 10 points, 2.0 s")
    assert hint == "To read one: grue trace show runs/new"


def test_without_a_path_the_latest_trace_is_shown(tmp_path: Path) -> None:
    episode(tmp_path / "runs/old/trace.jsonl", 1000)
    episode(tmp_path / "bot.jsonl", 2000)
    (tmp_path / "other.jsonl").write_text("{}\n")
    shown = grue("trace", "show", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == "The latest: bot.jsonl\n"
    episode(tmp_path / "runs/new/trace.jsonl", 3000)
    assert grue("trace", "stats", cwd=tmp_path).stderr == "The latest: runs/new\n"


def test_where_there_is_no_trace_both_say_so(tmp_path: Path) -> None:
    shown = grue("trace", "show", cwd=tmp_path)
    assert shown.returncode == 2
    assert "There is no trace in runs or here" in shown.stderr
    listed = grue("runs", cwd=tmp_path)
    assert listed.returncode == 2
    assert "There is no folder runs" in listed.stderr
