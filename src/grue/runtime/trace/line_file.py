"""A file that is written line by line, and that only its owner can read."""

import fcntl
import os
import stat
from pathlib import Path

from grue.errors import TraceError
from grue.runtime.safe_open import MAX_LINE_BYTES, require_regular

_LOOK_BACK = 65_536


class LineFile:
    """Append lines to a file. When `write` returns, the line has been passed to the operating system.

    Args:
        path: The file. It is created if it does not exist.
        what: Name of this kind of file for error texts, such as `event log`.

    Raises:
        TraceError: The file cannot be created. Names the path and the cause.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if stat.S_ISREG(os.fstat(self._fd).st_mode):  # a device or a pipe is not ours to change
                os.fchmod(self._fd, 0o600)
        except OSError as error:
            self.close()
            raise self._refused(error) from error

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self._fd).st_size

    def lock(self) -> bool:
        """Lock the file for this process. Return `False` if another process has locked it.

        The lock is advisory. It ends when the file is closed or the process ends, however it ends. On a file
        system without locks this does nothing and returns `True`.
        """
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def write(self, *lines: bytes) -> None:
        """Append `lines`, with a newline after each.

        Raises:
            TraceError: The disk is full, or the file is closed. Names the path and the cause.
        """
        rest = memoryview(b"\n".join((*lines, b"")))
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            # The last line may be incomplete now. Another line after it would make the file unreadable.
            self.close()
            raise self._refused(error) from error

    def require_not_deleted(self) -> None:
        """Check that the file was not deleted meanwhile. Nobody could read further lines.

        Raises:
            TraceError: It was deleted. Names its former path.
        """
        if os.fstat(self._fd).st_nlink == 0:
            raise TraceError(f"The {self.what} {self.path} was deleted while it was being written.")

    def last_line(self) -> bytes:
        """Return the last line, with its newline if it has one.

        Raises:
            TraceError: It is longer than a trace line can be. Names the path.
        """
        size = self.size
        start = self._line_start(size - 1)
        if size - start > MAX_LINE_BYTES:
            raise TraceError(
                f"The last line of the {self.what} {self.path} is too long: the file is damaged."
            )
        return os.pread(self._fd, size - start, start)

    def cut_half_line(self) -> None:
        """Remove an incomplete last line: everything after the last newline.

        Raises:
            TraceError: The file cannot be changed, or is not a regular file. Names the path and the cause.
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
        """Return the position after the last newline before `end`; 0 if there is none."""
        while end > 0:
            start = max(0, end - _LOOK_BACK)
            found = os.pread(self._fd, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes.

        Raises:
            TraceError: The file cannot be changed. Names the path and the cause.
        """
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._refused(error) from error

    def sync(self) -> None:
        """Flush the file to the disk (`fsync`).

        Raises:
            TraceError: That failed. Names the path and the cause.
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
    """Remove an incomplete last line, which a killed writer may have left, from a file.

    Raises:
        TraceError: The file cannot be written. Names the path and the cause.
    """
    file = LineFile(path, what)
    try:
        file.cut_half_line()
    finally:
        file.close()
