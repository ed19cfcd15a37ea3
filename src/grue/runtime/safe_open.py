"""Open and read untrusted files: they may be endless pipes, devices, or have lines of a gigabyte.

Use it for files that another program may have written or damaged. Every function raises `OSError` only. The
caller translates it into its own error, with the file's name.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_LINE_BYTES = 512 * 2**20
"""Longest trace line and largest payload that is read. The largest message that can be recorded is a reply of
64 MiB. It is shorter than this, even with every character escaped."""

_USUAL_LINE = 2**20
_CHUNK = 2**20


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. On a pipe it raises and does not wait for the other end.

    Raises:
        OSError: The file is missing or may not be read, or it is a folder, pipe, socket or device.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise OSError(errno.EINVAL, "its name has a NUL character in it") from error
    try:
        require_regular(descriptor)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular(descriptor: int) -> None:
    """Check that an open file is a regular file.

    Raises:
        OSError: It is a folder, pipe, socket or device.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a regular file")


def read_regular(path: Path, max_bytes: int = MAX_LINE_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: As `open_regular`. Or the file is larger than `max_bytes`; no more than that is read.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise _too_large(max_bytes)
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_large(max_bytes)
    return content


def next_line(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> bytes:
    """Return the next line with its newline. The last line may have none; at the end the line is `b""`.

    A line that is longer than `max_bytes` is not read into memory.

    Raises:
        OSError: The file cannot be read, or the line is longer than `max_bytes`.
    """
    text = file.readline(_USUAL_LINE)
    if len(text) < _USUAL_LINE or text.endswith(b"\n"):
        return text
    start = file.tell() - len(text)
    length = len(text)
    while chunk := file.read(_CHUNK):
        end = chunk.find(b"\n")
        length += len(chunk) if end < 0 else end + 1
        if length > max_bytes:
            raise OSError(errno.EFBIG, f"it is longer than {_mib(max_bytes)}")
        if end >= 0:
            break
    file.seek(start)
    return file.read(length)


def _too_large(max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {_mib(max_bytes)}")


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
