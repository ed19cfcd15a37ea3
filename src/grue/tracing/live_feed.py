"""`LiveFeed`: follows a growing trace, and gives a page the new messages in pieces.

One thread reads the trace as it grows and writes pieces to a temporary file. The server's threads read them
from there, so neither the length of the trace nor the number of pages costs memory.
"""

import tempfile
import threading
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import asdict

from grue.errors import TraceError
from grue.tracing.facts import EpisodeEnded
from grue.tracing.overview import Overview
from grue.tracing.page_feed import EpisodePage, PageFeed, Piece
from grue.tracing.page_media import ImageTable
from grue.tracing.page_turns import PageTurn
from grue.tracing.reading import EpisodeReader, open_episode

_MOST_ANSWER_BYTES = 8_000_000
"""An answer to a page has whole pieces up to about this size, and at least one."""
_POLL_S = 0.2


class _LivePiece(Piece, frozen=True, kw_only=True):
    """A piece of a trace that is under way: what the page shows of the episode changes with it."""

    turns: tuple[PageTurn, ...]
    actors: tuple[str, ...]
    overview: Overview


class LiveFeed:
    """Follows a trace file in a thread of its own; a context manager.

    Args:
        trace: The trace file, or the run folder that holds it.

    Attributes:
        reader: The trace's reader; pages use its header.

    Raises:
        TraceError: The file is missing, or is not a trace.
    """

    def __init__(self, trace: Path) -> None:
        self.reader: EpisodeReader = open_episode(trace)
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._image_spool = tempfile.TemporaryFile()  # noqa: SIM115 - likewise
        self._images = ImageTable(self._image_spool)
        self._feed = PageFeed(self._images)
        self._ends: list[int] = []
        self._ended = False  # for the thread that reads
        self._over = False  # for the pages: the end is in the last piece
        self._error = ""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="live-feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._spool.close()
        self._image_spool.close()

    def page(self, title: str = "") -> EpisodePage:
        """Return the data of a page before it has asked for anything."""
        header = self.reader.header
        return EpisodePage(
            title=title or f"Trace of {header.episode}", header=header, file=self.reader.path.name, live=True
        )

    def answer(self, first: int) -> bytes:
        """Return the pieces from a number on, as JSON: `next`, `over`, `error` and `pieces`.

        Raises:
            ValueError: There is no such number yet.
        """
        with self._lock:
            ends = self._ends
            if not 0 <= first <= len(ends):
                raise ValueError(f"there are {len(ends)} pieces")
            start = ends[first - 1] if first else 0
            last = first
            while last < len(ends) and (last == first or ends[last] - start <= _MOST_ANSWER_BYTES):
                last += 1
            self._spool.seek(start)
            written = self._spool.read((ends[last - 1] if last else 0) - start)
            state = {"next": last, "over": self._over and last == len(ends), "error": self._error}
        pieces = b",".join(written.splitlines())
        return msgspec.json.encode(state)[:-1] + b',"pieces":[' + pieces + b"]}"

    def image(self, name: str) -> tuple[str, bytes]:
        """Return an image's media type and its base64.

        Raises:
            KeyError: There is no such image.
        """
        with self._lock:
            return self._images.image(name)

    def _follow(self) -> None:
        def idle() -> bool:
            self._write_piece()
            return self._stopping.is_set()

        try:
            for envelope in self.reader.follow(idle, _POLL_S, over=lambda _: False):
                with self._lock:
                    self._feed.see(envelope)
                self._ended = isinstance(envelope.body, EpisodeEnded)
                if self._feed.due:
                    self._write_piece()
                if self._stopping.is_set():
                    return
        except TraceError as error:
            self._write_piece()
            self._error = str(error)

    def _write_piece(self) -> None:
        feed = self._feed
        turns = tuple(feed.turns())
        if not turns:
            return
        piece = _LivePiece(**asdict(feed.take()), turns=turns, actors=feed.actors, overview=feed.overview)
        line = msgspec.json.encode(piece) + b"\n"
        with self._lock:
            end = self._ends[-1] if self._ends else 0
            self._spool.seek(end)
            self._spool.write(line)
            self._ends.append(end + len(line))
            self._over = self._ended
