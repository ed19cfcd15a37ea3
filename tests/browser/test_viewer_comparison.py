"""Two traces side by side in a real browser."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from forked_turns import Box, model, runner
from story_traces import full_story
from viewer_traces import EpisodeTape, begin, long_episode, plain_turn

from grue.testing.llm_server import ScriptedLlmServer
from grue.tracing.viewer import write_comparison

pytestmark = [pytest.mark.made_up_trace, pytest.mark.slow]

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = sync_api.expect


def episode(path: Path, *texts: str) -> Path:
    with EpisodeTape(path, episode=path.stem) as tape:
        begin(tape)
        for text in texts:
            plain_turn(tape, text=text)
    return path


@pytest.fixture
def html(tmp_path: Path) -> Path:
    left = episode(tmp_path / "left.jsonl", "A hall.", "A <b>cellar</b>.", "An attic.")
    right = episode(tmp_path / "right.jsonl", "A hall.", "A garden.", "An attic.", "A roof.")
    assert write_comparison(left, right, tmp_path / "page.html") == 2
    return tmp_path / "page.html"


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_the_first_difference_is_named_and_both_sides_are_shown(
    open_page: Any, html: Path, width: int, scheme: str
) -> None:
    watched = open_page(html, size=(width, 900), scheme=scheme)
    page = watched.page
    expect(page.locator("#verdict")).to_contain_text("differ from turn 2 on")
    expect(page.get_by_role("article", name="Turn 1", exact=True)).to_contain_text("the same")
    second = page.get_by_role("article", name="Turn 2", exact=True)
    expect(second).to_contain_text("A <b>cellar</b>.")
    expect(second).to_contain_text("A garden.")
    expect(second.locator(".diverges").first).to_be_attached()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("b b").count() == 0
    watched.assert_calm()


def test_keys_go_from_difference_to_difference(open_page: Any, html: Path) -> None:
    page = open_page(html).page
    current = page.locator("#pairs [aria-current]")
    page.keyboard.press("n")
    expect(current).to_have_attribute("aria-label", "Turn 2")
    page.keyboard.press("n")
    expect(current).to_have_attribute("aria-label", "Turn 4")
    expect(current).to_contain_text("There is no such turn here.")
    page.keyboard.press("p")
    expect(current).to_have_attribute("aria-label", "Turn 2")
    page.keyboard.press("d")
    expect(page.get_by_role("article", name="Turn 1", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="Only differences")).to_have_attribute("aria-pressed", "true")


def test_a_message_and_a_request_open_for_their_own_side(open_page: Any, html: Path) -> None:
    watched = open_page(html, at="turn-2")
    page, dialog = watched.page, watched.page.get_by_role("dialog")
    right = page.get_by_role("article", name="Turn 2", exact=True).locator("[data-side='1']")
    right.get_by_role("link", name="Request as sent").first.click()
    expect(dialog).to_contain_text("Request 1 of turn 2")
    page.keyboard.press("Escape")
    right.locator(".passage.fact .to-message").first.click()
    expect(dialog).to_contain_text("A garden.")
    watched.assert_calm()


def test_identical_traces_are_said_to_be(open_page: Any, tmp_path: Path) -> None:
    trace = full_story(tmp_path / "trace.jsonl")
    assert write_comparison(trace, trace, tmp_path / "page.html") == 0
    watched = open_page(tmp_path / "page.html")
    expect(watched.page.locator("#verdict")).to_contain_text("identical")
    watched.assert_calm()


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a conversation beside a fork of its second turn, in which a tool says something else."""
    folder = tmp_path_factory.mktemp("fork")
    record, fork = folder / "record.jsonl", folder / "fork.jsonl"

    def play() -> None:
        with ScriptedLlmServer(model) as server:
            with runner(server, "chat_completions", record, servers=Box().servers()) as each:
                talk = each.conversation("Be brief.", name="talk")
                talk.ask("Tidy up the hall.")
                said = talk.ask("Tidy up the attic.")
            with runner(server, "chat_completions", fork) as each:
                changed = {said.tool_calls[2].call_id: "<b>old</b> is <i>still there</i>"}
                outcome = each.fork(record, turn=2, tool_results=changed)
        assert said.response == "After 3: old is gone"
        assert outcome.response == "After 3: <b>old</b> is <i>still there</i>"

    with ThreadPoolExecutor(1) as beside:  # an open browser's event loop counts as running in this thread
        beside.submit(play).result()
    assert write_comparison(record, fork, folder / "page.html") > 0
    return folder / "page.html"


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_a_fork_beside_its_record_differs_where_it_was_changed(
    open_page: Any, forked: Path, width: int, scheme: str
) -> None:
    watched = open_page(forked, size=(width, 900), scheme=scheme)
    page = watched.page
    expect(page.locator("#verdict")).to_contain_text("differ from turn 2 on")
    first, second = (page.get_by_role("article", name=f"Turn {turn}", exact=True) for turn in (1, 2))
    expect(first).to_contain_text("the same")
    expect(second.locator("pre.told")).to_contain_text(
        re.compile('"old is gone"\n.*"<b>old</b> is <i>still there</i>"')
    )
    record, fork = (second.locator(f"[data-side='{side}']") for side in (0, 1))
    expect(fork).to_contain_text("from here on a fork of turn 2 of record, after message 47: result of c8")
    expect(record).not_to_contain_text("a fork of")
    for side, said in ((record, "old is gone"), (fork, "<b>old</b> is <i>still there</i>")):
        # What was said before the fork is the same; marked are the call and what follows from its result.
        expect(side.locator(".diverges").first).to_contain_text("box.delete")
        expect(side.locator(".diverges").filter(has_text=f"After 3: {said}")).to_have_count(1)
        expect(side.locator(".passage").filter(has_text="One moment.")).not_to_have_class(
            re.compile("diverges")
        )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    fork.get_by_role("link", name="Request as sent").last.click()
    expect(page.get_by_role("dialog")).to_contain_text("<b>old</b> is <i>still there</i>")
    watched.assert_calm()


def test_two_long_traces_can_be_looked_at_while_the_page_reads_them(held_page: Any, tmp_path: Path) -> None:
    left, right = long_episode(tmp_path / "left.jsonl", 300), tmp_path / "right.jsonl"
    with EpisodeTape(right, episode="right") as tape:
        begin(tape)
        for turn in range(1, 301):
            plain_turn(tape, text="A <b>garden</b>." if turn == 290 else "A hall.")
    assert write_comparison(left, right, tmp_path / "page.html") == 97
    held_page.goto(f"{(tmp_path / 'page.html').as_uri()}#turn-290")
    held_page.locator("html[data-shown]").wait_for()
    expect(held_page.locator("#verdict")).to_contain_text("differ from turn 97 on")
    pair = held_page.get_by_role("article", name="Turn 290", exact=True)
    expect(pair.locator("pre.told")).to_contain_text("A <b>garden</b>.")
    expect(pair).to_contain_text("still reading this turn")
    held_page.evaluate("release()")
    held_page.locator("html[data-ready]").wait_for()
    expect(pair.locator("[data-side='0']")).to_contain_text("A hall.")
    expect(pair.locator("[data-side='1'] .diverges").first).to_contain_text("A <b>garden</b>.")
    expect(pair).to_have_attribute("aria-current", "true")
    expect(pair).to_be_in_viewport()
