"""The report of a fleet in a real browser."""

import random
from pathlib import Path
from typing import Any

import pytest
from made_fleets import ended, make_fleet

from grue.fleet.course import Course
from grue.fleet.folder import AttemptEnd
from grue.fleet.report import write_report

pytestmark = pytest.mark.slow

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = sync_api.expect
COLOURS = """[...new Set(new Uint32Array(document.getElementById("costs").getContext("2d")
    .getImageData(0, 0, 2000, 600).data.buffer).values())].filter((pixel) => pixel & 0xffffff)"""
INKS = """Object.fromEntries(["fail", "good"].map((name) => {
    const probe = document.getElementById("probe");
    probe.style.color = `var(--${name})`;
    const [red, green, blue] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
    const { width, height } = document.getElementById("cases");
    const pixels = document.getElementById("cases").getContext("2d").getImageData(0, 0, width, height).data;
    let found = false;
    for (let at = 0; at < pixels.length; at += 4) {
      const [r, g, b, a] = pixels.slice(at, at + 4);
      found ||= a > 100 && Math.abs(r - red) + Math.abs(g - green) + Math.abs(b - blue) < 30;
    }
    return [name, found];
}))"""
HOSTILE = "</script><img src=x onerror=window.__pwned=1>"


def played(chance: random.Random, prompt: str, question: int) -> AttemptEnd:
    if question == 3:
        return AttemptEnd(outcome="failed", kind="ValueError", error=f"ValueError: {HOSTILE}")
    course = Course(turns=1 + question % 4, tool_calls=2, error=HOSTILE, error_kind="ToolDenied", message=7)
    good = chance.random() < (0.8 if prompt == HOSTILE else 0.4)
    return ended(float(good), course=course, duration_s=chance.random() * 9)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("it's a fleet")
    make_fleet(folder, played, prompts=("short", HOSTILE), repetitions=2, trace=b"x")
    write_report(folder, folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize(
    ("width", "scheme"), [(1400, "light"), (1400, "dark"), (400, "light"), (400, "dark")]
)
def test_the_report_shows_the_fleet_and_asks_nobody_for_anything(
    open_page: Any, report: Path, width: int, scheme: str
) -> None:
    watched = open_page(report, size=(width, 800), scheme=scheme)
    page = watched.page
    expect(page.locator("#facts")).to_have_text("120 episodes, 0 without a result")
    expect(page.locator("#cells tbody tr")).to_have_count(2)
    expect(page.locator("#verdicts li")).to_have_count(1)
    expect(page.locator("#failures-list tr")).not_to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.__pwned") is None
    drawn = page.evaluate(COLOURS)
    assert len(drawn) > 3, "the plot has the colours of the theme, not black only"
    watched.assert_calm()


def test_the_report_says_what_it_leaves_out(open_page: Any, tmp_path: Path) -> None:
    fleet = make_fleet(tmp_path, played, prompts=("short", "long"), questions=1, repetitions=2)
    ids = sorted(each.id for each in fleet.episodes())
    fleet.write_latest([ids[0]])
    write_report(tmp_path, tmp_path / "report.html")
    facts = open_page(tmp_path / "report.html").page.locator("#facts")
    expect(facts).to_have_text("1 episode, 0 without a result, 3 not in the latest sweep and left out")


@pytest.mark.parametrize("lower_is_better", [False, True])
def test_the_points_of_cases_that_lost_are_red_and_the_others_green(
    open_page: Any, tmp_path: Path, lower_is_better: bool
) -> None:
    """The second cell scores less than the first one in each case."""
    make_fleet(
        tmp_path, lambda _, prompt, question: float(prompt == "a"), prompts="ab", questions=4, repetitions=1
    )
    write_report(tmp_path, tmp_path / "report.html", by=["prompt"], lower_is_better=lower_is_better)
    page = open_page(tmp_path / "report.html").page
    shown = "score (lower is better)" if lower_is_better else "score"
    expect(page.locator("#cells th").nth(1)).to_have_text(shown)
    drawn = page.evaluate(INKS)
    assert drawn == {"fail": not lower_is_better, "good": lower_is_better}


def test_a_point_opens_its_episode_by_the_keyboard(open_page: Any, report: Path) -> None:
    watched = open_page(report)
    page = watched.page
    page.get_by_role("img", name="Score and cost").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    panel = page.get_by_role("complementary", name="Episodes")
    expect(panel).to_be_visible()
    expect(panel).to_contain_text("grue trace show '")
    expect(panel).to_contain_text("--message 3-8")
    address = page.evaluate("location.hash")
    assert address.startswith("#episode=")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    again = open_page(report, at=address[1:]).page
    expect(again.get_by_role("complementary", name="Episodes")).to_contain_text("Episode ")
    watched.assert_calm()


def test_a_click_on_a_point_opens_it(open_page: Any, report: Path) -> None:
    """The case that lost most stands at the left end, below everything else."""
    page = open_page(report).page
    plot = page.locator("#cases")
    plot.scroll_into_view_if_needed()
    plot.click(position={"x": 48, "y": 220})
    expect(page.get_by_role("complementary", name="Episodes").get_by_role("listitem")).to_have_count(4)


def test_bars_failures_and_cells_list_their_episodes_and_the_search_narrows(
    open_page: Any, report: Path
) -> None:
    watched = open_page(report)
    page = watched.page
    panel = page.get_by_role("complementary", name="Episodes")
    page.get_by_role("button", name="1 turn: ").click()
    expect(panel).to_contain_text("1 turn (")
    panel.get_by_role("listitem").first.get_by_role("button").click()
    expect(panel).to_contain_text("Its folder")
    page.locator("#failures-list button").first.click()
    expect(panel.get_by_role("listitem")).not_to_have_count(0)
    page.locator("#cells button").first.click()
    expect(panel.get_by_role("listitem")).to_have_count(60)
    page.keyboard.press("/")
    page.keyboard.type("question 7")
    expect(page.locator("#count")).to_have_text("4 of 120 episodes")
    assert page.evaluate("window.__pwned") is None
    watched.assert_calm()
