"""Unpack an `.mcpb` bundle: an untrusted zip file with an MCP server and its `manifest.json`.

Only plain files and folders are written, and only below the bundle's own folder. Size limits apply to the
unpacked bytes too, not only to the sizes that the zip file declares.
"""

import hashlib
import itertools
import json
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

from grue.errors import MCPConfigError
from grue.runtime.files import draft_beside, os_cause
from grue.runtime.safe_text import printable

MANIFEST = "manifest.json"
MOST_PACKED = 512 << 20
MOST_UNPACKED = 1 << 30
MOST_FILES = 50_000
_MOST_FOLDERS = 10 * MOST_FILES
_MOST_LISTED = 16 << 20
_MOST_MANIFEST = 1 << 20
_MOST_NAME = 255
_MOST_LEVELS = 100
_PIECE = 1 << 20
_END = struct.Struct("<4s4H2LH")
_SIGNATURE_END = b"MCPB_SIG_END"
_END_MARK, _LOCATOR_MARK, _LOCATOR_BYTES = b"PK\x05\x06", b"PK\x06\x07", 20


class Bundle:
    """An open bundle, made by `opened`. grue does not check its signature."""

    def __init__(self, archive: zipfile.ZipFile, sha256: str, is_signed: bool) -> None:
        self.sha256, self.is_signed, self._archive = sha256, is_signed, archive
        self._files = _checked(archive.infolist())
        if MANIFEST not in self._files:
            raise MCPConfigError(f"It has no {MANIFEST}.")
        text = b"".join(self._pieces(self._files[MANIFEST], _MOST_MANIFEST))
        try:
            self.manifest: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MCPConfigError(f"Its {MANIFEST} is not JSON.") from error

    def unpack(self, folder: Path, *, executable: str = "") -> None:
        """Write the files into the new folder `folder`; only the file `executable` becomes executable."""
        if os.path.lexists(folder):
            raise MCPConfigError(f"{folder} is there already. Remove it, or choose another --name.")
        draft = draft_beside(folder)
        try:
            draft.mkdir(parents=True)
            left = MOST_UNPACKED
            for name, info in self._files.items():
                path = draft / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    for piece in self._pieces(info, left):
                        left -= len(piece)
                        file.write(piece)
                if name == str(PurePosixPath(executable)):
                    path.chmod(0o755)
            draft.rename(folder)
        except OSError as error:
            raise MCPConfigError(f"Cannot unpack into {folder}: {os_cause(error)}.") from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _pieces(self, info: zipfile.ZipInfo, most: int) -> Iterator[bytes]:
        try:
            with self._archive.open(info) as file:
                while piece := file.read(_PIECE):
                    most -= len(piece)
                    if most < 0:
                        raise MCPConfigError("It is too large when it is unpacked.")
                    yield piece
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, struct.error) as error:
            raise MCPConfigError("It is damaged, encrypted, or packed in an unusual way.") from error


@contextmanager
def opened(path: Path, sha256: str | None = None) -> Iterator[Bundle]:
    """Open a bundle and check its list of files, and its digest if `sha256` (hexadecimal) is given."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            found = _digest(file)
            if sha256 is not None and found != sha256.lower():
                raise MCPConfigError(f"It is not the file that was promised: its sha256 is {found}.")
            _check_list(file)
            # In a bundle that `mcpb sign` has signed, a signature follows the archive.
            file.seek(max(0, file.seek(0, os.SEEK_END) - len(_SIGNATURE_END)))
            is_signed = file.read() == _SIGNATURE_END
            archive = stack.enter_context(zipfile.ZipFile(file))
            bundle = Bundle(archive, found, is_signed)
        except OSError as error:
            raise MCPConfigError(f"Cannot read {path}: {os_cause(error)}.") from error
        except (zipfile.BadZipFile, ValueError, struct.error) as error:
            raise MCPConfigError(f"{path} is not a zip file.") from error
        except NotImplementedError as error:  # a file in it needs a later version of the zip format
            raise MCPConfigError(f"{path} is packed in an unusual way.") from error
        except MCPConfigError as error:
            raise MCPConfigError(f"The bundle {path.name} cannot be used. {error}") from error
        yield bundle  # outside of the `try`, so that errors of the caller's block are not caught here


def _digest(file: BufferedReader) -> str:
    if file.seek(0, os.SEEK_END) > MOST_PACKED:
        raise MCPConfigError(f"It is larger than {MOST_PACKED >> 20} MiB.")
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _check_list(file: BufferedReader) -> None:
    """Refuse ZIP64, and a list of files that is too long, before `zipfile` makes an object for each file."""
    start = max(0, file.seek(0, os.SEEK_END) - (1 << 16) - _END.size - _LOCATOR_BYTES)
    file.seek(start)
    tail = file.read()
    at = tail.rfind(_END_MARK)
    if at < 0 or at + _END.size > len(tail):
        raise MCPConfigError("It is not a zip file.")
    _, _, _, _, count, size, _, _ = _END.unpack_from(tail, at)
    # ZIP64 is refused, because `zipfile` reads the size of such an archive's list from another place.
    if tail[max(0, at - _LOCATOR_BYTES) :].startswith(_LOCATOR_MARK):
        raise MCPConfigError("It is a ZIP64 file. Pack its files into an ordinary zip file.")
    if size > _MOST_LISTED:
        raise MCPConfigError("It lists too many files.")
    if count > MOST_FILES:
        raise MCPConfigError(f"It has more than {MOST_FILES:,} files.")
    file.seek(0)


def _checked(listed: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    folders = sum(each.orig_filename.count("/") for each in listed)
    too_many = len(listed) > MOST_FILES or folders > _MOST_FOLDERS
    if too_many or sum(each.file_size for each in listed) > MOST_UNPACKED:
        raise MCPConfigError("It is too large when it is unpacked.")
    files: dict[str, zipfile.ZipInfo] = {}
    keys: list[tuple[str, str]] = []
    for info in listed:
        # `info.filename` has only the part of the name before a NUL character.
        name = info.orig_filename
        parts = name.rstrip("/").split("/")
        mode = info.external_attr >> 16
        bad = not name.isprintable() or "\\" in name or ":" in parts[0] or len(name) > 16 * _MOST_NAME
        bad = bad or len(parts) > _MOST_LEVELS
        bad = bad or any(part in ("", ".", "..") or len(part.encode()) > _MOST_NAME for part in parts)
        if bad:
            raise MCPConfigError(f"It has a file with the name '{printable(name, 200)}'.")
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise MCPConfigError(f"'{printable(name, 200)}' is a link or a device, and not a file.")
        # For other compression methods, `read(n)` of `zipfile` may unpack much more than n bytes into memory.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise MCPConfigError("It is damaged, encrypted, or packed in an unusual way.")
        if name.endswith("/"):
            continue
        # On some file systems, names that differ only in upper and lower case stand for the same file.
        # With NUL for the slash, a name that is also a folder sorts just before the names in this folder.
        keys.append((name.casefold().replace("/", "\0"), name))
        files[name] = info
    for (key, _), (following, name) in itertools.pairwise(sorted(keys)):
        if following == key or following.startswith(f"{key}\0"):
            raise MCPConfigError(f"It has '{printable(name, 200)}' twice.")
    return files
