"""A real Chromium, and pages in it that tell what they were not to do."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest


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
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = os.environ.get("GRUE_CHROMIUM") or shutil.which("chromium")
    if executable is None:
        pytest.skip("no chromium on the path; name one by GRUE_CHROMIUM")
    # Chromium refuses to sandbox itself as root.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=args)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[OpenPage]:
    """Open a page's file, by default in a large light window; `at` is the part of the address after `#`."""
    contexts = []

    def opened(
        file: Path, *, at: str = "", size: tuple[int, int] = (1440, 860), scheme: str = "light"
    ) -> Watched:
        context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        address = file.as_uri()
        watched = Watched(page, [])
        _watch(watched, address)
        page.goto(f"{address}#{at}" if at else address)
        page.locator("html[data-ready]").wait_for()
        return watched

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def open_messages(open_page: OpenPage) -> OpenPage:
    """Open a page at its list of messages. A number in the address leads there anyway."""

    def opened(file: Path, *, at: str = "", **options: Any) -> Watched:
        return open_page(file, at=at if at.isdigit() else f"tab=messages&{at}", **options)

    return opened


def _watch(watched: Watched, address: str) -> None:
    page, deeds = watched

    def dismiss(dialog: Any) -> None:
        deeds.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def requested(request: Any) -> None:
        if request.url.partition("#")[0] != address:
            deeds.append(f"request: {request.url}")

    page.set_default_timeout(10_000)
    page.on("dialog", dismiss)
    page.on("request", requested)
    page.on("console", lambda message: deeds.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: deeds.append(f"error: {error}"))
    page.on("popup", lambda popup: deeds.append(f"popup: {popup.url}"))
