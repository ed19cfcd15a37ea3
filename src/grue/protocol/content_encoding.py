"""Undo the compression of an HTTP body, in bounded steps and up to a bounded size.

A few hundred bytes can stand for gigabytes, and more so where a body is compressed several times over. HTTP
libraries decompress each chunk as a whole and each stage as a whole; here every step gives at most
`STEP_BYTES`, and every stage has the limit of the body.
"""

import zlib
from collections.abc import Iterator

STEP_BYTES = 64 * 2**10
"""Most that one step gives."""

MAX_STAGES = 2
"""Most compressions of one body; a server that compresses behind a proxy that does too makes two."""

ACCEPTED = "gzip, deflate"
"""For the `Accept-Encoding` header."""

_GZIP = 16 + zlib.MAX_WBITS
_WINDOWS = {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}
"""How each coding may look; `deflate` comes with the header that it should have, or without."""


class EncodingError(ValueError):
    """The body cannot be decompressed, or not within its limit; the text says why."""


class BodyTooLongError(EncodingError):
    """The body, or what one of its stages gives, is longer than it may be."""


class ContentDecoder:
    """Decompresses one body.

    Args:
        codings: The value of `Content-Encoding`. Names that are not known are passed over, as HTTP libraries
            do: some servers name a character set there.
        max_bytes: Most that any stage may give; `None`: no limit.

    Raises:
        EncodingError: The body was compressed more than `MAX_STAGES` times.
    """

    def __init__(self, codings: str, max_bytes: int | None) -> None:
        names = [name.strip().lower() for name in codings[:1000].split(",")]
        known = [name for name in names if name in _WINDOWS]
        if len(known) > MAX_STAGES:
            raise EncodingError(f"it was compressed {len(known)} times; at most {MAX_STAGES} are undone")
        # The last coding was applied last, and is undone first.
        self._stages = [_Stage(_WINDOWS[name], max_bytes) for name in reversed(known)]

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what `chunk` stands for, in steps of at most `STEP_BYTES`.

        Raises:
            EncodingError: It cannot be decompressed.
            BodyTooLongError: A stage gives more than `max_bytes`.
        """
        return self._through(chunk, 0)

    def _through(self, data: bytes, stage: int) -> Iterator[bytes]:
        if stage == len(self._stages):
            yield data
            return
        for piece in self._stages[stage].feed(data):
            yield from self._through(piece, stage + 1)


class _Stage:
    """One compression, undone."""

    def __init__(self, windows: tuple[int, ...], max_bytes: int | None) -> None:
        self._windows = windows
        self._max_bytes = max_bytes
        self._unzip = zlib.decompressobj(windows[0])
        self._given = 0
        self._head = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        # Slices, because what zlib has not used up it copies with every step.
        for start in range(0, len(data), STEP_BYTES):
            yield from self._slice(data[start : start + STEP_BYTES])

    def _slice(self, data: bytes) -> Iterator[bytes]:
        more = True
        while more and not self._unzip.eof:
            piece = self._step(data)
            data = self._unzip.unconsumed_tail
            # A full step may have left something inside zlib, though all of the input is used up.
            more = bool(data) or len(piece) == STEP_BYTES
            self._given += len(piece)
            if self._max_bytes is not None and self._given > self._max_bytes:
                raise BodyTooLongError(f"longer than {self._max_bytes} bytes")
            if piece:
                yield piece

    def _step(self, data: bytes) -> bytes:
        before = len(self._head)
        if len(self._windows) > 1:
            # The first two bytes tell whether there is a header; they may come one by one.
            self._head = (self._head + data)[:2]
        try:
            return self._unzip.decompress(data, STEP_BYTES)
        except zlib.error as error:
            if len(self._windows) == 1 or self._given:
                raise EncodingError(str(error)) from error
        data = self._head[:before] + data
        self._unzip, self._windows = zlib.decompressobj(self._windows[1]), self._windows[1:]
        return self._step(data)
