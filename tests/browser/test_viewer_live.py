"""The viewer's page while it follows a trace that is under way."""

from pathlib import Path
from typing import Any

import pytest
from story_traces import Story
from viewer_traces import EpisodeTape, begin, plain_turn

from grue.tracing.live_server import LiveFeed, serving
from grue.tracing.marks import read_marks

pytestmark = [pytest.mark.made_up_trace, pytest.mark.slow]

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = sync_api.expect


@pytest.fixture
def page(chromium: Any) -> Any:
    with chromium.new_context(viewport={"width": 1400, "height": 900}) as context:
        page = context.new_page()
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda message: page.complaints.append(message.text))
        yield page


def test_the_page_follows_the_trace_and_the_reader_stays_where_he_is(page: Any, tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        plain_turn(tape)
        with LiveFeed(tmp_path / "trace.jsonl") as feed, serving(feed) as server:
            page.goto(f"{server.url}#turn-1")
            expect(page.locator("#live")).to_have_text("live")
            current = page.locator("#passages [aria-current]")
            expect(current).to_have_attribute("aria-label", "Turn 1")
            plain_turn(tape)
            expect(page.locator("#facts")).to_contain_text("2 turns")
            expect(page.get_by_role("listbox", name="Turns").get_by_role("option")).to_have_count(3)
            expect(current).to_have_attribute("aria-label", "Turn 1")
            page.keyboard.press("2")
            page.keyboard.press("End")
            plain_turn(tape)
            expect(page.locator("#facts")).to_contain_text("3 turns")
            assert page.complaints == []
        expect(page.locator("#live")).to_contain_text("does not answer")
    assert all("Failed to load" in text for text in page.complaints)


def test_images_and_the_end_are_shown(page: Any, tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        Story(tape).write()
    with LiveFeed(tmp_path / "trace.jsonl") as feed, serving(feed) as server:
        page.goto(f"{server.url}#turn-1")
        expect(page.locator("#live")).to_have_text("ended")
        picture = page.locator(".passage.call").get_by_role("img").first
        picture.scroll_into_view_if_needed()
        page.wait_for_function("document.querySelector('.passage.call img')?.naturalWidth === 24")
        assert page.complaints == []


def test_a_person_gives_the_episode_a_mark(page: Any, tmp_path: Path) -> None:
    """In a fleet the mark is beside the episode, and says which attempt it is about."""
    attempt = tmp_path / "0" / "attempt-2"
    attempt.mkdir(parents=True)
    with EpisodeTape(attempt / "trace.jsonl") as tape:
        Story(tape).write()
    with LiveFeed(attempt / "trace.jsonl") as feed, serving(feed) as server:
        page.goto(server.url)
        page.get_by_role("button", name="Mark").click()
        page.get_by_label("Score").fill("0.5")
        page.get_by_label("Why").press_sequentially("f is <b>not</b> a key here")
        page.get_by_role("button", name="Save").press("Enter")
        expect(page.locator("#mark-said")).to_have_text("Saved beside the run.")
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Mark: 0.5")).to_be_visible()
        page.reload()
        expect(page.get_by_role("button", name="Mark: 0.5")).to_be_visible()
        assert page.complaints == []
    (mark,) = read_marks(tmp_path / "0")
    assert (mark.score, mark.attempt, mark.reason) == (0.5, 2, "f is <b>not</b> a key here")
