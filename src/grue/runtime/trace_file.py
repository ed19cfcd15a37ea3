"""Write a trace file, and go on with one.

Lines are written in a background thread (`line_queue`), so that a slow disk delays no turn. For every
envelope that comes from or goes to the outside the writer waits until it is written: what the outside has
told or was told is in the file before it acts upon it, a decision before its command is played, whatever
kills the process in between.
"""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from grue.errors import TraceError
from grue.runtime.line_file import LineFile
from grue.runtime.line_queue import FLUSH_WITHIN_S, LineQueue
from grue.runtime.safe_open import next_line, open_regular
from grue.runtime.trace import Envelope
from grue.runtime.trace_checks import UNDECODABLE
from grue.runtime.trace_format import (
    FORMAT,
    Extract,
    PayloadReference,
    TraceHeader,
    TraceLine,
    long_strings,
    payload_path,
    read_header,
)

_LATE_S = 0.05


class TraceOptions(Struct, frozen=True, kw_only=True):
    """How a trace file is written.

    Attributes:
        fsync: Have the disk take what is flushed; otherwise it is safe from the death of the process, but
            not from that of the machine.
        max_payload_bytes: Longest JSON text of a message that stays in its line; a longer one goes into a
            file of its own, named by its hash, in `payloads` beside the trace.
        outside: Name under which the outside world sends and receives; an envelope from or to it is in the
            operating system's hands before `record` returns.
        flush_within_s: How long `record` waits for that at most; a disk that does not answer is not waited
            for as long again before it does. The line is written later all the same.
        version: Of the program that writes, for the header.
    """

    fsync: bool = False
    max_payload_bytes: int = 65_536
    outside: str = "host"
    flush_within_s: float = FLUSH_WITHIN_S
    version: str = ""


