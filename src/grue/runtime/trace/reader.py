"""Read a trace file: a line at a time, whole, or while it is being written. Errors are `TraceError`s."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct

from grue.errors import TraceError
from grue.runtime.files import MAX_LINE_BYTES, next_line, open_regular, os_cause, read_regular
from grue.runtime.trace import format as fmt
from grue.runtime.trace.recorder import Envelope

B = TypeVar("B")


class Trace(Struct, Generic[B], frozen=True):
    """A whole trace file. `cut_short`: the last line was incomplete, perhaps because the host was killed."""

    header: fmt.TraceHeader
    envelopes: tuple[Envelope[B], ...]
    cut_short: bool


class LinePlace(NamedTuple):
    """The place of a line in a trace file: offset of its first byte, line number from 1, size in bytes."""

    offset: int
    number: int
    size: int


class RecordedLine(Struct, Generic[B], frozen=True):
    """A line of a trace whose body is not decoded yet."""

    line: fmt.TraceLine
    place: LinePlace
    reader: TraceReader[B]

    @property
    def tag(self) -> str:
        """The body's tag, also of a body in a payload file; empty: no tag was found."""
        tag = fmt.tag_at_start(self.line.body)
        with contextlib.suppress(*fmt.UNDECODABLE):
            return tag or _TAGS.decode(self.line.body).type
        return ""

    def envelope(self) -> Envelope[B]:
        """Return the envelope with its body. Raises `TraceError` as `TraceReader.decoded` does."""
        return self.reader.decoded(self.place.number, self.line)


class TraceReader(Generic[B]):
    """Yields the envelopes of a trace file in order, one line in memory at a time; raises `TraceError`.

    `body_type` is the type of the bodies: a union of tagged Structs, or `dict` for plain JSON. Each iteration
    opens the file and closes it at the end.
    """

    def __init__(self, path: Path, body_type: type[B] | Any) -> None:
        self.path = path
        self.cut_short = False  # the last iteration or `follow` ended at an incomplete line: no error
        self.missing = 0  # how many message numbers the last `lines` found missing between two others
        self.payloads: set[str] = set()  # hashes of the payload files that are named in the lines read so far
        self._bodies = msgspec.json.Decoder(body_type)
        with _opened(path) as file:
            self.header = fmt.read_header(path, _next_line(path, 1, file))

    def __iter__(self) -> Iterator[Envelope[B]]:
        """Yield the envelopes that are in the file now."""
        return (line.envelope() for line in self.lines())

    def whole(self) -> Trace[B]:
        """Read the whole file into memory."""
        envelopes = tuple(self)
        return Trace(self.header, envelopes, self.cut_short)

    def at(self, place: LinePlace) -> Envelope[B]:
        """Return the envelope at the place of a line that `lines` has yielded; raises `TraceError`."""
        with _opened(self.path) as file:
            file.seek(place.offset)
            line = _decoded(self.path, place.number, _next_line(self.path, place.number, file))
        if line is None:
            raise fmt.damaged(self.path, place.number, "the file has changed while it was read")
        return self.decoded(place.number, line)

    def lines(self) -> Iterator[RecordedLine[B]]:
        """Yield the lines after the header, for callers that need the bodies of some messages only."""
        self.cut_short, self.missing = False, 0
        path, number, seq = self.path, 2, 0
        with _opened(path) as file:
            offset = len(_next_line(path, 1, file))
            while text := _next_line(path, number, file):
                line = _decoded(path, number, text)
                if line is None:
                    self.cut_short = True
                    return
                fmt.check_numbers(path, number, line, seq)
                # A recorder may begin a file with any number. A message that was not written leaves a gap.
                self.missing += line.seq - seq - 1 if seq else 0
                self.payloads.update(_hashes(line))
                yield RecordedLine(line, LinePlace(offset, number, len(text)), self)
                offset, number, seq = offset + len(text), number + 1, line.seq

    def follow(
        self,
        stop: Callable[[], bool],
        poll_s: float = 0.2,
        *,
        over: Callable[[Envelope[B]], bool] = lambda _: False,
    ) -> Iterator[Envelope[B]]:
        """Yield the envelopes in the file, then those that are appended; look every `poll_s` seconds.

        At the end of the file, the iteration ends if `stop()` or `over(last envelope)` is true.
        """
        with _opened(self.path) as file:
            _next_line(self.path, 1, file)
            number, last = 2, None
            while True:
                start = file.tell()
                text = _next_line(self.path, number, file)
                line = _decoded(self.path, number, text) if text.endswith(b"\n") else None
                if line is not None:
                    fmt.check_numbers(self.path, number, line, after=last.seq if last else 0)
                    last = self.decoded(number, line)
                    number += 1
                    yield last
                    continue
                self.cut_short = bool(text)
                if stop() or (last is not None and over(last)):
                    return
                time.sleep(poll_s)
                # The incomplete line may be complete now, or replaced by a writer that resumes the trace.
                file.seek(start)

    def decoded(self, number: int, line: fmt.TraceLine) -> Envelope[B]:
        """Return the envelope of a line; raises `TraceError` if its body cannot be read or decoded."""
        written = bytes(line.body)
        if written.startswith(fmt.REFERENCE_START):
            written = self._payload(number, line)
        if line.extracts:
            written = self._restored(number, line, written)
        if fmt.is_deeper(written, fmt.MAX_DEPTH):
            raise fmt.damaged(self.path, number, f"nested deeper than {fmt.MAX_DEPTH} levels")
        try:
            body = self._body(line, written)
        except fmt.UNDECODABLE as error:
            raise fmt.unknown(self.path, number, error) from error
        return Envelope(body=body, **{name: getattr(line, name) for name in _SHARED})

    def _body(self, line: fmt.TraceLine, written: bytes) -> B:
        """Decode the body `written`. A subclass overrides this to decode some kinds of lines differently."""
        del line
        body: B = self._bodies.decode(written)
        return body

    def _payload(self, number: int, line: fmt.TraceLine) -> bytes:
        try:
            reference = _REFERENCES.decode(line.body)
        except fmt.UNDECODABLE as error:
            # The decoder checks the form of the hash, because a hostile trace could put a path there.
            raise fmt.damaged(
                self.path, number, f"not a reference to a payload: {fmt.error_text(error)}"
            ) from error
        return self._content(number, reference.sha256)

    def _restored(self, number: int, line: fmt.TraceLine, body: bytes) -> bytes:
        """Put the long strings that were moved into files back into a body's JSON, and return the JSON."""
        pieces: list[bytes] = []
        end, size = 0, len(body)
        for extract in line.extracts:
            if extract.at < end or body[extract.at : extract.at + 2] != b'""':
                raise fmt.damaged(self.path, number, f"there is no place in its body at byte {extract.at}")
            pieces += [body[end : extract.at], self._content(number, extract.sha256)]
            end = extract.at + 2
            size += len(pieces[-1])
            if size > MAX_LINE_BYTES:
                # A line of a hostile trace may refer to the same large file many times.
                raise fmt.damaged(self.path, number, "its body is too large with what was taken out of it")
        return b"".join([*pieces, body[end:]])

    def _content(self, number: int, sha256: str) -> bytes:
        path = fmt.payload_path(self.path, sha256)
        where = f"{self.path}, line {number}"
        try:
            content = read_regular(path)
        except OSError as error:
            raise TraceError(
                f"{where}: cannot read its payload {path}: {os_cause(error)}. "
                "A trace is copied together with the folder of payloads beside it."
            ) from error
        if hashlib.sha256(content).hexdigest() != sha256:
            raise TraceError(
                f"{where}: its payload {path} is not what was written: the hash differs. "
                "Copy it again from where the trace was recorded."
            )
        return content


