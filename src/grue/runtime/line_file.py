"""A file that is written a line at a time and readable by its owner only."""

import os
from pathlib import Path

from grue.errors import TraceError


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
        self._what = what
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.fchmod(self._fd, 0o600)
        except OSError as error:
            raise self._refused(error) from error

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._fd).st_size

    def write(self, line: bytes) -> None:
        """Append `line` and a newline.

        Raises:
            TraceError: The disk is full, or the file is closed; names the path and why.
        """
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            # A line after one that was cut short would make the file unreadable from there on.
            self.close()
            raise self._refused(error) from error

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _refused(self, error: OSError) -> TraceError:
        return TraceError(f"Cannot write the {self._what} {self.path}: {error.strerror}.")
