"""`grue trace serve`: a page that follows an episode, on this machine only."""

import threading
import webbrowser
from pathlib import Path

from grue.cli.saying import say, shown_path
from grue.tracing.live_feed import LiveFeed
from grue.tracing.live_server import serving


def serve(file: Path, port: int, open_browser: bool) -> None:
    """Serve the page until Ctrl-C.

    Raises:
        TraceError: The trace cannot be read.
        MCPConfigError: The port cannot be used.
    """
    with LiveFeed(file) as feed, serving(feed, port) as server:
        say(f"{shown_path(feed.reader.path)} is at {server.url}")
        say("Only this machine can reach it. Ctrl-C ends it.", err=True)
        if open_browser and not webbrowser.open(server.url):
            say("There is no browser to show it; open the address yourself.", err=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            say("Ended.", err=True)
