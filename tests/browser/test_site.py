"""The documentation in a real Chromium: axe finds nothing serious, and the keyboard finds an error."""

import itertools
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
AXE = Path(os.environ.get("GRUE_AXE", "")) / "node_modules" / "axe-core" / "axe.min.js"
PAGES = sorted(str(each.relative_to(SITE)) for each in SITE.glob("**/*.html") if "traces" not in each.parts)
"""All but the example trace, which is a page of the viewer: its own tests look at it."""
SCHEMES, WIDTHS = ("default", "slate"), (1440, 390)
CLOSELY = ("404.html", "index.html", "concepts.html", "start.html", "errors.html", "guides/answers.html")
"""Pages that are looked at whole, in each scheme and width. Of the others what is new, in two of the four."""
OTHERS = [name for name in PAGES if name not in CLOSELY]
CHOOSE = """scheme => document.querySelector(`input[data-md-color-scheme="${scheme}"]`).click()"""
SCROLLS = "scrollable-region-focusable"
REACHED = ("<table>", "<code>")
"""What the site's scripts let the keyboard reach, as the whole pages show. Nothing else may scroll."""
LOOKS = ("color-contrast", "link-in-text-block", SCROLLS, "target-size")
"""The rules whose result depends on the scheme or the width. The others are tried once on each page."""
SERIOUS = """async ([part, runOnly]) => {
  const options = {resultTypes: ["violations"], preload: false, iframes: false, ...(runOnly && {runOnly})};
  const {violations} = await axe.run(part, options);
  return violations
    .filter(({impact}) => ["serious", "critical"].includes(impact))
    .map(({id, nodes}) => ({id, nodes: nodes.map(({html}) => html.slice(0, 120))}));
}"""

SHOW_NEW = """html => {
  const hash = text => [...text].reduce(([a, b], c) => [Math.imul(a ^ c.charCodeAt(), 2654435761) >>> 0,
    Math.imul(b ^ c.charCodeAt(), 1597334677) >>> 0], [9, 7]).join("-");
  const label = ({tagName, className, attributes}) =>
    `${tagName}.${className}` + [...attributes].map(({name, value}) => value ? name : `${name}=""`).sort();
  const shape = node => node.nodeType === Node.TEXT_NODE ? (node.data.trim() ? "text" : "")
    : node.nodeType !== Node.ELEMENT_NODE ? ""
    : hash(label(node) + [...new Set([...node.childNodes].map(shape))].sort());
  const leaveNew = (parent, path) => [...parent.children].forEach(node => {
    if (!node.matches("td, th, dt, dd, :is(p, h1, h2, h3, h4, h5, h6, summary) *")) {
      const key = hash(path + shape(node));
      if (known.has(key)) return node.remove();
      known.add(key);
    }
    leaveNew(node, `${path} ${node.tagName}.${node.className}`);
  });
  window.known ??= new Set();
  const content = new DOMParser().parseFromString(html, "text/html").querySelector(".md-content");
  leaveNew(content, "");
  document.querySelector(".md-content").replaceWith(document.adoptNode(content));
  document.querySelectorAll(".md-header, .md-tabs, .md-sidebar, .md-footer").forEach(node => node.remove());
  return content.querySelectorAll("*").length;
}"""
"""Show the content of a page, without what an earlier page had: the same elements at the same place.

All pages come from the same templates. What is alike is looked at on the first page that has it.
"""

pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="the site is not built: make docs")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The site's address: its search and the page for what is not found need a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def page(chromium: Any) -> Iterator[Any]:
    """One page of one browser for all: a new one for each would take longer than what is looked for."""
    with chromium.new_context(bypass_csp=True, reduced_motion="reduce") as context:
        # Each page would read the whole index for its search, for half a second of CPU.
        context.route("**/search_index.json", lambda route: route.abort())
        yield context.new_page()


@pytest.fixture(scope="module")
def content_page(page: Any, site: str) -> Any:
    """A page of the site, with axe, in which `SHOW_NEW` shows the contents of others."""
    page.goto(f"{site}/{CLOSELY[1]}")
    page.add_script_tag(path=str(AXE))
    return page


def serious(page: Any, part: str, rules: tuple[str, ...] | None = None) -> dict[str, list[str]]:
    """Return what axe finds in a part of a page; by default by all rules."""
    return {each["id"]: each["nodes"] for each in page.evaluate(SERIOUS, [part, rules])}


needs_axe = pytest.mark.skipif(
    not AXE.is_file(), reason="npm install --prefix FOLDER axe-core, and GRUE_AXE=FOLDER"
)


@needs_axe
@pytest.mark.parametrize("name", CLOSELY)
def test_axe_finds_nothing_serious(page: Any, site: str, name: str) -> None:
    page.goto(f"{site}/{name}")
    page.add_script_tag(path=str(AXE))
    for scheme, width in itertools.product(SCHEMES, WIDTHS):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(CHOOSE, scheme)
        page.locator(f'body[data-md-color-scheme="{scheme}"]').wait_for(state="attached")
        assert serious(page, "html") == {}, (scheme, width)


@needs_axe
@pytest.mark.parametrize("name", OTHERS)
def test_axe_finds_nothing_serious_in_what_is_new(content_page: Any, name: str) -> None:
    if not content_page.evaluate(SHOW_NEW, (SITE / name).read_text(encoding="utf-8")):
        return
    for number, (scheme, width) in enumerate(zip(SCHEMES, WIDTHS, strict=True)):
        content_page.set_viewport_size({"width": width, "height": 900})
        content_page.evaluate("scheme => document.body.dataset.mdColorScheme = scheme", scheme)
        found = serious(content_page, ".md-content", LOOKS if number else None)
        assert all(region.startswith(REACHED) for region in found.pop(SCROLLS, ())), (scheme, width)
        assert found == {}, (scheme, width)


def test_an_error_is_found_with_the_keyboard_alone(chromium: Any, site: str) -> None:
    with chromium.new_context() as context:
        page = context.new_page()
        page.goto(f"{site}/index.html")
        page.keyboard.press("/")
        page.keyboard.type("ConversationParked")
        page.locator(".md-search-result__link").first.wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url(f"{site}/errors.html*")
