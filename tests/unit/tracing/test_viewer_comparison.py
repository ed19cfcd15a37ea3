"""The page of two traces: what is in its file."""

import json
import re
import stat
from pathlib import Path

import pytest
from viewer_traces import EpisodeTape, begin, plain_turn, small_episode

from grue.cli.trace import html
from grue.errors import TraceError
from grue.tracing import viewer as page_of_two
from grue.tracing.viewer import write_comparison

pytestmark = pytest.mark.made_up_trace


def episode(path: Path, *texts: str) -> Path:
    with EpisodeTape(path, episode="</script>") as tape:
        begin(tape)
        for text in texts:
            plain_turn(tape, text=text)
    return path


def test_the_page_names_what_differs_and_holds_both_traces(tmp_path: Path) -> None:
    left, right = episode(tmp_path / "a.jsonl", "x", "y"), episode(tmp_path / "b.jsonl", "x", "</script>")
    page = tmp_path / "page.html"
    assert write_comparison(left, right, page) == 2
    text = page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert text.count("</script>") == 7
    data = re.search(r'id="trace-comparison">(.*?)</script>', text)
    assert data is not None
    found = json.loads(data[1])["differences"]
    assert found[0][2].startswith("turn 2: ")
    assert {row[4] for row in found} == {2}
    assert [line.split()[-1] for line in found[0][3][2:5]] == ["$.text", '"y"', '"</script>"']
    assert "default-src 'none'" in text
    assert "connect-src" not in text


def test_a_page_over_one_of_its_traces_is_refused(tmp_path: Path) -> None:
    left, right = small_episode(tmp_path / "a.jsonl"), small_episode(tmp_path / "b.jsonl")
    before = right.read_bytes()
    with pytest.raises(TraceError, match="that is the trace"):
        write_comparison(left, right, right)
    with pytest.raises(TraceError, match="Cannot write the page"):
        write_comparison(left, right, tmp_path / "no" / "page.html")
    assert right.read_bytes() == before


def test_very_many_differences_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_of_two, "_MOST_DIVERGENCES", 2)
    left, right = episode(tmp_path / "a.jsonl", "x", "y", "z"), episode(tmp_path / "b.jsonl", "1", "2", "3")
    write_comparison(left, right, tmp_path / "page.html")
    assert '"more":true' in (tmp_path / "page.html").read_text()


def test_the_command_says_where_the_traces_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = episode(tmp_path / "a.jsonl", "x", "y"), episode(tmp_path / "b.jsonl", "x", "z")
    html(left, right, None, open_browser=False)
    page = tmp_path / "comparison.html"
    assert capsys.readouterr().out == f"The traces differ from turn 2 on.\nWrote {page}\n"
    html(left, left, tmp_path / "same.html", open_browser=False)
    assert capsys.readouterr().out.startswith("The traces are identical.\n")
