"""The page that a trace becomes: one file, nothing in it that can run but its own script."""

import base64
import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from viewer_traces import EpisodeTape, TurnTape, begin, small_episode

from grue.cli.trace import html
from grue.errors import TraceError
from grue.hosts.zork.facts import Observed
from grue.tracing.page_feed import MAX_MESSAGE_CHARS
from grue.tracing.reading import read_episode
from grue.tracing.viewer import write_html

pytestmark = pytest.mark.made_up_trace

NAMES = re.compile(r"const \[(seq, [^\]]*)\] = row;")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return small_episode(tmp_path / "trace.jsonl")


def written(trace: Path, **options: Any) -> str:
    page = trace.with_suffix(".html")
    write_html(trace, page, **options)
    return page.read_text(encoding="utf-8")


def element(page: str, opening: str, closing: str) -> str:
    """What stands between two tags, as a parser of HTML sees it: up to the first end."""
    _, _, rest = page.partition(opening)
    return rest.partition(closing)[0]


def rows(page: str) -> list[dict[str, Any]]:
    """The page's messages, by the names that the page's script gives to their fields."""
    names = NAMES.search(page)
    assert names is not None
    messages = [row for piece in pieces(page) for row in piece["messages"]]
    return [dict(zip(names[1].split(", "), row, strict=True)) for row in messages]


def pieces(page: str) -> list[Any]:
    """The page's pieces, as a parser of HTML sees them: each up to the first end of a script element."""
    opening = '<script type="application/json" data-piece="0">'
    return [json.loads(rest.partition("</script>")[0]) for rest in page.split(opening)[1:]]


def episode(page: str) -> Any:
    return json.loads(element(page, '<script type="application/json" id="trace-episode">', "</script>"))


def test_every_message_is_in_the_page_with_its_whole_body(trace: Path) -> None:
    envelopes = read_episode(trace).envelopes
    found = rows(written(trace))
    assert [row["seq"] for row in found] == [envelope.seq for envelope in envelopes]
    assert [row["kind"] for row in found] == [type(envelope.body).__name__ for envelope in envelopes]
    assert [row["cause"] for row in found] == [envelope.cause for envelope in envelopes]
    for row, line in zip(found, trace.read_text().splitlines()[1:], strict=True):
        assert json.loads(row["body"]) == json.loads(line)["body"]


def test_the_page_knows_lanes_turns_and_file(trace: Path) -> None:
    known = episode(written(trace))
    assert known["actors"] == ["host", "agent", "llm", "mind"]
    assert [turn["outcome"] for turn in known["turns"]] == ["", "answered", "forced", "forced", "answered"]
    assert (known["file"], known["cut_short"]) == ("trace.jsonl", False)


def test_the_policy_allows_the_pages_own_script_and_style_by_their_hashes_and_nothing_else(
    trace: Path,
) -> None:
    page = written(trace)
    policy = element(page, '<meta http-equiv="Content-Security-Policy" content="', '">')
    script = element(page, '<script type="module" async>', "</script>")
    style = element(page, "<style>", "</style>")
    assert script.strip().endswith(";")
    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src '{sha256(script)}'",
        f"style-src '{sha256(style)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]


