"""Model, tool, server and game text in the trace viewer: shown as text, whatever it is, and never run."""

from pathlib import Path
from typing import Any

import pytest
from viewer_traces import EpisodeTape, TurnTape, begin

from grue.hosts.zork.facts import Observed
from grue.messages import ServerNoted, ToolReturned
from grue.tracing.reading import read_episode
from grue.tracing.viewer import write_html

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)

MARK = "window.__pwned=1"
NASTY = (
    f"<script>{MARK}</script>",
    f"</script><script>{MARK}</script>",
    f"</SCRIPT ><ScRiPt>{MARK}</sCrIpT>",
    f"</script\n><script\n>{MARK}//",
    f"<!--<script>{MARK}//--></script>",
    f"<!-- <script> --> </script> <script>{MARK}</script>",
    f"]]></script><script>{MARK}</script>",
    f"<img src=x onerror={MARK}>",
    f'"><img src="http://pwned.invalid/x.png" onerror="{MARK}">',
    f"<svg onload={MARK}>",
    f"<svg><script>{MARK}</script></svg>",
    f"<svg><animate onbegin={MARK} attributeName=x dur=1s>",
    f"<iframe srcdoc='<script>parent.{MARK}</script>'></iframe>",
    '<iframe src="http://pwned.invalid/frame"></iframe>',
    f"<iframe src='javascript:parent.{MARK}'></iframe>",
    '<object data="http://pwned.invalid/object"></object>',
    '<embed src="http://pwned.invalid/embed">',
    '<link rel=stylesheet href="http://pwned.invalid/style.css">',
    '<link rel=prefetch href="http://pwned.invalid/prefetch">',
    "<style>@import 'http://pwned.invalid/import.css'; * { display: none }</style>",
    '<style>body { background: url("http://pwned.invalid/background.png") }</style>',
    '<base href="http://pwned.invalid/">',
    '<meta http-equiv=refresh content="0;url=http://pwned.invalid/refresh">',
    f"<meta http-equiv=refresh content='0;url=javascript:{MARK}'>",
    f'<form action="http://pwned.invalid/form"><input autofocus onfocus="{MARK}"></form>',
    f'<form><button formaction="javascript:{MARK}">press</button></form>',
    f'<a href="javascript:{MARK}">click</a>',
    f"javascript:{MARK}",
    f"data:text/html,<script>{MARK}</script>",
    f'<video><source onerror="{MARK}"></video>',
    f"<details open ontoggle={MARK}>open</details>",
    f"<body onload={MARK}>",
    f"<marquee onstart={MARK}>away</marquee>",
    f"<math><maction actiontype=statusline xlink:href=javascript:{MARK}>x</maction></math>",
    f"<template><script>{MARK}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={MARK}>'>",
    f"<textarea></textarea><script>{MARK}</script>",
    f"<title></title><script>{MARK}</script>",
    f"'-({MARK})-'",
    f'";{MARK};//',
    f"`${{{MARK}}}`",
    f"\\u003cscript\\u003e{MARK}\\u003c/script\\u003e",
    f"&lt;script&gt;{MARK}&lt;/script&gt;",
    f"{{{{constructor.constructor('{MARK}')()}}}}",
    f'{{"__proto__": {{"innerHTML": "<img src=x onerror={MARK}>"}}}}',
    f"\u2028{MARK}\u2029",
    f"\u202e>tpircs/<{MARK}>tpircs<\u202c",
    f"\x00<scr\x00ipt>{MARK}</scr\x00ipt>\x1b[2J\x1b]0;title\x07",
    "<x>" * 3000,
)
OUR_SCRIPTS = 5
"""Four of them are data: the episode, two pieces of its messages, the images."""

ATTRIBUTES_THAT_RUN = """
[...document.querySelectorAll("*")]
  .flatMap((one) => one.getAttributeNames())
  .filter((name) => /^on/.test(name))
"""
WALK = """() => {
  const seen = new Set();
  for (let before = -1; seen.size > before; ) {
    before = seen.size;
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "j", bubbles: true }));
    seen.add(document.getElementById("messages").getAttribute("aria-activedescendant"));
  }
  return String(seen.size + 1);
}"""
"""Choose each row after the first by the key for it, and return how many rows there are."""
RUN_ANYTHING = """async () => {
  const ways = [
    () => (document.body.innerHTML = "<b>markup</b>"),
    () => document.createElement("img").setAttribute("onerror", "window.__pwned = 1"),
    () => (document.createElement("script").textContent = "window.__pwned = 1"),
    () => fetch("http://pwned.invalid/"),
  ];
  const names = [];
  for (const way of ways) {
    try {
      await way();
      names.push("it worked");
    } catch (error) {
      names.push(error.name);
    }
  }
  return names;
}"""


