"""How soon the viewer's page of a long trace shows something: in Chromium, from a file.

    python benchmarks/first_paint.py [TURNS]        default: 4,760 turns, 100,000 messages

Prints for each of three loads: the first paint, the moment at which the story can be read and used, the
processor time that the page's process took until then, and how many elements are in the page. On a busy
machine the processor time says more. Playwright must be installed. The browser is `chromium` on the path, or
the program that GRUE_CHROMIUM names.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from playwright.sync_api import Page, sync_playwright

from grue.tracing.viewer import write_html

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

TURNS = 4760
LOADS = 3
READY = """() => new Promise((done) => {
  const look = () => (document.documentElement.dataset.ready ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 5));
  look();
})"""  # noqa: E501
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def main(turns: int) -> None:
    """Write a long trace and its page, and load it."""
    from viewer_traces import long_episode

    with tempfile.TemporaryDirectory() as folder:
        trace, html = Path(folder, "trace.jsonl"), Path(folder, "page.html")
        long_episode(trace, turns)
        began = time.perf_counter()
        write_html(trace, html)
        print(f"written in {time.perf_counter() - began:.1f} s, {html.stat().st_size / 1e6:.0f} MB")
        executable = os.environ.get("GRUE_CHROMIUM") or shutil.which("chromium")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        with (
            sync_playwright() as playwright,
            playwright.chromium.launch(executable_path=executable, args=sandbox) as browser,
        ):
            for _ in range(LOADS):
                with browser.new_page(viewport={"width": 1400, "height": 900}) as page:
                    print(measured(page, html))


def measured(page: Page, html: Path) -> str:
    """Load the page and return what was measured, in a line."""
    page.goto(html.as_uri(), wait_until="commit")
    ready = page.evaluate(READY)
    paint = page.evaluate(PAINT)
    busy = max(sum(process.cpu_times()[:2]) for process in _renderers())
    elements = page.evaluate("document.querySelectorAll('*').length")
    messages = page.locator("html").get_attribute("data-ready")
    times = f"first paint {paint:.0f} ms, story {ready:.0f} ms ({busy:.2f} s of processor time)"
    return f"{messages} messages: {times}, {elements} elements"


def _renderers() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "--type=renderer" in process.cmdline():
                yield process


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)
