"""`grue trace html`: a trace, or two of them side by side, as one page for a browser."""

from pathlib import Path

from grue.cli.saying import say, say_page
from grue.tracing.comparison import write_comparison
from grue.tracing.reading import open_episode
from grue.tracing.viewer import write_html


def html(file: Path, out: Path | None, open_browser: bool) -> None:
    """Write the page, by default beside the trace, and say where it is; show it in a browser if asked to.

    Raises:
        TraceError: The trace cannot be read, or the page not be written.
    """
    page = out or open_episode(file).path.with_suffix(".html")
    write_html(file, page)
    say_page(page, open_browser)


def comparison(left: Path, right: Path, out: Path | None, open_browser: bool) -> None:
    """Write two traces side by side, by default beside the second one, and say where they first differ.

    Raises:
        TraceError: A trace cannot be read, or the page not be written.
    """
    page = out or open_episode(right).path.with_name("comparison.html")
    turn = write_comparison(left, right, page)
    say(f"The traces differ from turn {turn} on." if turn else "The traces are identical.")
    say_page(page, open_browser)
