"""The index of a folder of episodes in a real browser."""

import re
from pathlib import Path
from typing import Any

import pytest
from story_traces import full_story
from viewer_traces import EpisodeTape, begin, small_episode

from grue.cli.runs import traces_in
from grue.tracing.viewer import write_index

pytestmark = [pytest.mark.made_up_trace, pytest.mark.slow]

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = sync_api.expect


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("javascript:alert(1)", "b's", "c"):
        (folder / name).mkdir()
    full_story(folder / "javascript:alert(1)" / "trace.jsonl")
    small_episode(folder / "b's" / "trace.jsonl")
    with EpisodeTape(folder / "c" / "trace.jsonl", episode="<img src=x onerror=window.__pwned=1>") as tape:
        begin(tape)
    return write_index(folder, traces_in(folder))


def episodes(page: Any) -> Any:
    return page.locator("#rows tr")


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_every_episode_is_a_row_with_a_link_to_its_page(
    open_page: Any, index: Path, width: int, scheme: str
) -> None:
    watched = open_page(index, size=(width, 800), scheme=scheme)
    page = watched.page
    expect(episodes(page)).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    hrefs = page.locator("#rows a").evaluate_all("all => all.map(one => one.protocol)")
    assert set(hrefs) == {"file:"}
    watched.assert_calm()
    page.get_by_role("link", name="b's").click()
    expect(page).to_have_url(re.compile(r"/b(%27|')s/trace\.html"))
    expect(page.get_by_role("feed", name="Story")).to_be_visible()


def test_rows_are_sorted_and_searched_and_the_address_follows(open_page: Any, index: Path) -> None:
    page = open_page(index).page
    page.get_by_role("button", name="turns").click()
    expect(episodes(page).first).to_contain_text("b's")
    expect(page.get_by_role("columnheader", name="turns")).to_have_attribute("aria-sort", "descending")
    expect(page).to_have_url(re.compile(r"#sort=turns&down=1$"))
    page.keyboard.press("/")
    page.keyboard.type("all is said")
    expect(episodes(page)).to_have_count(1)
    expect(page.locator("#count")).to_have_text("1 of 3 episodes")
    assert page.evaluate("window.__pwned") is None


def test_two_chosen_episodes_make_a_command_that_a_shell_takes(open_page: Any, index: Path) -> None:
    page = open_page(index).page
    for name in ("Compare b's", "Compare c"):
        page.get_by_role("checkbox", name=name, exact=True).check()
    command = page.locator("#command")
    expect(command).to_contain_text("grue trace html ")
    expect(command).to_contain_text("/b'\\''s' ")


def test_a_damaged_trace_does_not_hide_the_other_episodes(open_page: Any, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        trace = small_episode(tmp_path / name / "trace.jsonl")
    text = re.sub(r'"started_at":[0-9.e+]+', '"started_at":1e300', trace.read_text(), count=1)
    trace.write_text(text.replace('"usage":{"', '"usage":{"cost_usd":1.5e308,"'))
    watched = open_page(write_index(tmp_path, traces_in(tmp_path)))
    expect(episodes(watched.page)).to_have_count(2)
    watched.page.get_by_role("link", name="b", exact=True).click()
    expect(watched.page.locator(".card")).to_contain_text("4 turns")
    assert [deed for deed in watched.deeds if deed.startswith("error")] == []
