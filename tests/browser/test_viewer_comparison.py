"""Two traces side by side in a real browser."""

from pathlib import Path
from typing import Any

import pytest
from story_traces import full_story
from viewer_traces import EpisodeTape, begin, plain_turn

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