def read_trace(path: Path, body_type: type[B] | Any) -> Trace[B]:
    """Read a whole trace file into memory. Arguments and errors are those of `TraceReader`."""
    return TraceReader(path, body_type).whole()


class _Tagged(Struct):
    type: str = ""


_TAGS = msgspec.json.Decoder(_Tagged)  # finds the tag also if another program has written the JSON anew
_LINES = msgspec.json.Decoder(fmt.TraceLine)
_REFERENCES = msgspec.json.Decoder(fmt.PayloadReference)
_SHARED = [each for each in fmt.TraceLine.__struct_fields__ if each not in ("extracts", "body")]


def _hashes(line: fmt.TraceLine) -> Iterator[str]:
    if (reference := _reference(line)) is not None:
        yield reference.sha256
    for extract in line.extracts:
        yield extract.sha256


def _reference(line: fmt.TraceLine) -> fmt.PayloadReference | None:
    """Return the reference that replaces the line's body; `None`: the body is in the line, or damaged."""
    if memoryview(cast("Any", line.body))[: len(fmt.REFERENCE_START)] == fmt.REFERENCE_START:
        with contextlib.suppress(*fmt.UNDECODABLE):
            return _REFERENCES.decode(line.body)
    return None


def _decoded(path: Path, number: int, text: bytes) -> fmt.TraceLine | None:
    """Return the decoded line; `None`: the line is the last one and incomplete."""
    try:
        return _LINES.decode(text)
    except fmt.UNDECODABLE as error:
        if text.endswith(b"\n"):
            raise fmt.damaged(path, number, f"not a trace line: {fmt.error_text(error)}") from error
        return None


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except OSError as error:
        if error.errno is None:
            raise  # a signal handler of the program has raised it
        text = f"Cannot read the trace file {path}: {error.strerror}."
        if isinstance(error, FileNotFoundError):
            # A folder of runs, such as that of `trace="runs"`, has no trace of its own.
            holds_runs = path.name == fmt.TRACE_FILE and path.parent.is_dir()
            where = f" {shlex.quote(str(path.parent))}" if holds_runs else ""
            text += f" Name a run folder or a trace file; `grue runs{where}` lists the runs."
        raise TraceError(text) from error


def _next_line(path: Path, number: int, file: BinaryIO) -> bytes:
    try:
        return next_line(file)
    except OSError as error:
        if error.errno is None:
            raise  # a signal handler of the program has raised it
        raise TraceError(f"{path}, line {number}: cannot be read: {error.strerror}.") from error
