"""How soon the viewer's page of a long trace can be read, in Chromium and from a file.

    python benchmarks/first_paint.py [TURNS]        default: 4,760 turns, 100,000 messages

Loads the page four times: twice in a window 1400 pixels wide, twice in one of 400. For each load it prints
the time of the first paint, the time when the first screen of the story is usable, the time when the page has
read the whole trace and can search it, the processor time of the page's process until each of the last two,
and the number of elements in the page. On a busy machine the processor times are more reliable. Playwright
must be installed. The browser is `chromium` on the path, or the program that GRUE_CHROMIUM names.
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
WIDTHS = (1400, 1400, 400, 400)
WAIT = """(mark) => new Promise((done) => {
  const painted = () => requestAnimationFrame(() => setTimeout(() => done(performance.now())));
  const look = () => (document.documentElement.dataset[mark] ? painted() : setTimeout(look, 5));
  look();
})"""
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
            for width in WIDTHS:
                with browser.new_page(viewport={"width": width, "height": 900}) as page:
                    print(f"{width} px, {measured(page, html)}")


def measured(page: Page, html: Path) -> str:
    """Load the page, and return the measurements as a line of text."""
    page.goto(html.as_uri(), wait_until="commit")
    shown = f"{page.evaluate(WAIT, 'shown'):.0f} ms ({_busy_s():.2f} s of processor time)"
    ready = f"{page.evaluate(WAIT, 'ready'):.0f} ms ({_busy_s():.2f} s)"
    paint = page.evaluate(PAINT)
    elements = page.evaluate("document.querySelectorAll('*').length")
    messages = page.locator("html").get_attribute("data-ready")
    times = f"first paint {paint:.0f} ms, first screen {shown}, all read {ready}"
    return f"{messages} messages: {times}, {elements} elements"


def _busy_s() -> float:
    return max(sum(process.cpu_times()[:2]) for process in _renderers())


def _renderers() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "--type=renderer" in process.cmdline():
                yield process


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)
