"""Write lines in one background thread, in order, without losing one and without delaying who writes them.

Putting a line in only queues it. The thread takes what has come together within a few milliseconds and hands
it to the operating system in one write. Whoever needs to know that a line is written waits for it: `flush`.
"""

import atexit
import os
import signal
import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeAlias

from grue.errors import TraceError
from grue.runtime.line_file import LineFile

FLUSH_WITHIN_S = 2.0
"""How long to wait for a disk that does not answer; what is queued is written later all the same."""

_LINGER_S = 0.01
"""How long the thread lets lines come together before it writes them, unless somebody waits for them."""


class LineQueue:
    """A thread that owns `file` and writes what is put in. Safe to call from several threads.

    It runs from now on until `close`, or until the interpreter exits, and then writes what is queued. A
    forked child has no such thread: there the queue is closed, and what was in it is the parent's to write.

    Args:
        file: Written and closed by the thread alone.
        write: Called in the thread with lines to write into the file; raises `TraceError` if it cannot.
        fsync: Have the disk take what is flushed, too.

    Raises:
        TraceError: The system has no thread left for it.
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
            TraceError: The disk took no more, or the queue is closed.
        """
        if self._refusal is not None:
            raise self._refused()
        self._queue.put(line)

    def flush(self, within_s: float = FLUSH_WITHIN_S) -> bool:
        """Wait until everything put in so far is in the operating system's hands; say whether it is.

        Raises:
            TraceError: The disk took no more, or the queue is closed.
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
        """Write what is queued, however long the disk takes, and end. A second call does nothing.

        Raises:
            TraceError: The disk took no more, and nobody has been told yet.
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
        # Signals are for the thread that plays: one delivered here would not wake it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while self._write_some():
                pass
        finally:
            self._file.close()

    def _write_some(self) -> bool:
        """Write what has come together; say whether more may come."""
        entries = [self._queue.get()]
        self._hurry.wait(_LINGER_S)
        # What hurried is in the queue already: who waits puts that in before it hurries the thread.
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
"""A line, somebody who waits until the lines before are written, or the end."""

_OPEN: "weakref.WeakSet[LineQueue]" = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for queue in _OPEN:
        queue._leave_to_parent()  # noqa: SLF001 - the module's own


os.register_at_fork(after_in_child=_leave_all_to_parent)
