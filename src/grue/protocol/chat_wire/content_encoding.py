"""Decompress an HTTP body in small steps and up to a size limit.

This protects against decompression bombs: a few hundred bytes can expand to gigabytes, above all if a body is
compressed several times. HTTP libraries decompress a whole chunk at once, at every stage. Here a step returns
at most `STEP_BYTES`, and the output of every stage is limited to the size limit of the body.
"""

import zlib
from collections.abc import Iterator

STEP_BYTES = 64 * 2**10
"""Largest output of one step."""

MAX_STAGES = 2
"""Most times that a body may be compressed: once by the server and once by a proxy before it."""

ACCEPTED = "gzip, deflate"
"""The value of the `Accept-Encoding` header."""

_GZIP = 16 + zlib.MAX_WBITS
_WINDOWS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}
"""The zlib window settings to try for each coding. Some servers send `deflate` without its zlib header."""


class EncodingError(ValueError):
    """The body cannot be decompressed, or exceeds its limit; the text says why."""


class BodyTooLongError(EncodingError):
    """The decompressed body, or the output of one stage, is larger than its limit."""


class ContentDecoder:
    """Decompresses one body.

    Args:
        codings: The value of `Content-Encoding`. Unknown names are ignored, as HTTP libraries do, because
            some servers put a character set there.
        max_bytes: Largest output of any stage; `None` sets no limit.

    Raises:
        EncodingError: The body was compressed more than `MAX_STAGES` times.
    """

    def __init__(self, codings: str, max_bytes: int | None) -> None:
        names = [name.strip().lower() for name in codings[:1000].split(",")]
        known = [name for name in names if name in _WINDOWS]
        if len(known) > MAX_STAGES:
            raise EncodingError(f"it was compressed {len(known)} times; at most {MAX_STAGES} are undone")
        # Codings are listed in the order in which they were applied, so the last one is undone first.
        self._stages = [_Stage(_WINDOWS[name], max_bytes) for name in reversed(known)]

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Decompress `chunk` and yield the output in pieces of at most `STEP_BYTES`.

        Raises:
            EncodingError: The chunk cannot be decompressed.
            BodyTooLongError: The output of a stage is larger than `max_bytes`.
        """
        return self._through(chunk, 0)

    def _through(self, data: bytes, stage: int) -> Iterator[bytes]:
        if stage == len(self._stages):
            yield data
            return
        for piece in self._stages[stage].feed(data):
            yield from self._through(piece, stage + 1)


class _Stage:
    """Decompresses one coding."""

    def __init__(self, windows: tuple[int, ...], max_bytes: int | None) -> None:
        self._windows = windows
        self._max_bytes = max_bytes
        self._unzip = zlib.decompressobj(windows[0])
        self._given = 0
        self._head = b""
        self._plain = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        # In slices, because zlib copies the input that it has not consumed at every step.
        for start in range(0, len(data), STEP_BYTES):
            yield from self._slice(data[start : start + STEP_BYTES])

    def _slice(self, data: bytes) -> Iterator[bytes]:
        more = True
        while more and not self._unzip.eof:
            piece = self._step(data)
            data = b"" if self._plain else self._unzip.unconsumed_tail
            # After a step with full output, zlib may hold more output although all input is consumed.
            more = bool(data) or len(piece) == STEP_BYTES
            self._given += len(piece)
            if self._max_bytes is not None and self._given > self._max_bytes:
                raise BodyTooLongError(f"longer than {self._max_bytes} bytes")
            if piece:
                yield piece

    def _step(self, data: bytes) -> bytes:
        if self._plain:
            return data
        # The first two bytes show whether there is a header; they may arrive in separate chunks.
        before = len(self._head)
        self._head = (self._head + data)[:2]
        try:
            return self._unzip.decompress(data, STEP_BYTES)
        except zlib.error as error:
            last = len(self._windows) == 1
            # Some proxies undo the coding and leave its header. No gzip begins like JSON or a web page does.
            self._plain = last and not self._given and self._head[:1] in (b"{", b"[", b"<")
            if not self._plain and (last or self._given):
                raise EncodingError(str(error)) from error
        data = self._head[:before] + data
        if self._plain:
            return data
        self._unzip, self._windows = zlib.decompressobj(self._windows[1]), self._windows[1:]
        return self._step(data)