class TraceWriter:
    """Write a trace file, readable by its owner only; an observer. Safe to call from several threads.

    Two processes cannot write the same file. In a forked child the writer is closed.

    Args:
        path: The file.
        episode: Names the episode in the file's first line.
        started_at: Seconds since the epoch; `None`: now.
        options: How it is written.
        resume: Go on with a file that is there. Of a last line that was cut short nothing is kept.

    Raises:
        TraceError: The file cannot be made, or holds something already: a file is one episode's. With
            `resume`: it is not that episode's trace in this format. Either way: another process writes it.
            When an envelope is recorded, on `flush` and on `close`: the disk took no more; what it had taken
            before stays readable.

    Attributes:
        last_seq: Number of the last envelope that a resumed file holds; 0 in a new one.
        last_t: Its time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        episode: str,
        started_at: float | None = None,
        options: TraceOptions | None = None,
        resume: bool = False,
    ) -> None:
        self.path = Path(path)
        self.last_seq, self.last_t = 0, 0.0
        self._options = options or TraceOptions()
        header = _header_to_resume(self.path, episode) if resume else None
        self._file = LineFile(self.path, "trace file")
        try:
            self._lock()
            if header is not None:
                self._go_on(len(header))
            else:
                self._begin(episode, time.time() if started_at is None else started_at)
        except BaseException:
            self._file.close()
            raise
        self._written_seq = self.last_seq
        self._in_time = True
        self._lines = LineQueue(self._file, self._write, fsync=self._options.fsync)

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Append one envelope; return when it is queued, or flushed if it is from or to the outside.

        Raises:
            TraceError: Its number does not come after the last one, so that no reader would take the file; or
                the disk took no more.
        """
        if envelope.seq <= self._written_seq:
            raise TraceError(
                f"Message {envelope.seq} cannot be written after message {self._written_seq} of {self.path}. "
                "To go on with a trace: recorder.resume(after_seq=writer.last_seq, after_t=writer.last_t)."
            )
        self._written_seq = envelope.seq
        self._lines.put(line)
        outside = self._options.outside
        if envelope.sender == outside or envelope.receiver == outside:
            self._in_time = self._lines.flush(self._options.flush_within_s if self._in_time else _LATE_S)

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> bool:
        """Wait until everything recorded so far is in the operating system's hands; say whether it is.

        Raises:
            TraceError: The disk took no more, or the writer is closed.
        """
        return self._lines.flush(within_s)

    def close(self) -> None:
        """Write what is queued, however long the disk takes, and close the file. A second call does nothing.

        Raises:
            TraceError: The disk took no more, and nobody has been told yet.
        """
        self._lines.close()

    def _lock(self) -> None:
        if not self._file.lock():
            raise TraceError(f"The episode of {self.path} is still being played: another process writes it.")

    def _begin(self, episode: str, started_at: float) -> None:
        if self._file.size:
            raise TraceError(f"The trace file {self.path} exists already: choose another name, or remove it.")
        version = self._options.version
        header = TraceHeader(format=FORMAT, episode=episode, started_at=started_at, version=version)
        self._file.write(msgspec.json.encode(header))

    def _go_on(self, after: int) -> None:
        last = self._last_whole_line(after)
        if last is not None:
            self.last_seq, self.last_t = last.seq, last.t

    def _last_whole_line(self, after: int) -> TraceLine | None:
        """Return the last line after the header, once what the file ends with is a whole line."""
        written = self._file.last_line()
        if not written.endswith(b"\n"):
            line = _line(written)
            if line is not None or self._file.size == after:
                # Only the newline is missing: readers take it for whole, and so does who resumed from it.
                self._file.write(b"")
                return line
            self._file.cut(self._file.size - len(written))
            written = self._file.last_line()
        if self._file.size == after:
            return None
        line = _line(written)
        if line is None:
            raise TraceError(f"{self.path}: its last line is not a trace line.")
        return line

    def _write(self, lines: list[bytes]) -> None:
        start = 0
        for position, line in enumerate(lines):
            strings = long_strings(line)
            if strings or len(line) > self._options.max_payload_bytes:
                self._file.write(*lines[start:position])
                self._file.write(self._shortened(line, strings))
                start = position + 1
        self._file.write(*lines[start:])

    def _shortened(self, written: bytes, strings: list[tuple[int, int]]) -> bytes:
        """Put long strings, and then a body that is too long still, into files; return what is left."""
        pieces: list[bytes] = []
        extracts: list[Extract] = []
        end = length = 0
        for start, following in strings:
            pieces += [written[end:start], b'""']
            length += start - end
            string = written[start:following]
            sha256 = hashlib.sha256(string).hexdigest()
            self._keep_payload(payload_path(self.path, sha256), string)
            extracts.append(Extract(at=length, sha256=sha256, bytes=len(string)))
            length, end = length + 2, following
        kept = b"".join((*pieces, written[end:]))
        return self._with_reference(kept, extracts)

    def _with_reference(self, written: bytes, extracts: list[Extract]) -> bytes:
        """Put the line's body, if it is too long, into a file of its own; return the line for the trace."""
        line = _LINES.decode(written)
        body = bytes(line.body)
        # The body is the last member of a line.
        before = len(written) - len(body) - 1
        placed = tuple(replace(extract, at=extract.at - before) for extract in extracts)
        line = replace(line, extracts=placed)
        if len(body) <= self._options.max_payload_bytes:
            return msgspec.json.encode(line)
        sha256 = hashlib.sha256(body).hexdigest()
        self._keep_payload(payload_path(self.path, sha256), body)
        reference = PayloadReference(sha256=sha256, bytes=len(body), type=_tag(body))
        return msgspec.json.encode(replace(line, body=msgspec.Raw(msgspec.json.encode(reference))))

    def _keep_payload(self, path: Path, body: bytes) -> None:
        draft = path.with_suffix(".part")
        try:
            if path.exists() and path.stat().st_size == len(body):
                return
            path.parent.mkdir(mode=0o700, exist_ok=True)
            draft.unlink(missing_ok=True)
            with open(draft, "xb", opener=_for_its_owner) as file:
                file.write(body)
                if self._options.fsync:
                    file.flush()
                    os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            raise TraceError(f"Cannot write the trace's payload {path}: {error.strerror}.") from error


class _Tagged(Struct):
    type: str | UnsetType = UNSET


_LINES = msgspec.json.Decoder(TraceLine)
_TAGS = msgspec.json.Decoder(_Tagged)


def _line(written: bytes) -> TraceLine | None:
    try:
        return _LINES.decode(written)
    except UNDECODABLE:
        return None


def _tag(body: bytes) -> str | UnsetType:
    try:
        return _TAGS.decode(body).type
    except UNDECODABLE:
        return UNSET


def _header_to_resume(path: Path, episode: str) -> bytes:
    """Return the first line of a file that can be continued."""
    try:
        with open_regular(path) as file:
            first = next_line(file)
    except OSError as error:
        raise TraceError(f"Cannot read the trace file {path}: {error.strerror}.") from error
    header = read_header(path, first)
    if header.format != FORMAT:
        raise TraceError(f"{path} has trace format {header.format}; only format {FORMAT} can be continued.")
    if header.episode != episode:
        raise TraceError(f"{path} is the trace of the episode {header.episode}, not of {episode}.")
    return first


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
