"""The trace viewer in a real browser: what it shows, and how one moves in it."""

import re
from pathlib import Path
from typing import Any

import pytest
from viewer_traces import small_episode

from grue.errors import MCPConfigError
from grue.hosting import TracePage
from grue.tracing.reading import read_episode
from grue.tracing.viewer import write_html

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = sync_api.expect


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_episode(tmp_path_factory.mktemp("viewer") / "trace.jsonl")


@pytest.fixture(scope="session")
def html(trace: Path) -> Path:
    page = trace.with_suffix(".html")
    write_html(trace, page, title="A small episode")
    return page


def numbers(trace: Path, kind: str) -> list[int]:
    return [
        envelope.seq for envelope in read_episode(trace).envelopes if type(envelope.body).__name__ == kind
    ]


def messages(page: Any) -> Any:
    return page.get_by_role("listbox", name="Messages")


def turns(page: Any) -> Any:
    return page.get_by_role("listbox", name="Turns")


def message(page: Any, seq: int) -> Any:
    """The row of a message that is in view."""
    return messages(page).locator(".message").filter(has=page.get_by_text(str(seq), exact=True))


def shown_kinds(page: Any) -> set[str]:
    return set(messages(page).locator(".message b").all_inner_texts())


def chosen(page: Any) -> Any:
    return messages(page).locator("[aria-selected=true]")


@pytest.mark.slow
def test_the_page_shows_the_episode_and_asks_nobody_for_anything(open_messages: Any, html: Path) -> None:
    watched = open_messages(html)
    page = watched.page
    expect(page).to_have_title("A small episode")
    expect(page.locator("#facts")).to_contain_text("4 turns · 85 messages")
    expect(turns(page).get_by_role("option")).to_have_count(5)  # what came before the first one is the fifth
    expect(page.get_by_role("region", name="Details")).to_contain_text("2 answered, 2 forced")
    watched.assert_calm()


def test_a_click_shows_the_whole_message(open_messages: Any, html: Path, trace: Path) -> None:
    page = open_messages(html, at="turn-2").page
    [timed_out] = numbers(trace, "ToolTimedOut")
    message(page, timed_out).click()
    detail = page.get_by_role("region", name="Details")
    expect(detail.get_by_role("heading", name=f"#{timed_out} ToolTimedOut")).to_be_visible()
    expect(detail).to_contain_text("mind → agent")
    expect(detail).to_contain_text("1.00 s (tool call: think)")
    expect(detail.locator(".json")).to_contain_text('"timeout_s": 1.0')
    expect(page).to_have_url(re.compile(f"#{timed_out}$"))


def test_causes_and_effects_are_links_and_back_goes_back(open_messages: Any, html: Path, trace: Path) -> None:
    watched = open_messages(html)
    page = watched.page
    [died] = numbers(trace, "ServerDied")
    page.evaluate(f"location.hash = '#{died}'")
    detail = page.get_by_role("region", name="Details")
    detail.get_by_role("link", name="CallTools").click()
    title = page.locator("#detail-title")
    expect(title).to_contain_text("CallTools")
    expect(chosen(page)).to_contain_text("CallTools")
    detail.get_by_role("link", name=f"#{died} ServerDied").click()
    expect(title).to_contain_text("ServerDied")
    page.go_back()
    expect(title).to_contain_text("CallTools")
    watched.assert_calm()


def test_an_address_with_a_number_opens_at_that_message(open_messages: Any, html: Path, trace: Path) -> None:
    last = numbers(trace, "Decided")[-1]
    page = open_messages(html, at=str(last)).page
    expect(chosen(page)).to_contain_text("Decided")
    expect(chosen(page)).to_be_in_viewport()
    expect(page.locator("#time-title")).to_contain_text("Turn 4")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("out of ink", "ServerDied"),
        pytest.param("SIGKILL", "ServerDied", marks=pytest.mark.slow),
        ('"timeout_s":1.0,"duration_s"', "ToolTimedOut"),
        ('says "HI" to <b>you</b>', "Observed"),
    ],
)
def test_search_finds_text_anywhere_in_a_message(
    open_messages: Any, html: Path, words: str, kind: str
) -> None:
    page = open_messages(html).page
    page.keyboard.press("/")
    page.keyboard.type(words)
    expect(page.locator("#count")).to_contain_text(" of 85 messages")
    assert kind in shown_kinds(page)
    assert "SessionOpened" not in shown_kinds(page)


