"""A real Chromium, and pages in it that tell what they were not to do."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ALWAYS = (
    "test_the_page_shows_the_episode_and_asks_nobody_for_anything",
    "test_failures_only_leaves_what_went_wrong",
    "test_the_first_view_is_the_story_and_fits_the_window[1400-900-light]",
    "test_links_to_nasty_things_lead_to_messages_only",
    "test_the_policy_stops_what_the_escapes_would_let_through",
)
"""Tests of `make test`. All others are slow: a page of its own in a real browser takes a second of CPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.name not in ALWAYS:
            item.add_marker(pytest.mark.slow)


class Watched(NamedTuple):
    """A page, and what it did beside showing itself: requests, dialogs, console messages, errors."""

    page: Any
    deeds: list[str]

    def assert_calm(self) -> None:
        """Nothing was asked of the network, nothing popped up, nothing was complained of."""
        assert self.deeds == []


OpenPage = Callable[..., Watched]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for one module: while it is open, its event loop counts as running, and asyncio.run fails."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    executable = os.environ.get("GRUE_CHROMIUM") or shutil.which("chromium")
    if executable is None:
        pytest.skip("no chromium on the path: apt-get install chromium, or name one by GRUE_CHROMIUM")
    # Chromium refuses to sandbox itself as root.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=args)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def idle_pages(chromium: Any) -> list[Any]:
    """Empty pages, each in a context of its own. A new context costs a second of processor time."""
    return []


@pytest.fixture
def open_page(chromium: Any, idle_pages: list[Any]) -> Iterator[OpenPage]:
    """Open a page's file, by default in a large light window; `at` is the part of the address after `#`."""
    opened_here: list[tuple[Watched, dict[str, Any]]] = []

    def opened(
        file: Path, *, at: str = "", size: tuple[int, int] = (1440, 860), scheme: str = "light"
    ) -> Watched:
        page = idle_pages.pop() if idle_pages else chromium.new_context(reduced_motion="reduce").new_page()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=scheme)
        address = file.as_uri()
        watched = Watched(page, [])
        opened_here.append((watched, _watch(watched, address)))
        page.goto(f"{address}#{at}" if at else address)
        page.locator("html[data-ready]").wait_for()
        return watched

    yield opened
    for watched, listeners in opened_here:
        page = watched.page
        if watched.deeds or len(page.context.pages) > 1:
            page.context.close()
            continue
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.goto("about:blank")
        page.mouse.move(0, 0)
        idle_pages.append(page)


@pytest.fixture
def open_messages(open_page: OpenPage) -> OpenPage:
    """Open a page at its list of messages. A number in the address leads there anyway."""

    def opened(file: Path, *, at: str = "", **options: Any) -> Watched:
        return open_page(file, at=at if at.isdigit() else f"tab=messages&{at}", **options)

    return opened


HELD = """
const isShown = () => "shown" in document.documentElement.dataset;
const whenIdle = requestIdleCallback.bind(window);
window.held = [];
requestIdleCallback = (act, options) => isShown() ? held.push(act) : whenIdle(act, options);
release = () => { requestIdleCallback = (act) => setTimeout(act); held.forEach((act) => act()); };
let now = 0;
performance.now = () => isShown() ? (now += 20) : 0;  // each piece takes longer than a page may be busy
"""
"""The page waits for its first messages, however slow the browser is, and reads no more until `release`."""


@pytest.fixture
def held_page(chromium: Any) -> Any:
    with chromium.new_context(viewport={"width": 400, "height": 900}) as context:
        context.add_init_script(HELD)
        yield context.new_page()


def _watch(watched: Watched, address: str) -> dict[str, Any]:
    """Note what the page does; return the listeners by their events."""
    page, deeds = watched

    def dismiss(dialog: Any) -> None:
        deeds.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def requested(request: Any) -> None:
        if request.url.partition("#")[0] != address:
            deeds.append(f"request: {request.url}")

    page.set_default_timeout(10_000)
    listeners = {
        "dialog": dismiss,
        "request": requested,
        "console": lambda message: deeds.append(f"console: {message.text}"),
        "pageerror": lambda error: deeds.append(f"error: {error}"),
        "popup": lambda popup: deeds.append(f"popup: {popup.url}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    return listeners
