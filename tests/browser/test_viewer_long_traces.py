"""Long traces and large messages in the trace viewer: what is in the page stays little."""

import re
from pathlib import Path
from typing import Any

import pytest
from viewer_traces import EpisodeTape, TurnTape, begin, long_episode

from grue.tracing.viewer import write_html

pytestmark = [pytest.mark.made_up_trace, pytest.mark.slow]

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = sync_api.expect

TURNS = 1000
MOST_ELEMENTS = 2500
SCROLL = (
    "share => { const box = document.getElementById('messages'); box.scrollTop = box.scrollHeight * share; }"
)
COUNT = "document.querySelectorAll('*').length"
"""What a page of 20 turns has is some 900; more turns must not make it more."""


@pytest.fixture(scope="module")
def long_html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    write_html(long_episode(folder / "trace.jsonl", TURNS), folder / "page.html")
    return folder / "page.html"


def test_a_thousand_turns_put_no_more_into_the_page_than_is_seen(open_messages: Any, long_html: Path) -> None:
    watched = open_messages(long_html)
    page = watched.page
    expect(page.locator("#facts")).to_contain_text("1,000 turns · 21,021 messages")
    counts = [page.evaluate(COUNT)]
    for press in ("End", "Home", "n", "n", "f", "f"):
        page.keyboard.press(press)
        counts.append(page.evaluate(COUNT))
    for share in (0.25, 0.5, 0.75, 1):
        page.evaluate(SCROLL, share)
        near = "|".join(str(round(TURNS * share) + aside) for aside in (-2, -1, 0, 1, 2))
        expect(page.locator("#time-title")).to_contain_text(re.compile(f"Turn ({near})\\D"))
        counts.append(page.evaluate(COUNT))
    assert max(counts) < MOST_ELEMENTS
    watched.assert_calm()


def test_a_printer_gets_no_rows_of_hidden_tabs(open_messages: Any, long_html: Path) -> None:
    page = open_messages(long_html).page
    page.keyboard.press("1")
    expect(page.locator("#messages")).to_be_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".passage").count() > 1000
    assert page.locator("#messages [role=option], #table-turns [role=option]").count() < 200


def test_the_first_turns_can_be_read_and_searched_while_the_page_reads_the_others(
    held_page: Any, long_html: Path
) -> None:
    held_page.goto(long_html.as_uri())
    held_page.locator("html[data-shown]").wait_for()
    expect(held_page.locator("#facts")).to_contain_text("1,000 turns · 21,021 messages")
    expect(held_page.locator(".card")).to_contain_text("1,000 turns: 990 answered, 10 forced")
    expect(held_page.locator("#passages .prompt").first).to_contain_text("7 characters")
    expect(held_page.locator("#turns .turn-entry").first).to_have_attribute("aria-setsize", "1001")
    held_page.locator("#search").fill("a thought")
    count = held_page.locator("#count")
    expect(count).to_have_text(re.compile(r"^[\d,]+ of [\d,]+ passages, still reading$"))
    held_page.evaluate("release()")
    held_page.locator("html[data-ready]").wait_for()
    expect(count).to_have_text("1,990 of 10,041 passages")
    expect(held_page.locator("#indexed")).to_be_hidden()


def test_a_link_leads_to_a_message_as_soon_as_it_has_been_read(held_page: Any, long_html: Path) -> None:
    held_page.goto(f"{long_html.as_uri()}#20000")
    held_page.locator("html[data-shown]").wait_for()
    row = held_page.locator("#messages [aria-selected=true]")
    expect(row).to_have_count(0)
    held_page.evaluate("release()")
    expect(row).to_contain_text("20000")


def test_a_turn_that_is_read_later_stays_where_the_reader_went(held_page: Any, long_html: Path) -> None:
    held_page.goto(f"{long_html.as_uri()}#turn-900")
    current = held_page.locator("#passages [aria-current]")
    expect(current).to_have_attribute("aria-label", "Turn 900")
    held_page.evaluate("release()")
    held_page.locator("html[data-ready]").wait_for()
    expect(current).to_have_attribute("aria-label", "Turn 900")
    expect(current).to_be_in_viewport()
    after = held_page.locator("#passages [aria-current] + .passage")
    expect(after).to_contain_text("A hall.")


def test_the_last_message_of_a_long_trace_is_a_key_away_and_so_is_the_first(
    open_messages: Any, long_html: Path
) -> None:
    page = open_messages(long_html).page
    page.keyboard.press("End")
    row = page.locator("#messages [aria-selected=true]")
    expect(row).to_contain_text("21021")
    expect(row).to_be_in_viewport()
    expect(row).to_have_attribute("aria-posinset", "22022")
    page.keyboard.press("Home")
    expect(row).to_contain_text("Before the first turn")


def test_failures_are_found_among_a_thousand_turns(open_messages: Any, long_html: Path) -> None:
    page = open_messages(long_html).page
    page.keyboard.press("f")
    expect(page.locator("#count")).to_have_text("50 of 21,021 messages")  # ten turns, five marks each
    page.get_by_role("searchbox").fill("an earlier call failed")
    expect(page.locator("#count")).to_have_text("10 of 21,021 messages")


def test_a_turn_of_thousands_of_calls_has_a_time_line_of_no_more_than_can_be_seen(
    open_messages: Any, tmp_path: Path
) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        turn = TurnTape(tape)
        turn.open()
        turn.call(["ok"] * 5000)
        turn.close()
    write_html(tmp_path / "trace.jsonl", tmp_path / "page.html")
    page = open_messages(tmp_path / "page.html").page
    assert page.locator("#timeline a").count() < 1500
    assert page.evaluate(COUNT) < 5000


def test_a_large_message_is_cut_and_the_page_says_where_it_is_whole(
    open_messages: Any, tmp_path: Path
) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        turn = TurnTape(tape)
        turn.call(["ok"], content=[{"number": number, "text": "x" * 20} for number in range(50_000)])
        turn.close()
    write_html(tmp_path / "trace.jsonl", tmp_path / "page.html")
    page = open_messages(tmp_path / "page.html").page
    page.get_by_label("Kind of message").select_option("ToolReturned")
    page.locator("#messages .message").click()
    note = re.compile(
        r"Cut: 200,000 of 2,\d{3},\d{3} characters are here; the whole is message 6 of trace.jsonl."
    )
    expect(page.locator("p.note")).to_have_text(note)
    assert '"number": 4000' in page.locator(".json").inner_text()
    assert page.evaluate(COUNT) < 6000


def test_a_trace_that_was_cut_short_is_shown_and_says_so(open_messages: Any, tmp_path: Path) -> None:
    trace = long_episode(tmp_path / "trace.jsonl", 2)
    trace.write_bytes(trace.read_bytes()[:-40])
    write_html(trace, tmp_path / "page.html")
    detail = open_messages(tmp_path / "page.html").page.get_by_role("region", name="Details")
    expect(detail).to_contain_text("The last line of the file was cut short")


def test_a_trace_without_messages_is_a_page_without_messages(open_messages: Any, tmp_path: Path) -> None:
    EpisodeTape(tmp_path / "trace.jsonl").__exit__()
    write_html(tmp_path / "trace.jsonl", tmp_path / "page.html")
    watched = open_messages(tmp_path / "page.html")
    expect(watched.page.locator("#facts")).to_contain_text("0 turns · 0 messages")
    watched.page.keyboard.press("j")
    watched.page.keyboard.press("n")
    watched.assert_calm()