def test_what_nobody_said_is_not_found_and_the_filters_can_be_cleared(open_messages: Any, html: Path) -> None:
    page = open_messages(html).page
    page.get_by_role("searchbox").fill("xyzzy")
    expect(page.get_by_text("No message is like that.")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").click()
    expect(page.get_by_text("No message is like that.")).to_be_hidden()
    assert "EpisodeStarted" in shown_kinds(page)


def test_filters_by_turn_actor_and_kind(open_messages: Any, html: Path) -> None:
    page = open_messages(html).page
    count = page.locator("#count")
    page.get_by_label("Turn, or turns").fill("2-3")
    expect(messages(page).locator(".turn-head b")).to_have_text(["Turn 2", "Turn 3"])
    page.get_by_label("Actor").select_option("llm")
    page.get_by_label("Kind of message").select_option("CompletionReceived")
    expect(count).to_have_text("4 of 85 messages")
    page.get_by_label("Turn, or turns").fill("3")
    expect(count).to_have_text("2 of 85 messages")
    page.get_by_label("Turn, or turns").fill("three")
    expect(page.get_by_label("Turn, or turns")).to_have_attribute("aria-invalid", "true")
    expect(count).to_have_text("8 of 85 messages")


@pytest.mark.slow
def test_failures_only_leaves_what_went_wrong(open_messages: Any, html: Path) -> None:
    page = open_messages(html).page
    page.keyboard.press("f")
    expect(page.get_by_role("button", name="Failures")).to_have_attribute("aria-pressed", "true")
    wrong = {"CompletionRetried", "ToolTimedOut", "ToolSkipped", "FinalForced", "TurnCompleted", "ServerDied"}
    assert shown_kinds(page) == wrong
    page.keyboard.press("f")
    assert "EpisodeStarted" in shown_kinds(page)


def test_a_link_to_a_message_that_a_filter_hides_clears_the_filters(
    open_messages: Any, html: Path, trace: Path
) -> None:
    page = open_messages(html).page
    page.keyboard.press("f")
    message(page, numbers(trace, "ServerDied")[0]).click()
    page.get_by_role("region", name="Details").get_by_role("link", name="CallTools").click()
    expect(chosen(page)).to_contain_text("CallTools")
    expect(page.get_by_role("button", name="Failures")).to_have_attribute("aria-pressed", "false")


def test_keys_move_between_messages_and_turns(open_messages: Any, html: Path) -> None:
    page = open_messages(html).page
    press, title = page.keyboard.press, page.locator("#detail-title")
    for keys, shown in (
        ("n", "Turn 2"),  # the time line is at turn 1 to begin with
        ("j", "Observed"),
        ("ArrowDown", "RunTurn"),
        ("k", "Observed"),
        ("n", "Turn 3"),
        ("p", "Turn 2"),
        ("ArrowUp", "Decided"),
        ("p", "Turn 1"),
        ("End", "Decided"),
        ("Home", "Before the first turn"),
    ):
        press(keys)
        expect(title).to_contain_text(shown)
    press("j")
    expect(title).to_contain_text("EpisodeStarted")


def test_keys_lead_to_causes_into_the_details_and_out_again(
    open_messages: Any, html: Path, trace: Path
) -> None:
    page = open_messages(html, at=str(numbers(trace, "ToolTimedOut")[0])).page
    press = page.keyboard.press
    press("Enter")
    expect(page.get_by_role("region", name="Details")).to_be_focused()
    press("c")
    expect(page.locator("#detail-title")).to_contain_text("CallTools")
    press("Escape")
    expect(messages(page)).to_be_focused()
    press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("timed")
    press("Enter")
    expect(messages(page)).to_be_focused()
    press("Escape")
    expect(page.get_by_role("searchbox")).to_have_value("")
    press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()


def test_assistive_technology_is_told_what_is_chosen(open_messages: Any, html: Path) -> None:
    page = open_messages(html).page
    expect(messages(page)).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("j")
    active = messages(page).get_attribute("aria-activedescendant")
    row = page.locator(f"#{active}")
    expect(row).to_have_attribute("aria-selected", "true")
    expect(row).to_have_attribute("aria-setsize", "90")  # 85 messages under 5 headings
    expect(row).to_have_attribute("aria-posinset", "2")
    expect(messages(page).get_by_role("option", name=re.compile("EpisodeStarted.*host notes"))).to_have_count(
        1
    )
    expect(chosen(page)).to_have_count(1)
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_what_went_wrong_is_seen_in_the_list_of_turns(open_messages: Any, html: Path) -> None:
    page = open_messages(html).page
    second, third = turns(page).get_by_role("option").nth(2), turns(page).get_by_role("option").nth(3)
    for word in ("timeout", "retry", "skipped", "forced"):
        expect(second.get_by_text(word)).to_have_count(1)
    expect(second.get_by_text("forced")).to_have_text("forced")  # counted once
    expect(third.get_by_text("died")).to_have_count(1)
    page.get_by_label("Order of the turns").select_option("worst")
    expect(turns(page).get_by_role("option").first).to_contain_text("timeout")
    page.get_by_label("Order of the turns").select_option("longest")
    expect(turns(page).get_by_role("option").first).to_contain_text("1.97 s")


def test_a_turn_says_what_went_wrong_in_it_and_what_took_long(open_messages: Any, html: Path) -> None:
    page = open_messages(html).page
    turns(page).get_by_role("option").nth(2).click()
    detail = page.get_by_role("region", name="Details")
    expect(detail.get_by_role("heading", name="Turn 2")).to_be_visible()
    expect(detail.get_by_role("link", name="ToolTimedOut")).to_have_count(1)
    longest = detail.get_by_role("heading", name="What took longest").locator("+ ul > li").first
    expect(longest).to_have_text("1.00 stool call: mind, think")
    longest.get_by_role("link").click()
    expect(page.locator("#detail-title")).to_contain_text("ToolCalled")


def test_a_link_that_is_followed_at_once_is_not_lost(open_messages: Any, html: Path, trace: Path) -> None:
    page = open_messages(html).page
    page.evaluate("() => { kept = setTimeout; delayed = []; setTimeout = (act) => delayed.push(act); }")
    turns(page).get_by_role("option").nth(2).click()
    [timed_out] = numbers(trace, "ToolTimedOut")
    # The address of the turn is due when a link has been followed, and before the page is told of that.
    page.evaluate(
        "(seq) => { location.hash = seq; delayed.forEach((act) => act()); setTimeout = kept; }", timed_out
    )
    expect(page.locator("#detail-title")).to_contain_text("ToolTimedOut")


def test_the_time_line_is_to_scale_and_leads_to_its_messages(open_messages: Any, html: Path) -> None:
    page = open_messages(html, at="turn-2").page
    line = page.get_by_role("region", name="Time line of the turn")

    def width(name: str) -> float:
        box = line.get_by_role("link", name=name).locator("rect").bounding_box()
        return float(box["width"])

    timeout = width("tool call: think, 1.00 s, timeout")
    assert width("retry wait: wait, 300 ms") == pytest.approx(timeout * 0.3, abs=1.5)
    assert width("start-up: start, 50.0 ms") == pytest.approx(timeout * 0.05, abs=1.5)
    line.get_by_role("link", name="request 1, try 2").click()
    expect(page.locator("#detail-title")).to_contain_text("CompletionRetried")


def test_a_batch_is_a_band_from_its_command_to_its_last_answer(open_messages: Any, html: Path) -> None:
    page = open_messages(html, at="turn-2").page
    banded = (
        messages(page).locator(".message").filter(has=page.locator(".batch")).locator("b").all_inner_texts()
    )
    at = banded.index("ToolTimedOut")
    assert banded[at - 4 : at + 2] == [
        "CallTools", "ToolCalled", "ToolReturned", "ToolCalled", "ToolTimedOut", "ToolSkipped",
    ]  # fmt: skip


@pytest.mark.slow
def test_exact_json_leaves_strings_as_they_are_written(open_messages: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    body = '{"type":"Observed","turn":1,"text":"one\\ntwo \\u202eend","score":12345678901234567890}'
    trace.write_text(
        '{"trace":"grue","format":1,"episode":"e","started_at":0}\n'
        f'{{"seq":1,"t":0,"at":0,"turn":1,"from":"host","to":"trace","body":{body}}}\n'
    )
    write_html(trace, tmp_path / "page.html")
    page = open_messages(tmp_path / "page.html", at="1").page
    json_view = page.locator(".json")
    expect(json_view.locator(".block")).to_have_text("one\ntwo \\u202eend")
    page.keyboard.press("x")
    expect(json_view.locator(".block")).to_have_count(0)
    expect(json_view).to_contain_text('"text": "one\\ntwo \\u202eend"')
    expect(json_view).to_contain_text("12345678901234567890")


@pytest.mark.slow
def test_dark_and_light_follow_the_system_until_toggled(open_messages: Any, html: Path) -> None:
    def darkness(page: Any) -> bool:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) < 200

    light, dark = open_messages(html, scheme="light").page, open_messages(html, scheme="dark").page
    assert (darkness(light), darkness(dark)) == (False, True)
    for page in (light, dark):
        page.get_by_role("button", name="Theme").click()
    assert (darkness(light), darkness(dark)) == (True, False)


@pytest.mark.slow
def test_a_narrow_window_shows_one_pane_at_a_time(open_messages: Any, html: Path, trace: Path) -> None:
    watched = open_messages(html, size=(360, 640))
    page = watched.page
    fits = "document.documentElement.scrollWidth <= 360 && document.body.scrollWidth <= 360"
    assert page.evaluate(fits)
    expect(messages(page)).to_be_in_viewport()
    page.get_by_role("button", name="Turns").click()
    turns(page).get_by_role("option").nth(3).click()
    expect(turns(page)).to_be_hidden()
    message(page, numbers(trace, "ServerDied")[0]).scroll_into_view_if_needed()
    message(page, numbers(trace, "ServerDied")[0]).click()
    expect(page.get_by_role("region", name="Details")).to_contain_text("out of ink")
    assert page.evaluate(fits)
    page.get_by_role("button", name="Close details").click()
    expect(page.get_by_role("region", name="Details")).to_be_hidden()
    watched.assert_calm()


def test_a_notebook_shows_the_page_in_a_frame_that_cannot_reach_it(
    trace: Path, tmp_path: Path, open_page: Any
) -> None:
    cell = tmp_path / "cell.html"
    shown = TracePage(trace)._repr_html_()
    cell.write_text(f"<!doctype html><html data-ready><title>A notebook</title>{shown}", encoding="utf-8")
    watched = open_page(cell)
    frame = watched.page.frame_locator("iframe")
    turn = frame.get_by_role("listbox", name="Turns").get_by_role("option").first
    expect(turn).to_be_visible()
    turn.click()
    frame.get_by_role("button", name="Copy link").click()  # a frame without an address cannot change it
    watched.assert_calm()


def test_a_runner_without_a_trace_has_no_page() -> None:
    with pytest.raises(MCPConfigError, match='trace="runs"'):
        TracePage(None)
