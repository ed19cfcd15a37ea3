"""`ConfinedFolder`: reads and writes files inside one folder, by paths that come from a model or a tool.

Each folder of a path is opened relative to the one before, and links are not followed. So another program
cannot lead a path out of the folder by putting a link in place of a folder while the path is being used.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grue.runtime.files import as_path, os_cause, write_whole
from grue.runtime.safe_text import printable

MAX_FILE_BYTES = 2**20
MAX_ENTRIES = 1000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NAME_CHARS = 200
_REASONS = {
    errno.ENOENT: "There is no file {}.",
    errno.ENOTDIR: "A part of the path {} is not a folder.",
    errno.EACCES: "There is no permission for {}.",
    errno.EPERM: "There is no permission for {}.",
    errno.ENAMETOOLONG: "The name {} is too long.",
    errno.EISDIR: "{} is a folder, not a file.",
    errno.ELOOP: "{} leads through a link, and links are not followed.",
}


class RefusedPath(ValueError):  # noqa: N818 - named for what it reports
    """A path or a file cannot be used. The text is a printable sentence that says why."""


class ConfinedFolder:
    """Files inside one folder. Paths are relative to that folder, with `/` between names.

    Args:
        root: The folder. It may be a link, because the user has chosen it. Links in it are not followed.
        max_bytes: Size limit, in bytes, of a file that is read or written.
        called: What errors call the folder.
    """

    def __init__(self, root: Path, *, max_bytes: int = MAX_FILE_BYTES, called: str = "the workspace") -> None:
        # Absolute, because the program may change its working directory.
        self.root = as_path(root, "ConfinedFolder").absolute()
        self._called = called
        self._max_bytes = max_bytes

    def read(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            RefusedPath: The path cannot be used, or the file is too large or is not UTF-8 text.
        """
        *folders, name = self._names(path)
        with _refusing(path), self._folder(folders) as folder:
            _require_file(path, os.lstat(name, dir_fd=folder))
            with os.fdopen(os.open(name, os.O_RDONLY | _FILE, dir_fd=folder), "rb") as file:
                status = os.fstat(file.fileno())
                _require_file(path, status)  # the file may have been replaced since `lstat`
                content = file.read(self._max_bytes + 1)
        if len(content) > self._max_bytes:
            raise self._too_large(path, max(status.st_size, len(content)))
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise RefusedPath(f"{_shown(path)} is not UTF-8 text.")
        return text

    def write(self, path: str, text: str) -> int:
        """Replace a file, or create it with its parent folders, and return its length in bytes.

        Readers see the old text or the new one, also if this process is killed.

        Raises:
            RefusedPath: The path cannot be used, or the text is too large, or cannot be encoded or written.
        """
        *folders, name = self._names(path)
        try:
            content = text.encode()
        except UnicodeEncodeError:
            raise RefusedPath(
                f"The text for {_shown(path)} has a character that cannot be encoded."
            ) from None
        if len(content) > self._max_bytes:
            raise self._too_large(path, len(content))
        with _refusing(path), self._folder(folders, create=True) as folder:
            mode = 0o666
            with suppress(FileNotFoundError):
                before = os.lstat(name, dir_fd=folder)
                _require_file(path, before)
                mode = stat.S_IMODE(before.st_mode)
            # Give the draft a fixed name: the next write then replaces one that a killed process has left.
            # But if the folder cannot be locked, another writer may be using that name: take a random one.
            fixed = f".{hashlib.sha256(name.encode()).hexdigest()[:16]}.part"
            draft = fixed if _is_only_writer(folder) else None
            write_whole(Path(name), content, mode=mode, fsync=True, draft=draft, dir_fd=folder)
        return len(content)

    def entries(self, path: str = ".") -> list[str]:
        """Return the names in a folder, sorted, such as `notes/` (folder) or `todo.txt (120 bytes)` (file).

        Raises:
            RefusedPath: The path cannot be used, or the folder has more than `MAX_ENTRIES` entries.
        """
        with (
            _refusing(path),
            self._folder(self._names(path, folder=True)) as folder,
            os.scandir(folder) as found,
        ):
            listed: list[str] = []
            for entry in found:
                if len(listed) == MAX_ENTRIES:
                    raise RefusedPath(f"{_shown(path)} has more than {MAX_ENTRIES} entries.")
                listed.append(_described(entry))
        return sorted(listed)

    def _names(self, path: str, *, folder: bool = False) -> list[str]:
        """Split a path into names. With `folder`, the path may be `.` or end with a slash."""
        if not isinstance(path, str) or not path.isprintable():
            raise RefusedPath(f"{_shown(str(path))} has a control character in it.")
        if path.startswith("/"):
            raise RefusedPath(f"{_shown(path)} is an absolute path; name one inside {self._called}.")
        names = [name for name in path.split("/") if name not in ("", ".")]
        if ".." in names:
            raise RefusedPath(f"{_shown(path)} may leave {self._called}: a path may not contain '..'.")
        if not folder and (not names or path.endswith("/")):
            raise RefusedPath(f"{_shown(path)} is a folder, not a file.")
        return names

    def _too_large(self, path: str, size: int) -> RefusedPath:
        return RefusedPath(f"{_shown(path)} has {size:,} bytes; the limit is {self._max_bytes:,}.")

    @contextmanager
    def _folder(self, names: list[str], *, create: bool = False) -> Iterator[int]:
        """Yield the file descriptor of the folder at the path `names` below the root."""
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(name, dir_fd=folder)
                inner = _enter(name, folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def _is_only_writer(folder: int) -> bool:
    """Lock an open folder until its descriptor is closed; return whether it could be locked."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another writer holds the lock, or the file system has no locks
        return False
    return True


def _enter(name: str, folder: int) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
            raise OSError(errno.ELOOP, "a link") from None
        raise


def _require_file(path: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder")
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "a link")
    raise RefusedPath(f"{_shown(path)} is a pipe, a socket or a device, not a file.")


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        shown = _shown(path)
        text = f"{shown}: {os_cause(error)}." if reason is None else reason.format(shown)
        raise RefusedPath(text) from error


def _described(entry: "os.DirEntry[str]") -> str:
    name = printable(entry.name, _NAME_CHARS)
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # it was removed meanwhile, or this user may not look at it
        return name
    if stat.S_ISDIR(status.st_mode):
        return f"{name}/"
    if stat.S_ISREG(status.st_mode):
        return f"{name} ({status.st_size} bytes)"
    return f"{name} ({'a link' if stat.S_ISLNK(status.st_mode) else 'not a file'})"


def _shown(path: str) -> str:
    return printable(path, _NAME_CHARS) or "The empty path"
