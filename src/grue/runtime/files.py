"""Read files that other programs may have damaged, replace whole files atomically, and append lines."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from grue.errors import MCPConfigError, MCPError, TraceError
from grue.field_checks import shown

MAX_LINE_BYTES = 512 * 2**20  # of a trace line or payload; a reply of 64 MiB fits even if wholly escaped
_USUAL_LINE = 2**20
_CHUNK = 2**20


def os_cause(error: Exception) -> str:
    """Return the cause that an `OSError` names, or else the error's text, or else its class."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def is_terminal(stream: object) -> bool:
    """`True` if a standard stream is a terminal; it may be closed, or `None` as in a daemon."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and not getattr(stream, "closed", False) and bool(isatty())


@contextmanager
def os_errors_as(kind: Callable[..., MCPError], doing: str, **about: str) -> Iterator[None]:
    """Raise an `OSError` of the system in the block as `kind("Cannot DOING: CAUSE.", **about)`."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise  # not the system's: a signal handler of the program has raised it, such as a `TimeoutError`
        raise kind(f"Cannot {doing}: {error.strerror}.", **about) from error


def as_path(given: object, what: str) -> Path:
    """Return `given` as a `Path`. Raise `MCPConfigError` if it is no path, or no file can have this path."""
    if not isinstance(given, str | os.PathLike):
        raise MCPConfigError(f"{what} wants a path, 'file' or Path('file'), not {shown(given)}.")
    path = Path(given)
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise MCPConfigError(f"{what} wants a path, and no file can have this name: {shown(str(path))}.")
    return path


def expanded(path: str) -> Path:
    """Return a path with `~` or `~USER` expanded: to `/nonexistent` if the home folder is not known."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path("/nonexistent", *Path(path).parts[1:])


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises `OSError` for any other file. Does not wait for a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise OSError(errno.EINVAL, _unusable(error)) from error
    try:
        require_regular(descriptor)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _unusable(error: ValueError) -> str:
    """Return why no file can have a name, from the error that the name has caused."""
    if isinstance(error, UnicodeEncodeError):
        return f"its name has a character that {error.encoding} cannot encode: {error.object[error.start]!a}"
    return "its name has a NUL character in it"


def require_regular(descriptor: int) -> None:
    """Raise `OSError` if an open file is a folder, pipe, socket or device."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a regular file")


def read_regular(path: Path, max_bytes: int = MAX_LINE_BYTES) -> bytes:
    """Return the content of a regular file; raises `OSError`, also if it has more than `max_bytes`."""
    with open_regular(path) as file:
        too_large = os.fstat(file.fileno()).st_size > max_bytes
        content = b"" if too_large else file.read(max_bytes + 1)
    if too_large or len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {_in_words(max_bytes)}")
    return content