def nasty_episode(path: Path) -> Path:
    """An episode in which everything that others wrote is nasty, and the episode's name is as well."""
    with EpisodeTape(path, episode=NASTY[1]) as tape:
        begin(tape)
        for text in NASTY:
            turn = TurnTape(tape, text=text, tool=text)
            turn.open()
            turn.ask(text, [text])
            turn.call(["ok", "error", "died"], content={text: text, "in a list": [text]})
            tape.say(ServerNoted(server=text, kind="log", text=text), "mind trace")
            turn.close(text, "forced")
    return path


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nasty")
    write_html(nasty_episode(folder / "trace.jsonl"), folder / "page.html", title=NASTY[2])
    return folder / "page.html"


def rows(page: Any) -> str:
    return str(page.locator("#messages [role=option]").first.get_attribute("aria-setsize"))


def assert_nothing_ran(watched: Any) -> None:
    page = watched.page
    assert page.evaluate("window.__pwned") is None
    assert page.evaluate("document.scripts.length") == OUR_SCRIPTS
    foreign = "img, iframe, object, embed, video, link, base, template, marquee, meta[http-equiv=refresh]"
    assert page.locator(foreign).count() == 0
    assert page.evaluate(ATTRIBUTES_THAT_RUN) == []
    watched.assert_calm()


@pytest.mark.slow
def test_nothing_that_others_wrote_runs_wherever_it_is_shown(open_messages: Any, html: Path) -> None:
    watched = open_messages(html)
    page = watched.page
    assert page.title() == NASTY[2]
    assert len(NASTY) >= 40
    page.keyboard.press("Home")
    assert page.evaluate(WALK) == rows(page)
    page.get_by_label("Kind of message").select_option("ToolReturned")
    page.locator("#messages").focus()
    page.keyboard.press("Home")
    page.keyboard.press("x")
    assert page.evaluate(WALK) == rows(page)
    assert_nothing_ran(watched)


@pytest.mark.slow
def test_links_to_nasty_things_lead_to_messages_only(open_messages: Any, html: Path) -> None:
    watched = open_messages(html, at="turn-1")
    page = watched.page
    for _ in range(5):
        page.keyboard.press("n")
        hrefs = page.locator("a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
        assert hrefs
        assert all(href.startswith("#") for href in hrefs)
    assert_nothing_ran(watched)


def test_a_nasty_search_and_address_do_nothing(open_messages: Any, html: Path) -> None:
    watched = open_messages(html, at="<img src=x onerror=window.__pwned=1>")
    page = watched.page
    for text in NASTY[:8]:
        if "\n" in text:
            continue  # no field for a line of text takes it
        page.get_by_role("searchbox").fill(text)
        assert page.locator("#messages .message").count() > 0
    assert_nothing_ran(watched)


def test_the_text_is_shown_as_it_was_sent(open_messages: Any, html: Path) -> None:
    trace = read_episode(html.with_name("trace.jsonl"))
    observed = [envelope.seq for envelope in trace.envelopes if isinstance(envelope.body, Observed)]
    returned = [envelope.seq for envelope in trace.envelopes if isinstance(envelope.body, ToolReturned)]
    page = open_messages(html).page
    for at in (0, 7, 12):
        page.evaluate(f"location.hash = '#{observed[at]}'")
        sync_api.expect(page.locator(".json")).to_contain_text(NASTY[at].replace('"', '\\"'))
    page.evaluate(f"location.hash = '#{returned[0]}'")
    sync_api.expect(page.locator(".json .key").filter(has_text=NASTY[0])).to_have_count(1)


@pytest.mark.slow
def test_the_policy_stops_what_the_escapes_would_let_through(open_messages: Any, html: Path) -> None:
    page = open_messages(html).page
    assert page.evaluate(RUN_ANYTHING) == ["TypeError", "TypeError", "TypeError", "TypeError"]
    assert page.evaluate("window.__pwned") is None
    assert page.url.startswith("file:")
