"""`grue trace html`: a trace, or two of them side by side, as one page for a browser."""

import webbrowser
from pathlib import Path

from grue.cli.saying import say, shown_path
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
    _present(page, open_browser)


def comparison(left: Path, right: Path, out: Path | None, open_browser: bool) -> None:
    """Write two traces side by side, by default beside the second one, and say where they first differ.

    Raises:
        TraceError: A trace cannot be read, or the page not be written.
    """
    page = out or open_episode(right).path.with_name("comparison.html")
    turn = write_comparison(left, right, page)
    say(f"The traces differ from turn {turn} on." if turn else "The traces are identical.")
    _present(page, open_browser)


def _present(page: Path, open_browser: bool) -> None:
    say(f"Wrote {shown_path(page)}")
    if open_browser and not webbrowser.open(page.absolute().as_uri()):
        say("There is no browser to show it; open the file yourself.", err=True)
