"""Write lines in a background thread, in order, without loss and without blocking the caller.

`put` only queues a line. The thread collects lines for a few milliseconds and writes them in one system call.
`flush` waits until the lines so far are written.
"""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias

from grue.errors import TraceError
from grue.runtime.loops.interrupts import block_signals
from grue.runtime.trace.line_file import LineFile

FLUSH_WITHIN_S = 2.0
"""How long `flush` waits for a slow disk. The queued lines are still written later."""

_LINGER_S = 0.01
"""How long the thread collects lines before it writes them, unless `flush` is waiting."""


class LineQueue:
    """A thread that owns `file` and writes the queued lines. Thread-safe.

    The thread runs until `close` or the interpreter's exit, and writes all queued lines first. A forked child
    does not have the thread. There the queue is closed, and the parent writes the queued lines.

    Args:
        file: Written and closed by the thread only.
        write: Called in the thread with the lines to write. Raises `TraceError` if it cannot.
        fsync: Call `fsync` at each flush.

    Raises:
        TraceError: The system has no thread left.
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
        atexit.register(self.close)
        _OPEN.add(self)

    def put(self, line: bytes) -> None:
        """Queue a line.

        Raises:
            TraceError: Writing failed, or the queue is closed.
        """
        if self._refusal is not None:
            raise self._refused()
        self._queue.put(line)

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> bool:
        """Wait until all lines so far are written. Return whether that was done within the time limit.

        Raises:
            TraceError: Writing failed, or the queue is closed.
        """
        if self._refusal is not None:
            raise self._refused()
        written = threading.Event()
        self._queue.put(written)
        self._hurry.set()
        in_time = written.wait(within_s)
        if self._refusal is not None:
            raise self._refused()
        return in_time

    def close(self) -> None:
        """Write all queued lines, without a time limit, and end. A second call does nothing.

        Raises:
            TraceError: Writing failed, and no earlier call has raised that.
        """
        if self._closed:
            return
        self._queue.put(None)
        self._hurry.set()
        self._thread.join()
        self._closed = True
        atexit.unregister(self.close)
        _OPEN.discard(self)
        if self._refusal is None:
            self._refusal = f"The {self._file.what} {self._file.path} is closed."
        elif not self._told:
            raise self._refused()

    def _run(self) -> None:
        block_signals()
        try:
            while self._write_some():
                pass
        finally:
            self._file.close()

    def _write_some(self) -> bool:
        """Write the collected lines. Return whether to go on."""
        entries = [self._queue.get()]
        self._hurry.wait(_LINGER_S)
        # Clearing loses nothing: `flush` and `close` queue their entry before they set the event.
        self._hurry.clear()
        try:
            while True:
                entries.append(self._queue.get_nowait())
        except Empty:
            pass
        waiting = [entry for entry in entries if isinstance(entry, threading.Event)]
        if self._refusal is None:
            try:
                self._write([entry for entry in entries if isinstance(entry, bytes)])
                if self._fsync and waiting:
                    self._file.sync()
            except TraceError as error:
                self._refusal = str(error)
        for written in waiting:
            written.set()
        return None not in entries

    def _refused(self) -> TraceError:
        self._told = True
        return TraceError(self._refusal)

    def _leave_to_parent(self) -> None:
        self._closed = True
        name = f"{self._file.what} {self._file.path}"
        self._refusal = f"The {name} is written by the process that opened it, not by a fork."
        self._file.close()


_Entry: TypeAlias = bytes | threading.Event | None
"""A line, the event of a waiting `flush`, or the end."""

_OPEN: "weakref.WeakSet[LineQueue]" = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for queue in _OPEN:
        queue._leave_to_parent()  # noqa: SLF001 - the module's own


os.register_at_fork(after_in_child=_leave_all_to_parent)
