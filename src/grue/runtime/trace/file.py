"""Write a trace file, new or continued. A file belongs to one episode; one process at a time writes it.

A background thread writes the lines, so that a slow disk does not delay a turn. Recording waits for the
disk only after an envelope from or to the host. Without this wait, the process could be killed after the host
has acted on a turn's answer, but before the answer is written, and the resumed episode would repeat the turn.
After `flush_within_s` the turn goes on: an incomplete trace is better than a program that hangs.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from grue.errors import MCPConfigError, TraceError
from grue.field_checks import check_settings, is_usable, shown
from grue.runtime.files import LineFile, as_path, next_line, open_regular, os_errors_as, write_whole
from grue.runtime.loops.closing import Closing
from grue.runtime.loops.interrupts import block_signals
from grue.runtime.trace import format as fmt
from grue.runtime.trace.recorder import Envelope, Recorder

FLUSH_WITHIN_S = 2.0  # how long `flush` waits for a slow disk; the lines are written even if it takes longer
_LINGER_S = 0.01  # how long the thread collects lines, unless `flush` or `close` is waiting


class LineQueue:
    """A thread that owns `file` and writes the queued lines by `write`. Thread-safe.

    The constructor raises `TraceError` if no thread can be started. `close` or the interpreter's exit ends
    the thread, after it has written all queued lines. If writing failed and no call has raised that, the
    exit warns. In a forked child the queue is closed, and the parent writes the queued lines. `fsync`: each
    flush calls `fsync`.
    """

    def __init__(self, file: LineFile, write: Callable[[list[bytes]], None], *, fsync: bool = False) -> None:
        self._file = file
        self._write = write
        self._fsync = fsync
        self._refusal: str | None = None
        self._told = False
        self._closed = False
        self._queue: SimpleQueue[_Entry] = SimpleQueue()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{file.what} {file.path.name}", daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            file.close()
            raise TraceError(
                f"The {file.what} {file.path} cannot be written: no thread could be started ({error}). "
                "End what is not needed any more, or raise the limit of processes and threads (ulimit -u)."
            ) from error
        atexit.register(self._close_at_exit)
        _OPEN.add(self)

    def put(self, line: bytes) -> None:
        """Queue a line. Raises `TraceError` if writing failed, or the queue is closed."""
        self._require_whole()
        self._queue.put(line)

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> bool:
        """Wait until all lines so far are written; `False`: that took too long. Raises `TraceError`."""
        self._require_whole()
        written = threading.Event()
        self._queue.put(written)
        self._hurry.set()
        limit_s = min(within_s, threading.TIMEOUT_MAX)
        if self._closed:  # `written` may be behind the `None` of `close`, so that nobody would set it
            self._thread.join(limit_s)
        else:
            written.wait(limit_s)
        self._require_whole()
        return written.is_set()

    def close(self) -> None:
        """Write all queued lines, without a time limit, and end the thread.

        Raises `TraceError` if writing failed and no earlier call has raised that.
        """
        closing, self._closed = not self._closed, True
        if closing:
            self._queue.put(None)
            self._hurry.set()
        self._thread.join()
        if closing:
            atexit.unregister(self._close_at_exit)
            _OPEN.discard(self)
            if self._refusal is not None and not self._told:
                self._require_whole()

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except TraceError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=1)  # nobody could catch an exception here

    def _run(self) -> None:
        block_signals()
        try:
            while self._write_some():
                pass
        finally:
            self._file.close()

    def _write_some(self) -> bool:
        entries = [self._queue.get()]
        self._hurry.wait(_LINGER_S)
        # Clear `_hurry` before the queue is emptied. `flush` and `close` queue their entry before they set
        # `_hurry`. So if one of them had set it before, its entry is in `entries` after the loop below.
        self._hurry.clear()
        while not self._queue.empty():  # only this thread takes entries out
            entries.append(self._queue.get_nowait())
        waiting = [entry for entry in entries if isinstance(entry, threading.Event)]
        if self._refusal is None:
            try:
                self._write([entry for entry in entries if isinstance(entry, bytes)])
                if self._fsync and waiting:
                    self._file.sync()
            except TraceError as error:
                self._refusal = str(error)
            except Exception as error:  # noqa: BLE001 - every cause of a lost line is reported
                what = f"{type(error).__name__}: {error}".rstrip(": ")
                self._refusal = f"Cannot write the {self._file.what} {self._file.path}: {what}."
        for written in waiting:
            written.set()
        return None not in entries

    def _require_whole(self) -> None:
        if self._refusal is not None:
            self._told = True
            raise TraceError(self._refusal)
        if self._closed:
            raise TraceError(
                f"The {self._file.what} {self._file.path} is closed. Make a new runner or writer."
            )

    def _leave_to_parent(self) -> None:
        self._closed = True
        name = f"{self._file.what} {self._file.path}"
        self._refusal = f"The {name} is written by the process that opened it, not by a fork."
        self._file.close()


_Entry: TypeAlias = bytes | threading.Event | None  # a line, a waiting `flush`, or `close`
_OPEN: weakref.WeakSet[LineQueue] = weakref.WeakSet()


def writes_lines(thread: threading.Thread) -> bool:
    """Return whether this is the thread of a `LineQueue`. Such a thread never wakes an event loop."""
    return any(queue._thread is thread for queue in _OPEN)  # noqa: SLF001 - the module's own


def _leave_all_to_parent() -> None:
    for queue in _OPEN:
        queue._leave_to_parent()  # noqa: SLF001 - the module's own


os.register_at_fork(after_in_child=_leave_all_to_parent)


_LATE_S = 0.05


class TraceOptions(Struct, frozen=True, kw_only=True):
    """How a trace file is written.

    Attributes:
        fsync: Call `fsync` at each flush. Otherwise a crash of the machine can lose flushed lines.
        max_payload_bytes: Longest JSON text of a message that stays in its line, not counting its strings
            of base64 (`data` and `blob` of MCP) of 1 KiB or more. A longer text, and each of these strings,
            goes into a separate file, named by its hash, in `payloads` next to the trace.
        outside: The host's name. The writer flushes the file after each envelope from or to the host.
        flush_within_s: How long the writer waits for such a flush at most. After a flush that took
            longer, it waits only 50 ms, until a flush is done within 50 ms. Late lines are still written.
        version: Version of the program that writes the file, for the header.
    """

    fsync: bool = False
    max_payload_bytes: int = 65_536
    outside: str = "host"
    flush_within_s: float = FLUSH_WITHIN_S
    version: str = ""

    def __post_init__(self) -> None:
        check_settings(self)


def refuse_unreadable(envelope: Envelope[Any], body: bytes) -> None:
    """Raise `TraceError` if the body has no tag, `turn` or `sender` has a wrong type, or a note is too deep.

    `grue trace` could not read such an envelope. Set this as `Recorder.check` if a trace file is written.
    """
    usable = body.startswith(b'{"type":') and type(envelope.turn) is int and isinstance(envelope.sender, str)
    # Only a note's depth is checked: what models and tools send is refused or cut at about 100 levels.
    if not usable or (envelope.receiver == "trace" and fmt.is_deeper(body, fmt.MAX_DEPTH)):
        raise TraceError(
            f"{type(envelope.body).__name__} cannot be recorded: the trace could not be read any more. Record"
            f" a Fact, or another message with a tag, nested at most {fmt.MAX_DEPTH} levels deep; sender= is"
            " a text and turn= an int."
        )


class TraceWriter(Closing):
    """Write a trace file that only its owner can read. Use it as an observer of a `Recorder`.

    Thread-safe. A file lock keeps other writers out, unless the file system has no locks. A forked child's
    writer is closed.

    Args:
        episode: Id of the episode, for the file's first line.
        started_at: Seconds since the epoch; `None`: now. Ignored with `resume`.
        options: How the file is written; `None`: `TraceOptions()`.
        resume: Continue an existing file. An incomplete last line is removed, or completed if it lacks only
            its newline.

    Raises:
        MCPConfigError: An argument cannot be used.
        TraceError: The file cannot be opened, or another writer writes it. Without `resume`: it is not empty.
            With `resume`: its first or last line is damaged, or it has another episode's id or another
            format. On recording an envelope, on `flush` and on `close`: writing failed. Earlier lines stay.
            On recording an envelope and on `flush`: the writer is closed. On recording an envelope: its
            number is not above `last_seq` and those already recorded.

    Attributes:
        place: The absolute path, which stays right if the host changes its working directory.
        last_seq: Number of the last envelope in the file when the writer opened it; 0: there was none.
        last_t: The time of that envelope, in seconds as in `Envelope.t`; 0.0: there was none.
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
        for argument, value, kind in (
            ("episode", episode, str),
            ("started_at", started_at, int | float | None),
            ("options", options, TraceOptions | None),
        ):
            if not isinstance(value, kind):
                raise MCPConfigError(f"TraceWriter: {argument}= cannot be of type {type(value).__name__}.")
        if started_at is not None and not is_usable(started_at, above_0=False):
            raise MCPConfigError(f"TraceWriter: started_at= wants seconds, not {shown(started_at)}.")
        self.path = as_path(path, "TraceWriter")
        self.last_seq, self.last_t = 0, 0.0
        self._options = options or TraceOptions()
        header = _header_to_resume(self.path, episode) if resume else None
        self._file = LineFile(self.path, "trace file")
        self.place = self._file.place
        try:
            if not self._file.lock():
                raise TraceError(
                    f"The episode of {self.path} is still being played: another process or runner writes it."
                )
            if header is None:
                self._begin(episode, time.time() if started_at is None else started_at)
            elif (last := self._last_whole_line(len(header))) is not None:
                self.last_seq, self.last_t = last.seq, last.t
        except BaseException:
            self._file.close()
            raise
        self._written_seq = self.last_seq
        self._in_time = True
        self._lines = LineQueue(self._file, self._write, fsync=self._options.fsync)
        self._recorders: list[Recorder] = []

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        """Queue the line of an envelope; flush if the host sends or receives it. Raises `TraceError`."""
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

    def added_to(self, recorder: Recorder) -> None:
        """Remember the recorder, so that `close` waits for the recorder. `Recorder.add` calls this."""
        self._recorders.append(recorder)

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> bool:
        """Flush all lines that are queued so far. Return whether that was done within the time limit.

        Raises:
            TraceError: Writing failed, or the writer is closed.
        """
        return self._lines.flush(within_s)

    def close(self) -> None:
        """Write all that was recorded, without a time limit, and close the file. A second call does nothing.

        Long messages that are still being searched for secrets are written too.

        Raises:
            TraceError: Writing failed, and no earlier call has raised that. Any other exception of an
                observer of the recorder is raised, too.
        """
        recorders, self._recorders = self._recorders, []
        try:
            for recorder in recorders:
                recorder.settle()
        finally:
            self._lines.close()

    def _begin(self, episode: str, started_at: float) -> None:
        if self._file.size:
            raise TraceError(f"The trace file {self.path} exists already: choose another name, or remove it.")
        version = self._options.version
        header = fmt.TraceHeader(format=fmt.FORMAT, episode=episode, started_at=started_at, version=version)
        self._file.write(msgspec.json.encode(header))

    def _last_whole_line(self, after: int) -> fmt.TraceLine | None:
        """Repair the file's end, and return the last line; `None`: the file has only a header."""
        written = self._file.last_line()
        if not written.endswith(b"\n"):
            line = _line(written)
            if line is not None or self._file.size == after:
                # The last line lacks only its newline. Keep it: readers accept such a line, and the host may
                # have restored its state from it already.
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
            strings = fmt.long_strings(line)
            if strings or len(line) > self._options.max_payload_bytes:
                self._file.write(*lines[start:position])
                self._file.write(self._shortened(line, strings))
                start = position + 1
        self._file.write(*lines[start:])
        self._file.require_not_deleted()

    def _shortened(self, written: bytes, strings: list[tuple[int, int]]) -> bytes:
        """Move a line's long `strings` into files. If its body is still too long, move the body as well."""
        view = memoryview(written)
        pieces: list[memoryview] = []
        extracts: list[fmt.Extract] = []
        end = length = 0
        for start, following in strings:
            pieces += [view[end:start], _EMPTY]
            length += start - end
            string = view[start:following]
            extracts.append(fmt.Extract(at=length, sha256=self._kept(string), bytes=len(string)))
            length, end = length + 2, following
        kept = memoryview(b"".join([*pieces, view[end:]])) if strings else view
        return self._with_reference(kept, extracts)

    def _with_reference(self, written: memoryview, extracts: list[fmt.Extract]) -> bytes:
        # Decoding the whole line would copy it, and block other threads. The search finds nothing inside a
        # string, because the quotes in a string are escaped. The body is the last member of a line.
        start = _BODY.search(written)
        assert start is not None, "a line has a body"
        before = start.end()
        head = _LINES.decode(bytes(written[:before]) + b"0}")
        body = written[before:-1]
        line = replace(head, extracts=tuple(replace(each, at=each.at - before) for each in extracts))
        if len(body) <= self._options.max_payload_bytes:
            return msgspec.json.encode(replace(line, body=msgspec.Raw(bytes(body))))
        tag = fmt.tag_at_start(body) or UNSET
        reference = fmt.PayloadReference(sha256=self._kept(body), bytes=len(body), type=tag)
        return msgspec.json.encode(replace(line, body=msgspec.Raw(msgspec.json.encode(reference))))

    def _kept(self, content: memoryview) -> str:
        """Write a payload file, unless it exists with the same size, and return the hash that names it."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = fmt.payload_path(self.place, sha256)
        with os_errors_as(TraceError, f"write the trace's payload {path}"):
            if not path.exists() or path.stat().st_size != len(content):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                # Other traces in this folder may be writing the same payload, so each has its own draft.
                draft = f"{hashlib.sha256(os.fsencode(self.path.name)).hexdigest()}.part"
                write_whole(path, content, fsync=self._options.fsync, draft=draft)
        return sha256


def writers_of(recorder: Recorder) -> list[TraceWriter]:
    """Return the observers of a recorder that write its messages to trace files."""
    return [each for each in recorder.observers if isinstance(each, TraceWriter)]


_BODY = re.compile(rb'"body":')
_EMPTY = memoryview(b'""')
_LINES = msgspec.json.Decoder(fmt.TraceLine)


def _line(written: bytes) -> fmt.TraceLine | None:
    try:
        return _LINES.decode(written)
    except fmt.UNDECODABLE:
        return None


def _header_to_resume(path: Path, episode: str) -> bytes:
    with os_errors_as(TraceError, f"read the trace file {path}"), open_regular(path) as file:
        first = next_line(file)
    header = fmt.read_header(path, first)
    if header.format != fmt.FORMAT:
        raise TraceError(
            f"{path} has trace format {header.format}; only format {fmt.FORMAT} can be continued."
        )
    if header.episode != episode:
        raise TraceError(f"{path} is the trace of the episode {header.episode}, not of {episode}.")
    return first
