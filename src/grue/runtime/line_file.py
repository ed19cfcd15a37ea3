"""A file that is written a line at a time and readable by its owner only."""

import fcntl
import os
from pathlib import Path

from grue.errors import TraceError
from grue.runtime.safe_open import MAX_LINE_BYTES, require_regular

_LOOK_BACK = 65_536


class LineFile:
    """Append lines to `path`; each is handed to the operating system whole before `write` returns.

    Args:
        path: The file; made if it is absent, appended to otherwise.
        what: What it is, for error texts: `event log`.

    Raises:
        TraceError: The file cannot be made; names the path and why.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.fchmod(self._fd, 0o600)
        except OSError as error:
            self.close()
            raise self._refused(error) from error

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._fd).st_size

    def lock(self) -> bool:
        """Keep other processes from locking the file too; say whether none has. Closing it ends the lock.

        The lock is advisory, and it goes with the process that holds it, however that ends. Where the file
        system has no locks there is none.
        """
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def write(self, *lines: bytes) -> None:
        """Append `lines`, a newline after each.

        Raises:
            TraceError: The disk is full, or the file is closed; names the path and why.
        """
        rest = memoryview(b"\n".join((*lines, b"")))
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            # A line after one that was cut short would make the file unreadable from there on.
            self.close()
            raise self._refused(error) from error

    def require_kept(self) -> None:
        """Refuse a file that was deleted meanwhile: nobody would find what is written into it.

        Raises:
            TraceError: It has no name any more; names the path that it had.
        """
        if os.fstat(self._fd).st_nlink == 0:
            raise TraceError(f"The {self.what} {self.path} was deleted while it was being written.")

    def last_line(self) -> bytes:
        """Return what stands after the last newline but one, its newline included if it has one.

        Raises:
            TraceError: It is longer than a trace's line can be; names the path.
        """
        size = self.size
        start = self._line_start(size - 1)
        if size - start > MAX_LINE_BYTES:
            raise TraceError(
                f"The last line of the {self.what} {self.path} is too long: the file is damaged."
            )
        return os.pread(self._fd, size - start, start)

    def cut_half_line(self) -> None:
        """Take away what stands after the last newline.

        Raises:
            TraceError: It cannot be, or is no regular file; names the path and why.
        """
        try:
            require_regular(self._fd)
        except OSError as error:
            raise self._refused(error) from error
        size = self.size
        start = self._line_start(size)
        if start < size:
            self.cut(start)

    def _line_start(self, end: int) -> int:
        """Return the place after the last newline before `end`; 0 if there is none."""
        while end > 0:
            start = max(0, end - _LOOK_BACK)
            found = os.pread(self._fd, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def cut(self, size: int) -> None:
        """Take away what stands after `size` bytes.

        Raises:
            TraceError: It cannot be; names the path and why.
        """
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._refused(error) from error

    def sync(self) -> None:
        """Have the disk take what was written.

        Raises:
            TraceError: It cannot; names the path and why.
        """
        try:
            os.fsync(self._fd)
        except OSError as error:
            self.close()
            raise self._refused(error) from error

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _refused(self, error: OSError) -> TraceError:
        return TraceError(f"Cannot write the {self.what} {self.path}: {error.strerror}.")


def cut_half_line(path: Path, what: str) -> None:
    """Take away a last line without a newline, which a writer that was killed has left; if there is any.

    Raises:
        TraceError: The file cannot be written; names the path and why.
    """
    file = LineFile(path, what)
    try:
        file.cut_half_line()
    finally:
        file.close()
