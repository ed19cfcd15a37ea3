"""The trace of a batch in a real browser: its turns by question and answer, filtered, and as a table."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grue import LlmSettings, Runner, TurnRequest
from grue.testing.llm_replies import LlmReply
from grue.testing.llm_server import LlmRequest, ScriptedLlmServer, error_reply, text_reply
from grue.tracing.viewer import write_html

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = sync_api.expect

TURNS = 120


def reply(request: LlmRequest) -> LlmReply:
    number = int(request.messages[-1]["content"].split()[-1])
    return (
        error_reply(400, "no <b>such</b> thing") if number == 7 else text_reply(f"It is <i>{number * 3}</i>.")
    )


@pytest.fixture(scope="session")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = tmp_path_factory.mktemp("batch") / "trace.jsonl"

    def run() -> None:
        with ScriptedLlmServer(reply) as model:
            llm = LlmSettings(base_url=model.base_url, model="m")
            with Runner(llm=llm, trace=trace) as runner:
                questions = (TurnRequest(f"Three times {number}") for number in range(1, TURNS + 1))
                assert sum(item.error is not None for item in runner.map(questions, concurrency=2)) == 1

    with ThreadPoolExecutor(1) as beside:  # an open browser's event loop counts as running in this one
        beside.submit(run).result()
    write_html(trace, trace.with_suffix(".html"))
    return trace.with_suffix(".html")


def turns(page: Any) -> Any:
    return page.get_by_role("listbox", name="Turns", exact=True).get_by_role("option")


def rows(page: Any) -> Any:
    return page.get_by_role("listbox", name="Table of the turns").get_by_role("option")


@pytest.mark.parametrize("at", ["", "tab=messages", "tab=table"], ids=["story", "messages", "table"])
def test_the_filters_filter_the_list_of_turns(open_page: Any, html: Path, at: str) -> None:
    page = open_page(html, at=at).page
    expect(turns(page).first).to_have_attribute("aria-setsize", str(TURNS))
    page.get_by_label("Turn, or turns").fill("40-44")
    expect(turns(page)).to_have_count(5)
    page.get_by_role("searchbox").fill("times 43")
    expect(turns(page)).to_have_count(1)
    expect(turns(page)).to_contain_text("Three times 43 → It is <i>129</i>.")
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(turns(page).first).to_have_attribute("aria-setsize", str(TURNS))
    page.get_by_role("button", name="Failures").click()
    expect(turns(page)).to_have_count(1)
    turns(page).click()
    expect(page.get_by_role("button", name="Failures")).to_have_attribute("aria-pressed", "true")


def test_the_list_of_turns_has_room_for_the_question_and_for_the_answer(open_page: Any, html: Path) -> None:
    shown = turns(open_page(html).page).first.locator(".summary > *")
    expect(shown).to_have_text(["Three times 1", " → It is <i>3</i>."], use_inner_text=True)
    widths = shown.evaluate_all("texts => texts.map((text) => text.clientWidth)")
    assert min(widths) > 70  # pixels: of each, enough is to be seen to tell the turns apart


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (400, "dark")])
def test_the_table_has_a_row_for_each_turn(open_page: Any, html: Path, width: int, scheme: str) -> None:
    watched = open_page(html, size=(width, 800), scheme=scheme)
    page = watched.page
    page.keyboard.press("4")
    expect(page.get_by_role("tab", name="Table")).to_have_attribute("aria-selected", "true")
    expect(rows(page).first).to_have_attribute("aria-setsize", str(TURNS))
    cells = rows(page).filter(has=page.get_by_text("Three times 12", exact=True)).locator("> *")
    expect(cells).to_have_text(
        ["12", "Three times 12", "It is <i>36</i>.", "answered", "0", re.compile("s$")]
    )
    page.get_by_role("searchbox").fill("times 7")
    expect(page.locator("#count")).to_contain_text("of 120 turns")
    failed = rows(page).filter(has=page.get_by_text("Three times 7", exact=True))
    expect(failed).to_contain_text("no <b>such</b> thing")
    expect(failed).to_contain_text("failed")
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Failures").click()
    expect(rows(page)).to_have_count(1)
    expect(page.locator("#count")).to_have_text("1 of 120 turns")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    watched.assert_calm()


def test_keys_lead_through_the_table_and_into_the_story(open_page: Any, html: Path) -> None:
    watched = open_page(html, at="tab=table")
    page = watched.page
    chosen = rows(page).and_(page.locator("[aria-selected=true]"))
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    expect(chosen).to_contain_text("It is <i>9</i>.")
    page.keyboard.press("k")
    expect(chosen).to_contain_text("It is <i>6</i>.")
    page.keyboard.press("End")
    expect(chosen).to_contain_text("It is <i>360</i>.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Story")).to_have_attribute("aria-selected", "true")
    expect(page).to_have_url(re.compile("#turn-120$"))
    page.keyboard.press("4")
    expect(chosen).to_contain_text("It is <i>360</i>.")
    page.get_by_label("Order of the turns").select_option("worst")
    expect(rows(page).and_(page.locator("[aria-posinset='1']"))).to_contain_text("Three times 7")
    watched.assert_calm()
