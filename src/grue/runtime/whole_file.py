"""Write a file so that a kill cannot halve it: a reader finds all of what was there, or all of what is new.

Every file that is written at once is written here. A file that grows line by line, as a trace does, is a
`LineFile`.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

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
    """Write a file that takes the place of the one before. The arguments are those of `replacing`.

    Raises:
        OSError: It cannot be written; what was there before stays.
    """
    with replacing(path, mode=mode, fsync=fsync, draft=draft, dir_fd=dir_fd) as file:
        file.write(content)


@contextmanager
def replacing(
    path: Path,
    *,
    mode: int = 0o600,
    fsync: bool = False,
    draft: str | None = None,
    dir_fd: int | None = None,
) -> Iterator[BinaryIO]:
    """Open a draft for writing; it takes the place of `path` when the block ends without an error.

    Args:
        path: The file. Its folder has to be there.
        mode: The permissions of the new file, less the process's umask.
        fsync: Wait until the content is on the disk. Without it, it survives the process, not the machine.
        draft: A name for the draft in the same folder, for a file with one writer at a time: what a killed
            write has left is removed by the next. `None`: a name that no other writer has.
        dir_fd: The open folder that `path` is relative to; `None`: the working directory.

    Raises:
        OSError: It cannot be written; what was there before stays.
    """
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
    """Return the path of a draft in the folder of `path`, with a name that no other writer has."""
    return path.with_name(f".{secrets.token_hex(8)}.part")


@contextmanager
def drafted(
    path: Path, *, mode: int = 0o600, fsync: bool = False, dir_fd: int | None = None
) -> Iterator[BinaryIO]:
    """Open a file that must not exist yet; it is removed again if the block fails.

    Raises:
        OSError: It cannot be created or written.
    """
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
