"""Read a trace file: a line at a time, whole, or while it is being written."""

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec
from msgspec import Struct

from grue.errors import TraceError
from grue.runtime.trace import Envelope
from grue.runtime.trace_format import (
    REFERENCE_START,
    PayloadReference,
    TraceHeader,
    TraceLine,
    payload_path,
    read_header,
)

B = TypeVar("B")


class Trace(Struct, Generic[B], frozen=True):
    """A trace file, read.

    Attributes:
        header: Its first line.
        envelopes: All whole envelopes, in order.
        cut_short: The last line was incomplete: the host was killed while it was written.
    """

    header: TraceHeader
    envelopes: tuple[Envelope[B], ...]
    cut_short: bool


class TraceReader(Generic[B]):
    """Yield the envelopes of a trace file in order, one line in memory at a time.

    Each iteration opens the file anew and closes it at its end; between them nothing is open.

    Args:
        path: The file.
        body_type: What the bodies are: a union of tagged Structs, or `dict` for plain JSON.

    Raises:
        TraceError: The file is missing, is no trace, or is of a later format. While iterating: a line before
            the last one is damaged, or the file of a payload is missing or altered. Names file and line.

    Attributes:
        header: The file's first line.
        cut_short: The last line was incomplete when an iteration or a `follow` came to its end: the host was
            killed while it wrote it.
    """

    def __init__(self, path: Path, body_type: type[B] | Any) -> None:
        self.path = path
        self.cut_short = False
        self._bodies = msgspec.json.Decoder(body_type)
        with _opened(path) as file:
            self.header = read_header(path, file.readline())

    def __iter__(self) -> Iterator[Envelope[B]]:
        """Yield what is in the file now."""
        self.cut_short = False
        with _opened(self.path) as file:
            file.readline()
            for number, text in enumerate(file, start=2):
                line = self._line(number, text)
                if line is None:
                    self.cut_short = True
                    return
                yield self._envelope(number, line)

    def follow(
        self,
        stop: Callable[[], bool],
        poll_s: float = 0.2,
        *,
        over: Callable[[Envelope[B]], bool] = lambda _: False,
    ) -> Iterator[Envelope[B]]:
        """Yield what is in the file, then what is appended to it.

        Args:
            stop: Asked whenever there is nothing more to read; true ends the iteration.
            poll_s: Seconds between two looks at the file.
            over: Says of the last envelope whether the file is finished with it, if nothing comes after.
        """
        with _opened(self.path) as file:
            file.readline()
            number, last = 2, None
            while True:
                start = file.tell()
                text = file.readline()
                if text.endswith(b"\n"):
                    last = self._envelope(number, _decoded(self.path, number, text))
                    number += 1
                    yield last
                    continue
                self.cut_short = bool(text)
                if stop() or (last is not None and over(last)):
                    return
                time.sleep(poll_s)
                # From the line's start: a resumed writer cuts a half line off and begins another there.
                file.seek(start)

    def _line(self, number: int, text: bytes) -> TraceLine | None:
        """Return the line, or `None` if it is the last one and was cut short."""
        if text.endswith(b"\n"):
            return _decoded(self.path, number, text)
        try:
            return _LINES.decode(text)
        except msgspec.DecodeError:
            return None

    def _envelope(self, number: int, line: TraceLine) -> Envelope[B]:
        written: bytes | msgspec.Raw = line.body
        if bytes(line.body).startswith(REFERENCE_START):
            written = self._payload(number, line)
        if line.extracts:
            written = self._restored(number, line, bytes(written))
        try:
            body = self._bodies.decode(written)
        except msgspec.ValidationError as error:
            raise TraceError(
                f"{self.path}, line {number}: not a message this version knows: {error}."
            ) from error
        return Envelope(
            seq=line.seq,
            t=line.t,
            at=line.at,
            turn=line.turn,
            sender=line.sender,
            receiver=line.receiver,
            cause=line.cause,
            body=body,
            redacted=line.redacted,
        )

    def _payload(self, number: int, line: TraceLine) -> bytes:
        where = f"{self.path}, line {number}"
        try:
            reference = _REFERENCES.decode(line.body)
        except msgspec.ValidationError as error:
            # Its hash becomes a file's name, and a trace may come from anywhere.
            raise TraceError(f"{where}: not a reference to a payload: {error}.") from error
        return self._content(where, reference.sha256)

    def _restored(self, number: int, line: TraceLine, body: bytes) -> bytes:
        """Return a body with the strings in it that were taken out of it."""
        where = f"{self.path}, line {number}"
        pieces: list[bytes] = []
        end = 0
        for extract in line.extracts:
            if extract.at < end or body[extract.at : extract.at + 2] != b'""':
                raise TraceError(f"{where}: there is no place in its body at byte {extract.at}.")
            pieces += [body[end : extract.at], self._content(where, extract.sha256)]
            end = extract.at + 2
        return b"".join((*pieces, body[end:]))

    def _content(self, where: str, sha256: str) -> bytes:
        path = payload_path(self.path, sha256)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise TraceError(f"{where}: cannot read its payload {path}: {error.strerror}.") from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise TraceError(f"{where}: its payload {path} is not what was written: the hash differs.")
        return content


def read_trace(path: Path, body_type: type[B] | Any) -> Trace[B]:
    """Read a whole trace file into memory.

    Args:
        path: The file.
        body_type: What the bodies are: a union of tagged Structs, or `dict` for plain JSON.

    Raises:
        TraceError: As `TraceReader`.
    """
    reader: TraceReader[B] = TraceReader(path, body_type)
    envelopes = tuple(reader)
    return Trace(reader.header, envelopes, reader.cut_short)


_LINES = msgspec.json.Decoder(TraceLine)
_REFERENCES = msgspec.json.Decoder(PayloadReference)


def _decoded(path: Path, number: int, text: bytes) -> TraceLine:
    try:
        return _LINES.decode(text)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}, line {number}: not a trace line: {error}.") from error


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise TraceError(f"Cannot read the trace file {path}: {error.strerror}.") from error
