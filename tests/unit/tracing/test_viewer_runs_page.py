"""The index of a folder of episodes: what it holds, and what it never writes over."""

import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from story_traces import full_story
from viewer_traces import small_episode

from grue.cli.runs import traces_in, write_runs
from grue.errors import MCPConfigError, TraceError
from grue.tracing import viewer
from grue.tracing.viewer import write_index

pytestmark = pytest.mark.made_up_trace


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("first", "se cond<b>"):
        (tmp_path / name).mkdir()
    full_story(tmp_path / "first" / "trace.jsonl")
    small_episode(tmp_path / "se cond<b>" / "trace.jsonl")
    return tmp_path


def rows(index: Path) -> dict[str, Any]:
    data = re.search(r'id="data">(.*?)</script>', index.read_text())
    assert data is not None
    return {run["name"]: run for run in json.loads(data[1])["runs"]}


def messages_in(page: Path) -> int:
    pieces = re.findall(r'data-piece="0">(.*?)</script>', page.read_text())
    return sum(len(json.loads(piece)["messages"]) for piece in pieces)


def test_each_episode_has_a_row_and_a_page(folder: Path) -> None:
    index = write_index(folder, traces_in(folder))
    found = rows(index)
    assert stat.S_IMODE(index.stat().st_mode) == 0o600
    first = found["first"]["overview"]
    assert (first["ending"], first["turns"], first["requests"], first["messages"]) == ("done", 3, 6, 43)
    assert found["se cond<b>"]["page"] == "./se%20cond%3Cb%3E/trace.html"
    assert (folder / "first" / "trace.html").read_text().startswith("<!doctype html>")
    assert "<b>" not in re.sub(r"<(script|style)\b.*?</\1>", "", index.read_text(), flags=re.DOTALL)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses such names")
def test_names_that_are_no_text_have_a_row_and_a_page(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"folder-\xff")
    trace = folder / os.fsdecode(b"run-\xff") / os.fsdecode(b"trace-\xff.jsonl")
    trace.parent.mkdir(parents=True)
    small_episode(trace)
    [row] = rows(write_index(folder, [trace])).values()
    assert (row["page"], row["error"]) == ("./run-%FF/trace-%FF.html", "")


def test_a_page_that_is_newer_than_its_trace_stays(folder: Path) -> None:
    write_index(folder, traces_in(folder))
    pages = [folder / "first" / "trace.html", folder / "se cond<b>" / "trace.html"]
    mine = pages[0].read_text() + "<!-- mine -->"
    pages[0].write_text(mine)
    first = rows(folder / "index.html")
    write_index(folder, traces_in(folder))
    assert pages[0].read_text() == mine
    assert rows(folder / "index.html") == first


def test_a_page_lacks_nothing_that_was_recorded_while_it_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, page = folder / "first" / "trace.jsonl", folder / "first" / "trace.html"
    whole = trace.read_bytes()
    trace.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])
    os.utime(trace, (1, 1))
    fill_page = viewer.fill_page

    def meanwhile(*arguments: Any) -> None:
        trace.write_bytes(whole)
        os.utime(trace, (2, 2))
        fill_page(*arguments)

    monkeypatch.setattr(viewer, "fill_page", meanwhile)
    write_index(folder, [trace])
    assert messages_in(page) == 42
    write_index(folder, [trace])
    assert messages_in(page) == 43


@pytest.mark.parametrize("older", [True, False])
def test_a_file_of_ones_own_beside_a_trace_stays_and_its_row_says_so(folder: Path, older: bool) -> None:
    page = folder / "first" / "trace.html"
    page.write_text("<h1>Mine</h1>")
    if older:
        os.utime(page, (0, 0))
    found = rows(write_index(folder, traces_in(folder)))
    assert page.read_text() == "<h1>Mine</h1>"
    assert "a file that grue did not write has its name" in found["first"]["error"]
    assert found["se cond<b>"]["page"]


def test_a_trace_that_cannot_be_read_has_a_row_that_says_why(folder: Path) -> None:
    with (folder / "first" / "trace.jsonl").open("a") as file:
        file.write("{damaged\n")
    found = rows(write_index(folder, traces_in(folder)))
    assert "line 45" in found["first"]["error"]
    assert found["first"]["page"] == ""
    assert found["se cond<b>"]["error"] == ""


def test_a_page_that_somebody_else_wrote_is_not_replaced(folder: Path) -> None:
    (folder / "index.html").write_text("<h1>My site</h1>")
    with pytest.raises(TraceError, match="a file that grue did not write"):
        write_index(folder, traces_in(folder))
    assert (folder / "index.html").read_text() == "<h1>My site</h1>"


def test_a_folder_that_cannot_be_written_is_said_to_be(folder: Path) -> None:
    (folder / "index.html").mkdir()
    with pytest.raises(TraceError, match="Cannot write the page"):
        write_index(folder, ())


def test_the_command_says_what_it_wrote(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs(folder, open_browser=False)
    assert capsys.readouterr().out == f"Wrote {folder / 'index.html'}: 2 episodes\n"
    with pytest.raises(MCPConfigError, match="There is no trace"):
        write_runs(tmp_path_factory.mktemp("empty"), open_browser=False)


def test_the_page_of_a_folder_has_what_its_folder_runs_has(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "runs").mkdir()
    (folder / "first").rename(folder / "runs" / "first")
    write_runs(folder, open_browser=False)
    assert "2 episodes" in capsys.readouterr().out
    found = rows(folder / "index.html")
    assert set(found) == {"runs/first", "se cond<b>"}
    assert (folder / found["runs/first"]["page"]).is_file()