def next_line(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> bytes:
    """Return the next line, with its newline if any; `b""`: the file has ended.

    Raises `OSError` if the line is longer than `max_bytes` and than 1 MiB.
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
            raise OSError(errno.EFBIG, f"it is longer than {_in_words(max_bytes)}")
        if end >= 0:
            break
    file.seek(start)
    return file.read(length)


def _in_words(size: int) -> str:
    for unit, name in ((2**20, "MiB"), (2**10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size:,} bytes"


_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_whole(
    path: Path,
    content: bytes | memoryview,
    *,
    mode: int = 0o600,
    fsync: bool = False,
    draft: str | None = None,
    dir_fd: int | None = None,
) -> None:
    """Write a whole file in place of any old one. The other arguments, and errors, are as in `replacing`."""
    with replacing(path, mode=mode, fsync=fsync, draft=draft, dir_fd=dir_fd) as file:
        file.write(content)


@contextmanager
def replacing(
    path: Path, *, mode: int = 0o600, fsync: bool = False, draft: str | None = None, dir_fd: int | None = None
) -> Iterator[BinaryIO]:
    """Open a draft for writing; it takes the place of `path` when the block ends without an error.

    Raises `OSError` if that fails; the old file stays. `fsync`: wait until the content is on the disk;
    otherwise a crash of the machine can lose it. `draft`: a fixed name for the draft, if the file has one
    writer at a time: the next write then removes the draft of a killed writer; `None`: a random name.
    `dir_fd`: the open folder that `path` is relative to; `None`: the working directory.
    """
    if str(path.parent) == "/dev":  # as root, `os.replace` below would put a file in place of a device
        raise OSError(errno.EINVAL, "it is among the devices")
    made = draft_beside(path) if draft is None else path.with_name(draft)
    if draft is not None:
        with suppress(FileNotFoundError):
            os.unlink(made, dir_fd=dir_fd)
    with drafted(made, mode=mode, fsync=fsync, dir_fd=dir_fd) as file:
        yield file
    try:
        os.replace(made, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError:
        os.unlink(made, dir_fd=dir_fd)
        raise


def draft_beside(path: Path) -> Path:
    """Return the path of a draft in the folder of `path`, with a random name."""
    return path.with_name(f".{secrets.token_hex(8)}.part")


@contextmanager
def drafted(
    path: Path, *, mode: int = 0o600, fsync: bool = False, dir_fd: int | None = None
) -> Iterator[BinaryIO]:
    """Create a file, which must not exist yet, and open it for writing. If the block fails, remove it."""
    descriptor = os.open(path, _FLAGS, mode, dir_fd=dir_fd)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if fsync:
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            os.unlink(path, dir_fd=dir_fd)
        raise


def locked(descriptor: int) -> bool:
    """Lock an open file until it is closed, if its file system has locks; `False`: it is locked already."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # if it is no `BlockingIOError`, the file system has no locks: go on
        return not isinstance(error, BlockingIOError)
    return True


_LOOK_BACK = 65_536


class LineFile:
    """Appends lines to a file, which is made if missing. In the text of a `TraceError`, it is called `what`.

    When `write` returns, the system has the lines. A regular file gets the permissions 0600. `place` is
    the absolute path, which stays right if the program changes its working directory.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self._fd = -1
        try:
            with self._closed_on_errors():
                self.place = path.absolute()
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                if stat.S_ISREG(os.fstat(self._fd).st_mode):
                    os.fchmod(self._fd, 0o600)
        except ValueError as error:
            name = str(path).replace("\0", "\\0")
            raise TraceError(f"Cannot write the {what} {name}: {_unusable(error)}.") from error

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return os.fstat(self._fd).st_size

    def lock(self) -> bool:
        """Lock the file until it is closed; `False`: another process or `LineFile` has locked it."""
        return locked(self._fd)

    def write(self, *lines: bytes) -> None:
        """Append `lines`, with a newline after each. If that fails, close the file and raise `TraceError`."""
        rest = memoryview(b"\n".join((*lines, b"")))
        with self._closed_on_errors():
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def require_not_deleted(self) -> None:
        """Raise `TraceError` if the file was deleted since it was opened."""
        if os.fstat(self._fd).st_nlink == 0:
            raise TraceError(f"The {self.what} {self.path} was deleted while it was being written.")

    def last_line(self) -> bytes:
        """Return the last line, with its newline if any; raises `TraceError`, also over `MAX_LINE_BYTES`."""
        with self._closed_on_errors():
            size = self.size
            start = self._line_start(size - 1)
        if size - start > MAX_LINE_BYTES:
            raise TraceError(
                f"The last line of the {self.what} {self.path} is too long: the file is damaged."
            )
        with self._closed_on_errors():
            return os.pread(self._fd, size - start, start)

    def cut_half_line(self) -> None:
        """Remove what follows the last newline. If it fails, close the file and raise `TraceError`."""
        with self._closed_on_errors():
            require_regular(self._fd)
            start = self._line_start(self.size)
        self.cut(start)

    def _line_start(self, end: int) -> int:
        while end > 0:
            start = max(0, end - _LOOK_BACK)
            found = os.pread(self._fd, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def cut(self, size: int) -> None:
        """Truncate the file to `size` bytes. If it fails, close the file and raise `TraceError`."""
        with self._closed_on_errors():
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """Flush the file to the disk (`fsync`). If it fails, close the file and raise `TraceError`."""
        with self._closed_on_errors():
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def _closed_on_errors(self) -> Iterator[None]:
        with os_errors_as(TraceError, f"write the {self.what} {self.path}"):
            try:
                yield
            except OSError:
                # The last line may be incomplete now. Another line after it would make the file unreadable.
                self.close()
                raise


def cut_half_line(path: Path, what: str) -> None:
    """Remove an incomplete last line from a file, which is made if missing; may raise `TraceError`."""
    file = LineFile(path, what)
    try:
        file.cut_half_line()
    finally:
        file.close()
