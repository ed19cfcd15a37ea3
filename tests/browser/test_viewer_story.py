"""The viewer's story in a real browser: an episode as one reads it, and the ways to and from it."""

import re
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace
from story_traces import full_story
from transport_servers import faulty
from viewer_traces import EpisodeTape, TurnTape, begin, long_episode

from grue import LlmSettings, RetryPolicy, Runner, StdioServer
from grue.errors import LLMError
from grue.hosts.zork.facts import Observed
from grue.messages import (
    CompletionReceived,
    ConversationId,
    DropCompletion,
    HistoryReference,
    OfferTools,
    ReplyDropped,
    RequestCompletion,
    Resumption,
    RewriteHistory,
    RunTurn,
    Shortened,
    ToolMessage,
    TurnParked,
    UserText,
)
from grue.protocol.context.history import LEFT_OUT
from grue.testing.llm_server import ScriptedLlmServer, tool_calls_reply
from grue.tracing.facts import EpisodeEnded
from grue.tracing.viewer import write_html

pytestmark = pytest.mark.made_up_trace

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = sync_api.expect

SIZES = ((1400, 900, "light"), (400, 800, "dark"))


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("story")
    write_html(full_story(folder / "trace.jsonl"), folder / "page.html", title="A story")
    return folder / "page.html"


def passages(page: Any) -> Any:
    return page.get_by_role("feed", name="Story").get_by_role("article")


def texts(page: Any, kind: str) -> list[str]:
    return [" ".join(each.split()) for each in page.locator(f".passage.{kind}").all_inner_texts()]


def request_view(page: Any) -> Any:
    return page.get_by_role("dialog").filter(has=page.locator("#request-title"))


