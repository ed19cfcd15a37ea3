"""The server of a page that follows a growing trace, for `grue trace serve`.

Only this machine can reach the server. The path of the page begins with a random word, because other users of
the machine can reach the port. The `Host` header must name this server, so that a page of another site whose
name points to this machine (DNS rebinding) gets nothing. The only file that the server changes is the mark
that a person gives the episode (`marks.py`). It accepts marks only from its own page.
"""

import base64
import contextlib
import hmac
import math
import secrets
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from grue.errors import MCPConfigError, TraceError
from grue.runtime.files import os_cause
from grue.runtime.safe_text import printable
from grue.tracing.marks import HUMAN, MOST_REASON, Mark, place_of_marks, read_marks, write_mark
from grue.tracing.page_feed import EpisodePage, PageFeed
from grue.tracing.page_file import ImageTable, embedded, page_parts
from grue.tracing.reading import EpisodeReader, has_ended, open_episode
from grue.tracing.viewer import SCRIPTS, STYLE

_MOST_ANSWER_BYTES = 8_000_000  # the most bytes of pieces in one answer, unless a single piece is larger
_POLL_S = 0.2


class LiveFeed:
    """A context manager whose thread follows a growing trace, and writes pieces for the page to a file."""

    def __init__(self, trace: Path) -> None:
        self.reader: EpisodeReader = open_episode(trace)
        # Unbuffered: else a full disk would be noticed only by `answer`, and each time again.
        self._spool = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by __exit__
        self._image_spool = tempfile.TemporaryFile()  # noqa: SIM115 - likewise
        self._images = ImageTable(self._image_spool)
        self._feed = PageFeed(self._images)
        self._ends: list[int] = []
        self._ended = False  # whether the episode has ended, by the messages read so far
        self._over = False  # whether it has ended, by the pieces in the temporary file
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

    def answer(self, first: int) -> bytes:
        """Return JSON with `pieces` from number `first` on, and the number of the `next` piece to ask for."""
        # The JSON also has `over`: `True` if no piece is left, and the episode has ended.
        # `error`: why the trace is not followed any more; empty while it is. Raises `ValueError` if `first`
        # is negative, or more than the number of pieces.
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
        """Return an image's media type and its base64, or raise `KeyError`."""
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
                self._ended = has_ended(envelope.body, before=self._ended)
                if self._feed.due:
                    self._write_piece()
                if self._stopping.is_set():
                    return
        except TraceError as error:
            with contextlib.suppress(OSError):  # the disk with the temporary files may be full
                self._write_piece()
            self._error = str(error)
        except OSError as error:  # for example, the disk with the temporary files is full
            self._error = f"The page gets no further messages: {os_cause(error)}."

    def _write_piece(self) -> None:
        feed = self._feed
        turns = tuple(feed.turns())
        if not turns:
            return
        # `turns` has the turns that changed since the last piece; `actors` and `overview` cover all messages.
        so_far = {"turns": turns, "actors": feed.actors, "overview": feed.overview}
        line = msgspec.json.encode({**asdict(feed.take()), **so_far}) + b"\n"
        with self._lock:
            end = self._ends[-1] if self._ends else 0
            self._spool.seek(end)
            written = 0
            while written < len(line):  # a write may take only a part
                written += self._spool.write(line[written:])
            self._ends.append(end + written)
            self._over = self._ended


HOST = "127.0.0.1"
_SLOWEST_S = 30
_MOST_MARK_BYTES = 16_384


class _Marked(Struct, frozen=True, forbid_unknown_fields=True):
    score: float
    reason: str = ""


