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
"""Pages that are looked at whole, in each scheme and width. The others: content only, in two of the four."""
CHOOSE = """scheme => document.querySelector(`input[data-md-color-scheme="${scheme}"]`).click()"""
LOOKS = ("color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size")
"""The rules whose result depends on the scheme or the width. The others are tried once on each page."""
SERIOUS = """async ([part, runOnly]) => {
  const options = {resultTypes: ["violations"], preload: false, iframes: false, ...(runOnly && {runOnly})};
  const {violations} = await axe.run(part, options);
  return violations
    .filter(({impact}) => ["serious", "critical"].includes(impact))
    .map(({id, nodes}) => ({id, nodes: nodes.slice(0, 3).map(({html}) => html.slice(0, 120))}));
}"""

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


@pytest.mark.skipif(not AXE.is_file(), reason="npm install --prefix FOLDER axe-core, and GRUE_AXE=FOLDER")
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(page: Any, site: str, name: str) -> None:
    found: dict[str, list[str]] = {}
    page.goto(f"{site}/{name}")
    page.add_script_tag(path=str(AXE))
    looks = itertools.product(SCHEMES, WIDTHS) if name in CLOSELY else zip(SCHEMES, WIDTHS, strict=True)
    for number, (scheme, width) in enumerate(looks):
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(CHOOSE, scheme)
        page.locator(f'body[data-md-color-scheme="{scheme}"]').wait_for(state="attached")
        rules = LOOKS if number and name not in CLOSELY else None
        for each in page.evaluate(SERIOUS, ["html" if name in CLOSELY else ".md-content", rules]):
            found[f"{scheme}, {width}: {each['id']}"] = each["nodes"]
    assert found == {}


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
