"""The list of episodes where a folder cannot be read, and what the module loads."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from grue.cli import runs
from grue.cli.runs import holds, list_runs, traces_in
from grue.errors import MCPConfigError
from grue.hosts.zork.facts import EpisodeEnded
from grue.runtime.trace.file import TraceWriter
from grue.runtime.trace.format import TRACE_FILE
from grue.runtime.trace.recorder import Recorder


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that nobody may look into, not even the root user."""
    folder = tmp_path / "closed"
    folder.mkdir()
    stat, iterdir = Path.stat, Path.iterdir

    def refused(path: Path, **options: bool) -> object:
        if path.parent == folder:
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    def listed(path: Path) -> Iterator[Path]:
        if path == folder:
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(Path, "iterdir", listed)
    return folder


def test_a_folder_that_cannot_be_read_is_passed_over_among_others(closed: Path) -> None:
    run = closed.parent / "run"
    run.mkdir()
    (run / TRACE_FILE).touch()
    assert [*traces_in(closed.parent)] == [run]
    assert not holds(closed, "fleet.json")


def test_a_folder_that_cannot_be_read_is_named(closed: Path) -> None:
    with pytest.raises(MCPConfigError, match=r"Cannot read the folder .*closed: Permission denied"):
        list_runs(closed)


def test_a_result_that_only_the_trace_has_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder()
    recorder.add(writer := TraceWriter(tmp_path / "run.jsonl", episode="one"))
    ended = EpisodeEnded(reason="won", detail="", turns=2, score=7, max_score=10)
    recorder.record(ended, sender="host")
    writer.close()
    list_runs(tmp_path)
    assert "won: 0 turns, 0 tool calls, score 7 of 10, " in capsys.readouterr().out


def test_a_file_in_place_of_the_folder_is_called_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").touch()
    with pytest.raises(MCPConfigError, match=r"^runs is a file, not a folder\.$"):
        list_runs(None)


def test_only_without_a_folder_the_working_directory_is_listed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in (tmp_path / "runs/one", tmp_path / "beside"):
        run.mkdir(parents=True)
        (run / TRACE_FILE).write_bytes(b'{"trace":"grue","format":2,"episode":"one","started_at":0}\n')
    monkeypatch.chdir(tmp_path)
    list_runs(None)
    assert "beside" in capsys.readouterr().out
    list_runs(Path("runs"))
    listed = capsys.readouterr().out
    assert "runs/one" in listed
    assert "beside" not in listed


def test_a_name_with_a_newline_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "a\nb" / TRACE_FILE
    trace.parent.mkdir()
    trace.write_bytes(b'{"trace":"grue","format":2,"episode":"one","started_at":0}\n')
    list_runs(tmp_path)
    listed, hint = capsys.readouterr().out.splitlines()
    name = rf"$'{tmp_path}/a\012b'"
    assert listed.startswith(f"{name}  ")
    assert hint == f"To read one: grue trace show {name}"


def test_of_long_traces_the_latest_are_read_and_the_others_are_said_to_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs, "_MOST_READ_BYTES", 100)
    for when, name in enumerate(("old", "new")):
        trace = tmp_path / name / TRACE_FILE
        trace.parent.mkdir()
        trace.write_bytes(b'{"trace":"grue","format":2,"episode":"one","started_at":0}\n')
        os.utime(trace, (when, when))
    list_runs(tmp_path)
    new, old, _ = capsys.readouterr().out.splitlines()
    assert "not finished: 0 turns" in new
    assert f"not read, as these traces are long; see grue trace stats {tmp_path / 'old'}" in old


@pytest.mark.slow
def test_no_more_of_a_file_is_read_than_tells_a_trace(tmp_path: Path) -> None:
    other, trace = tmp_path / "other.jsonl", tmp_path / "trace.jsonl"
    with other.open("wb") as file:
        file.truncate(2**28)
    trace.write_bytes(b'{"trace":"grue","format":1}\n')
    tracemalloc.start()
    try:
        assert [*traces_in(tmp_path)] == [trace]
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_command_about_traces_loads_no_client_of_models() -> None:
    look = "import sys, grue.cli.runs, grue.cli.trace; print('httpx' in sys.modules, 'mcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