def test_a_call_says_how_much_of_its_result_the_model_was_shown(open_page: Any, tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        turn = TurnTape(tape)
        turn.open()
        turn.ask(None, ["1-0"])
        turn.call(["ok"])
        cut = ToolMessage("c1-1-0", "a thou… [cut]", whole_chars=20_418)
        request = RequestCompletion(conversation="turn", request=2, new=(cut,), mode=OfferTools())
        tape.say(request, "agent llm")
        turn.ask("Done.")
    write_html(tmp_path / "trace.jsonl", tmp_path / "page.html", title="A cut")
    page = open_page(tmp_path / "page.html").page
    expect(passages(page).filter(has_text="13 of 20,418 characters shown to the model")).to_have_count(1)
    expect(page.get_by_role("article", name="The episode")).to_contain_text("Look at Turn 1")


def record(path: Path, llm: LlmSettings, servers: dict[str, StdioServer]) -> None:
    """Record a turn. In a thread, because the browser's event loop runs in this one."""

    def run() -> None:
        with Runner(llm=llm, servers=servers, trace=path) as runner, suppress(LLMError):
            runner.run_turn("How much?")

    thread = Thread(target=run)
    thread.start()
    thread.join()


def test_a_server_that_died_is_counted_once_and_its_last_words_are_in_view(
    open_page: Any, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    script = [tool_calls_reply(("faulty.echo", {"text": "a"})), "I cannot know."]
    server = faulty("--exit-at", "call", "--stderr", "no table: prices")
    with ScriptedLlmServer(script) as llm:
        record(path, llm.settings, {"faulty": server})
    write_html(path, tmp_path / "page.html")
    page = open_page(tmp_path / "page.html").page
    expect(page.locator(".passage.call summary")).to_contain_text("Its last line on stderr: no table: prices")
    turn = page.locator(".story-turn .badge").all_inner_texts()
    assert [each for each in turn if "died" in each] == ["died"]
    card = page.get_by_role("article", name="The episode")
    expect(card).to_contain_text(f"{llm.settings.model} at {llm.base_url}")


def test_an_endpoint_that_was_not_reached_is_named_with_its_model(open_page: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with ScriptedLlmServer([]) as gone:
        url = gone.base_url
    llm = LlmSettings(base_url=url, model="small", retry=RetryPolicy(max_retries=0))
    record(path, llm, {})
    write_html(path, tmp_path / "page.html")
    page = open_page(tmp_path / "page.html").page
    (reply,) = texts(page, "reply")
    assert reply.startswith(f"small {url} ")
    expect(page.get_by_role("article", name="The episode")).to_contain_text(f"small at {url}")


@pytest.mark.parametrize(("width", "height", "scheme"), SIZES)
@pytest.mark.slow
def test_the_first_view_is_the_story_and_fits_the_window(
    open_page: Any, html: Path, width: int, height: int, scheme: str
) -> None:
    watched = open_page(html, size=(width, height), scheme=scheme)
    page = watched.page
    expect(page.get_by_role("tab", name="Story")).to_have_attribute("aria-selected", "true")
    card = page.get_by_role("article", name="The episode")
    expect(card).to_contain_text("done")
    expect(card).to_contain_text("m-1 (6 replies)")
    expect(card).to_contain_text("7,200 in, 204 out")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.getElementById('passages').scrollWidth") <= width
    watched.assert_calm()


def test_a_turn_reads_from_what_was_shown_to_what_was_decided(open_page: Any, html: Path) -> None:
    page = open_page(html, at="turn-1", size=(1400, 2000)).page
    kinds = page.locator(".passage").evaluate_all("all => all.slice(0, 8).map(one => one.className)")
    assert [kind.split()[1] for kind in kinds[1:]] == [
        "fact", "prompt", "reply", "note", "call", "reply", "end",
    ]  # fmt: skip
    assert "You stand in a hall. **A lamp** burns." in texts(page, "fact")[1]
    assert "The whole prompt" in texts(page, "prompt")[0]  # the fact has shown the text
    said = texts(page, "reply")[0]
    assert said.index("I wonder what is here.") < said.index("Let me look.")
    assert "5 pieces, the first after 100.0 ms, 1 attempt dropped" in said
    # JSON that the model writes is a tree, not a text.
    names = page.locator(".passage.reply").nth(1).locator(".tree dt").all_inner_texts()
    assert names == ["action", "why"]
    expect(page.locator(".headline").first).to_have_text("take lamp")


STILL_READING = """
window.reading = true;
const { get } = Object.getOwnPropertyDescriptor(Document.prototype, "readyState");
Object.defineProperty(document, "readyState", { get: () => window.reading ? "loading" : get.call(document) });
done = () => { window.reading = false; document.dispatchEvent(new Event("DOMContentLoaded")); };
"""
"""The browser says that it still reads the page, until `done`."""


def test_an_image_is_shown_as_soon_as_the_page_has_it(chromium: Any, html: Path) -> None:
    with chromium.new_context(viewport={"width": 1400, "height": 2000}) as context:
        context.add_init_script(STILL_READING)
        page = context.new_page()
        page.goto(f"{html.as_uri()}#turn-1")
        call = page.locator(".passage.call").first
        expect(call).to_contain_text("A brass lamp.")
        expect(call).not_to_contain_text("An image, which is not in this page.")
        assert call.locator("img.picture").count() == 0
        page.evaluate("done()")
        page.locator("html[data-ready]").wait_for()
        picture = call.locator("img.picture")
        expect(picture).to_be_visible()
        assert picture.evaluate("image => image.naturalWidth") == 24


def test_a_call_is_folded_and_holds_arguments_approval_result_and_image(open_page: Any, html: Path) -> None:
    watched = open_page(html, at="turn-1", size=(1400, 2000))
    call = watched.page.locator(".passage.call").first
    for text in ("place", "hall", "c1 approve", "A brass lamp."):
        expect(call).to_contain_text(text)
    picture = call.get_by_role("img")
    expect(picture).to_be_visible()  # a call with an image is open
    assert picture.evaluate("image => image.naturalWidth") == 24
    second = watched.page.locator(".passage.call").nth(1)
    expect(second.locator("summary")).to_contain_text("too dark")
    expect(second.get_by_text("Result")).to_be_hidden()
    second.locator("summary").first.click()
    expect(second.get_by_text("Result")).to_be_visible()
    expect(second.get_by_text("Arguments, as the model wrote them")).to_be_visible()
    watched.assert_calm()


def test_what_was_taken_back_of_a_streamed_reply_is_struck_out(open_page: Any, html: Path) -> None:
    page = open_page(html, at="turn-1", size=(1400, 2000)).page
    reply = page.locator(".passage.reply").first
    reply.locator("summary", has_text="As it was streamed").click()
    expect(reply.locator(".dropped.streamed")).to_have_text("A false start")
    expect(reply.locator(".streamed").nth(1)).to_have_text("I wonderLet me look.")


def test_a_request_is_shown_as_it_was_sent(open_page: Any, html: Path) -> None:
    page = open_page(html, at="turn-1", size=(1400, 2000)).page
    page.locator(".passage.reply").nth(1).get_by_role("link", name="Request as sent").click()
    view = request_view(page)
    roles = view.locator(".talk b:first-child").all_inner_texts()
    assert [role for role in roles if role in ("system", "user", "assistant", "tool")] == [
        "system", "user", "assistant", "tool",
    ]  # fmt: skip
    expect(view.locator(".talk").last).to_contain_text("new")
    expect(view.get_by_role("heading", name="Answer: Move")).to_be_visible()
    expect(view.get_by_role("img")).to_be_visible()
    expect(page).to_have_url(re.compile(r"request=\d+"))
    page.keyboard.press("Escape")
    expect(view).to_be_hidden()


def test_a_later_request_has_the_history_with_its_rewrites(open_page: Any, html: Path) -> None:
    page = open_page(html, at="turn-3", size=(1400, 1200)).page
    for key in ("j", "j", "j", "j", "r"):
        page.keyboard.press(key)
    view = request_view(page)
    expect(view.locator("#request-title")).to_contain_text("Request 1 of turn 3")
    expect(view).to_contain_text("(shorter)")
    expect(view).to_contain_text("inserted")
    expect(view.locator(".badge", has_text="rewritten")).to_have_count(3)
    expect(view).to_contain_text("too dark")  # what turn 2 was told
    expect(view).not_to_contain_text("What would you do?")  # the server's own question
    expect(view.locator(".talk").last).to_contain_text("And then?")


def test_a_request_has_neither_what_was_left_out_nor_a_dropped_reply(open_page: Any, tmp_path: Path) -> None:
    talk = ConversationId("turn-1")
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.turn = 1
        tape.say(RunTurn(turn=1, system="", user="the first text"), "host agent")
        for number, (text, reply) in enumerate((("first", "one"), ("second", "two"), ("third", "gone")), 1):
            request = RequestCompletion(
                conversation=talk, request=number, new=(UserText(f"the {text} text"),), mode=OfferTools()
            )
            asked = tape.say(request, "agent llm")
            came = CompletionReceived(request=number, content=f"the reply {reply}", finish_reason="stop")
            tape.say(came, "llm agent", cause=asked)
        dropped = DropCompletion(conversation=talk, request=3, reason="other tools")
        tape.say(ReplyDropped(request=3), "llm agent", cause=tape.say(dropped, "agent llm"))
        tape.say(RewriteHistory(conversation=talk, change=Shortened(0.9), reason="window"), "agent llm")
        last = RequestCompletion(
            conversation=talk, request=4, new=(UserText("the last text"),), mode=OfferTools()
        )
        tape.say(last, "agent llm")
    write_html(tmp_path / "trace.jsonl", tmp_path / "page.html")
    view = request_view(open_page(tmp_path / "page.html", at="request=11").page)
    said = [" ".join(each.split()) for each in view.locator(".talk").all_inner_texts()]
    shown = (
        "the first text", LEFT_OUT, "the second text", "the reply two", "the third text", "the last text"
    )  # fmt: skip
    assert len(said) == len(shown)
    assert all(text in each for text, each in zip(shown, said, strict=True))


def test_a_request_of_a_resumed_turn_has_what_was_said_before_it_was_parked(
    open_page: Any, tmp_path: Path
) -> None:
    talk = ConversationId("talk")
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        tape.turn = 1
        run = RunTurn(
            turn=1, system="", user="x", history=HistoryReference(conversation=talk, length=0, digest="")
        )
        begun = tape.say(run, "host agent")
        for number, text in enumerate(("before", "after"), 1):
            request = RequestCompletion(
                conversation=talk, request=number, new=(UserText(text),), mode=OfferTools()
            )
            asked = tape.say(request, "agent llm")
            if number == 1:
                tape.say(CompletionReceived(request=1, content="the reply"), "llm agent", cause=asked)
                tape.say(parked := TurnParked(turn=1), "agent host", cause=begun)
                tape.say(replace(run, resumed=Resumption(parked=parked)), "host agent")
    write_html(tmp_path / "trace.jsonl", tmp_path / "page.html")
    view = request_view(open_page(tmp_path / "page.html", at="request=6").page)
    assert [" ".join(each.split()) for each in view.locator(".talk").all_inner_texts()] == [
        "user #2 before",
        "assistant #3 the reply",
        "user new #6 after",
    ]


def test_parked_turns_sampling_and_rewrites_are_told(open_page: Any, html: Path) -> None:
    page = open_page(html, at="turn-2", size=(1400, 2400)).page
    expect(page.locator(".passage.end", has_text="parked")).to_have_count(1)
    expect(page.locator(".passage.note", has_text="Turn resumed")).to_have_count(1)
    sampled = page.locator(".passage.reply.depth-1")
    expect(sampled).to_contain_text("Go up.")
    page.keyboard.press("n")
    expect(page.locator(".passage.note", has_text="History rewritten")).to_contain_text("it was too long")
    expect(page.locator(".passage.note", has_text="Rewrite history")).to_have_count(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "tab", "shown"),
    [
        ("turn-2", "Story", "And now?"),
        ("12", "Messages", "CompletionReceived"),
        ("q=brass", "Story", "A brass lamp."),
        ("tab=messages&q=and+an+image", "Messages", "in new.0.content:"),
        ("turn-3&failures=1", "Story", "it was too long"),
        ("plot=output%20tokens", "Plot", "tokens from the model"),
        ("passage=12.0", "Story", "mind.look"),
        ("request=4", "Story", "Tools on offer"),
    ],
)
def test_an_address_brings_back_what_was_shown(
    open_page: Any, html: Path, at: str, tab: str, shown: str
) -> None:
    watched = open_page(html, at=at)
    page = watched.page
    expect(page.locator(f"#tab-{tab.lower()}")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text(shown, exact=False).locator("visible=true").first).to_be_visible()
    watched.assert_calm()


def test_the_address_follows_search_and_tab(open_page: Any, html: Path) -> None:
    page = open_page(html).page
    page.get_by_role("searchbox").fill("brass")
    expect(page).to_have_url(re.compile(r"#.*q=brass$"))
    expect(page.locator("#count")).to_have_text("2 of 25 passages")
    assert page.evaluate("CSS.highlights.get('found').size") > 0
    page.get_by_role("tab", name="Messages").click()
    expect(page).to_have_url(re.compile(r"tab=messages&q=brass$"))
    page.get_by_role("tab", name="Plot").click()
    expect(page).to_have_url(re.compile(r"#plot=[^&]+&q=brass$"))


def test_every_way_is_open_to_the_keyboard(open_page: Any, html: Path) -> None:
    page = open_page(html).page
    press, current = page.keyboard.press, page.locator("#passages [aria-current]")
    expect(page.get_by_role("feed")).to_be_focused()
    press("n")
    press("n")
    expect(current).to_have_attribute("aria-label", "Turn 2")
    press("j")
    expect(current).to_contain_text("And now?")
    press("Enter")  # unfolds
    expect(current.get_by_text("Play.")).to_be_visible()
    press("j")
    press("m")
    expect(page.get_by_role("tab", name="Messages")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#detail-title")).to_contain_text("RequestCompletion")
    press("m")
    expect(current).to_contain_text("1,200 → 34 tokens")
    press("3")
    press("ArrowRight")
    expect(page.locator("#reading")).to_contain_text("Turn 2")
    press("Enter")
    expect(current).to_have_attribute("aria-label", "Turn 2")
    press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


@pytest.mark.slow
def test_a_long_episode_has_only_what_is_near_in_the_page(open_page: Any, tmp_path: Path) -> None:
    write_html(long_episode(tmp_path / "trace.jsonl", 400), tmp_path / "page.html")
    watched = open_page(tmp_path / "page.html")
    page, current = watched.page, watched.page.locator("#passages [aria-current]")
    page.keyboard.press("End")
    expect(current).to_contain_text("Decided")
    expect(current).to_be_in_viewport()
    page.evaluate("location.hash = '#turn-200'")
    expect(current).to_have_attribute("aria-label", "Turn 200")
    expect(current).to_be_in_viewport()
    page.keyboard.press("n")
    expect(current).to_have_attribute("aria-label", "Turn 201")
    assert page.evaluate("document.querySelectorAll('*').length") < 2500
    watched.assert_calm()


@pytest.mark.parametrize("last", [3, 2**53 + 2])
def test_the_score_is_plotted_over_the_turns(open_page: Any, tmp_path: Path, last: int) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        for turn, score in enumerate((0, 5, 25), start=last - 2):
            tape.turn = turn
            tape.say(Observed(turn=turn, text="A hall.", score=score))
            tape.say(RunTurn(turn=turn, system="Play.", user="A hall."), "host agent")
        tape.say(EpisodeEnded(reason="done", detail="", turns=3))
    write_html(tmp_path / "trace.jsonl", tmp_path / "page.html")
    page = open_page(tmp_path / "page.html", at="tab=plot").page
    expect(page.get_by_role("heading", name="score, from Observed")).to_be_visible()
    page.locator("svg.plot").focus()
    page.keyboard.press("End")
    expect(page.locator("#reading")).to_have_text(f"Turn {last} score 25 · A hall.")


def test_passages_that_unfold_do_not_move_what_is_above(open_page: Any, html: Path) -> None:
    page = open_page(html, at="turn-2").page
    head = page.get_by_role("article", name="Turn 2")
    before = head.bounding_box()["y"]
    page.locator(".passage.call", has_text="too dark").locator("summary").first.click()
    page.locator(".passage.prompt", has_text="And now?").locator("summary").first.click()
    expect(page.locator(".passage.prompt", has_text="And now?").get_by_text("Play.")).to_be_visible()
    assert abs(head.bounding_box()["y"] - before) < 2


def test_markdown_is_drawn_and_markup_in_it_stays_text(open_page: Any, tmp_path: Path) -> None:
    with EpisodeTape(tmp_path / "trace.jsonl") as tape:
        begin(tape)
        turn = TurnTape(tape)
        turn.open()
        turn.ask("# Plan\nGo **north**, say `hi`:\n```html\n<img src=x onerror=alert(1)>\n```\n2 * 3 * 4")
        turn.close()
    write_html(tmp_path / "trace.jsonl", tmp_path / "page.html")
    watched = open_page(tmp_path / "page.html", at="turn-1")
    said = watched.page.locator(".passage.reply .said")
    expect(said.locator("b")).to_have_text(["# Plan", "north"])
    expect(said.locator("code")).to_have_text(["hi", "<img src=x onerror=alert(1)>"])
    expect(said).to_contain_text("2 * 3 * 4")
    watched.assert_calm()


def test_all_images_are_a_link_away_and_a_story_is_printed_whole(open_page: Any, html: Path) -> None:
    page = open_page(html).page
    page.get_by_role("link", name="show 1 image").click()
    expect(page.locator("#count")).to_contain_text(" of 25 passages")
    expect(page.locator("#passages").get_by_role("img").first).to_be_visible()
    page.get_by_role("button", name="Clear", exact=True).click()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".passage").count() == 25
    page.evaluate("dispatchEvent(new Event('afterprint'))")