def sha256(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_page_refers_to_nothing_outside_and_has_no_inline_code(trace: Path) -> None:
    page = written(trace)
    addresses = set(re.findall(r"https?://[^\s\"'<>\\`]+", page))
    # What SVG elements are called, and the endpoint in the trace itself.
    assert addresses == {"http://www.w3.org/2000/svg", "http://llm.invalid"}
    markup = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    assert not re.search(r"\s(?:src|srcset|style|action|formaction|on\w+)=", markup)
    assert "@import" not in page
    assert set(re.findall(r"url\([^)]*\)", page)) == {"url(#hatching)"}


def test_the_script_makes_no_markup_of_text_and_runs_no_text(trace: Path) -> None:
    script = element(written(trace), '<script type="module" async>', "</script>")
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bFunction\(|setHTML|DOMParser"
    )
    assert not re.search(forbidden, script)


def test_the_same_trace_makes_the_same_page(trace: Path, tmp_path: Path) -> None:
    first = written(trace)
    write_html(trace, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == first


@given(text=st.text() | st.sampled_from(["</script>", "<!--", "]]>", "\u2028", "&lt;", "<!--messages-->"]))
@pytest.mark.slow
def test_any_text_comes_back_from_the_page_and_none_can_end_its_element(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with EpisodeTape(folder / "trace.jsonl", episode=text) as tape:
        tape.say(Observed(turn=1, text=text))
    page = written(folder / "trace.jsonl")
    data = element(page, '<script type="application/json" data-piece="0">', "</script>\n")
    assert not set(data) & set("<>&\u2028\u2029")
    assert json.loads(rows(page)[0]["body"])["text"] == text
    assert episode(page)["header"]["episode"] == text


def test_a_title_is_text_and_is_taken_for_no_place_of_the_template(trace: Path) -> None:
    page = written(trace, title="</title><script>alert(1)</script> <!--script--> <!--messages--> &amp;")
    assert element(page, "<title>", "</title>") == (
        "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;"
        " &lt;!--script--&gt; &lt;!--messages--&gt; &amp;amp;"
    )
    assert len(rows(page)) == len(read_episode(trace).envelopes)


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.say(Observed(turn=1, text="x" * MAX_MESSAGE_CHARS))
        tape.say(Observed(turn=1, text="y"))
    long, short = rows(written(tmp_path / "trace.jsonl"))
    assert (len(long["body"]), len(short["body"])) == (MAX_MESSAGE_CHARS, short["chars"])
    assert long["chars"] > MAX_MESSAGE_CHARS


def test_a_trace_of_a_killed_host_is_a_page_that_says_so(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-30])
    page = written(trace)
    assert episode(page)["cut_short"]
    assert len(rows(page)) == len(read_episode(trace).envelopes)


def test_messages_outside_turns_belong_to_the_turn_before_them(tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        TurnTape(tape).close()
        tape.turn = 0
        begin(tape)
    turns = [row["turn"] for row in rows(written(tmp_path / "trace.jsonl"))]
    assert (turns[0], turns[1], turns[-1]) == (0, 1, 1)


def test_only_its_owner_can_read_the_page(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("an older page")
    page.chmod(0o644)
    write_html(trace, page)
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert page.read_text().startswith("<!doctype html>")


def test_the_trace_is_not_overwritten(trace: Path) -> None:
    before = trace.read_bytes()
    with pytest.raises(TraceError, match="that is the trace"):
        write_html(trace, trace)
    with pytest.raises(TraceError, match="that is a folder"):
        write_html(trace, trace.parent)
    assert trace.read_bytes() == before


def test_a_page_replaces_only_a_regular_file(trace: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.html")
    with pytest.raises(TraceError, match="that is a pipe, a socket or a device"):
        write_html(trace, pipe)
    assert pipe.is_fifo()
    with pytest.raises(TraceError, match=r"Cannot write the page .*: File name too long"):
        write_html(trace, tmp_path / ("a" * 300))


@pytest.mark.slow
def test_without_a_name_for_the_page_a_file_of_ones_own_stays(trace: Path) -> None:
    for page, write in (
        (trace.with_suffix(".html"), lambda: html(trace, None, None, False)),
        (trace.with_name("comparison.html"), lambda: html(trace, trace, None, False)),
    ):
        page.write_text("mine")
        with pytest.raises(TraceError, match="a file that grue did not write"):
            write()
        assert page.read_text() == "mine"
        page.unlink()
        write()
        write()


def test_a_damaged_trace_leaves_an_older_page_and_nothing_else(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("an older page")
    lines = trace.read_text().splitlines(keepends=True)
    trace.write_text("".join([*lines[:5], "{damaged\n", *lines[5:]]))
    with pytest.raises(TraceError, match="line 6"):
        write_html(trace, page)
    assert page.read_text() == "an older page"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["page.html", "trace.jsonl"]


def test_a_page_that_cannot_be_written_is_said_to_be(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"Cannot write the page .*No such file or directory"):
        write_html(trace, tmp_path / "no" / "page.html")


def test_the_command_writes_beside_the_trace_or_where_it_is_told(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: shown.append(address) or len(shown) < 2)
    html(tmp_path, None, None, open_browser=False)
    assert capsys.readouterr().out == f"Wrote {tmp_path / 'trace.html'}\n"
    assert (tmp_path / "trace.html").exists()
    assert shown == []
    html(trace, None, tmp_path / "other.html", open_browser=True)
    assert shown == [(tmp_path / "other.html").as_uri()]
    html(trace, None, tmp_path / "other.html", open_browser=True)
    assert "There is no browser" in capsys.readouterr().err