class LiveServer(ThreadingHTTPServer):
    """Serves the page of one trace. Raises `MCPConfigError` if it cannot listen at the port."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, feed: LiveFeed, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:  # a port above 65535 overflows
            raise MCPConfigError(
                f"Cannot listen at {HOST}:{port}: {os_cause(error).rstrip('.')}. Choose another --port,"
                " or none: `grue trace serve` takes a free one."
            ) from error
        self.feed = feed
        self.word = secrets.token_urlsafe(16)
        header, file = feed.reader.header, printable(feed.reader.path.name)
        title = f"Trace of {header.episode}"
        # The page gets no messages now: it requests them later, in pieces.
        page = EpisodePage(title=title, header=header, file=file, live=True)
        parts = page_parts("page", title, style=STYLE, scripts=SCRIPTS, served=True)
        self.page = b"".join((parts[0], embedded(page), *parts[1:]))

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of broken connections, which a browser may close at any time; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as they came

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{HOST}:{self.server_port}/{self.word}/"

    @property
    def names(self) -> frozenset[str]:
        """The accepted values of a request's `Host` header."""
        return frozenset({f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"})


@contextlib.contextmanager
def serving(feed: LiveFeed, port: int = 0) -> Iterator[LiveServer]:
    """Serve the page of a trace in a thread until the block ends; yield the server."""
    with LiveServer(feed, port) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="live-server", daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = "grue"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = _SLOWEST_S

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in self.server.names:
            self._send(403, "text/plain", b"This server answers to its own address only.\n")
            return
        path, _, query = self.path.partition("?")
        # Without the slash after the word there is no page: the page's own requests would lack the word.
        _, word, name = (*path.split("/", 2), "?", "?")[:3]
        if path == "/favicon.ico":
            self._send(204, "image/png", b"")  # browsers ask for an icon by themselves
        elif not hmac.compare_digest(word.encode(), self.server.word.encode()):
            self._send(404, "text/plain", b"Not found.\n")
        elif name == "":
            self._send(200, "text/html; charset=utf-8", self.server.page)
        elif name == "feed":
            self._feed(query)
        elif name == "mark":
            self._send(200, "application/json", self._mark())
        elif name.startswith("image/"):
            self._image(name.removeprefix("image/"))
        else:
            self._send(404, "text/plain", b"Not found.\n")

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def do_POST(self) -> None:
        # On an open connection, the unread body of a refused request would be taken for the next request.
        self.close_connection = True
        origin = self.headers.get("Origin", "").removeprefix("http://")
        if self.headers.get("Host", "") not in self.server.names or origin not in self.server.names:
            self._send(403, "text/plain", b"This server takes marks from its own page only.\n")
            return
        asked = self.path.encode("utf-8", "replace")
        if not hmac.compare_digest(asked, f"/{self.server.word}/mark".encode()):
            self._send(404, "text/plain", b"Not found.\n")
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 < length <= _MOST_MARK_BYTES:
                raise ValueError("too long")
            marked = msgspec.json.decode(self.rfile.read(length), type=_Marked)
            if not math.isfinite(marked.score):
                raise ValueError("not finite")
            folder, attempt = place_of_marks(self.server.feed.reader.path)
            reason = marked.reason[:MOST_REASON].encode("utf-8", "replace").decode()
            write_mark(folder, Mark(scorer=HUMAN, score=marked.score, reason=reason, attempt=attempt))
        except (ValueError, msgspec.MsgspecError, RecursionError, OSError):
            self._send(400, "text/plain", b"A mark is a score, which is a finite number, and a reason.\n")
        except TraceError as error:
            self._send(500, "text/plain", f"{error}\n".encode("utf-8", "replace"))
        else:
            self._send(200, "application/json", self._mark())

    def _mark(self) -> bytes:
        folder, attempt = place_of_marks(self.server.feed.reader.path)
        given = (each for each in read_marks(folder) if each.scorer == HUMAN and each.attempt == attempt)
        mark = next(given, None)
        return msgspec.json.encode(None if mark is None else _Marked(mark.score, mark.reason))

    def _feed(self, query: str) -> None:
        try:
            first = int(parse_qs(query, max_num_fields=4).get("from", ["0"])[0])
            answer = self.server.feed.answer(first)
        except ValueError:
            self._send(400, "text/plain", b"There is no such piece.\n")
        else:
            self._send(200, "application/json", answer)

    def _image(self, name: str) -> None:
        try:
            mime, data = self.server.feed.image(name)
            image = base64.b64decode(data + b"=" * (-len(data) % 4))
        except (KeyError, ValueError):  # `ValueError`: a tool has sent base64 that cannot be decoded
            self._send(404, "text/plain", b"Not found.\n")
        else:
            self._send(200, mime, image)

    def _send(self, status: int, mime: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", mime),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError, TimeoutError):
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Print nothing: a log line would show the URL, whose random word keeps strangers out."""
