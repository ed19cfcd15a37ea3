"""The listings that servers had in earlier processes, in the user's cache folder (`start="beside"`).

A turn may presume such a listing, and verifies it before anything follows from it, so a wrong one costs one
request. But the listing decides what a paid request offers. So a file counts only if nobody else can have
written it. A file with any fault is ignored, and the turn goes on without it.

A file also says which MCP revision the server spoke, so that the next process need not try.

A file's name is a keyed digest of how the server is started or reached, environment and headers included. The
key is random, and stays on the machine, so that nobody can try values against a name. No value is stored.
"""

import hmac
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.files import require_regular, write_whole
from grue.tool_sessions.connection import SeenListing
from grue.tool_sessions.server_specs import HttpServer, McpServer, StdioServer
from grue.transports.mcp.listing import as_listed, read_tools

MAX_BYTES = 4 * 2**20
"""Largest file that is read or written. A listing of this size would fill any model's context window."""

_KEY_FILE = "key"
_KEY_BYTES = 32
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _File(Struct, frozen=True):
    version: Literal[1]
    tools: list[dict[str, Any]]
    protocol_version: str = ""
    expires_at: float | None = None


class ListingCache:
    """The cache, one file for each server.

    Args:
        folder: Where the files are; `None`: `$GRUE_CACHE/listings`, or `grue/listings` in the user's cache
            folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def load(self, name: m.ServerName, server: McpServer) -> SeenListing | None:
        """Return the last listing of a server, not screened; `None`: none is stored, or it cannot be used."""
        try:
            path = self._path(server)
            return None if path is None else _seen(name, _content(path))
        except (OSError, ValueError, RecursionError):
            return None

    def save(self, server: McpServer, seen: SeenListing) -> None:
        """Store what a server has listed, before any screening.

        A private listing of a server that one logs in to is removed instead, because a file's name does not
        say who is logged in. The file is replaced as a whole. Nothing is stored, and nothing raised, if the
        folder cannot be used.
        """
        document = _File(1, [as_listed(tool) for tool in seen.tools], seen.protocol_version, seen.expires_at)
        try:
            if seen.private and isinstance(server, HttpServer) and server.auth is not None:
                if (path := self._path(server)) is not None:
                    path.unlink(missing_ok=True)
                return
            written = msgspec.json.encode(document)
            if len(written) > MAX_BYTES:
                return
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._path(server, make_key=True)
            if path is not None:
                write_whole(path, written)
        except (OSError, ValueError, RecursionError):
            return

    def faults(self) -> Iterator[str]:
        """Yield a sentence for each file that is left out, with the reason."""
        try:
            _require_own_folder(self.folder)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            yield f"{self.folder} is not used: {_reason(error)}"
            return
        for path in sorted(self.folder.iterdir()):
            try:
                content = _content(path)
                if path.name != _KEY_FILE:
                    _seen(m.ServerName("any"), content)
            except (OSError, ValueError, RecursionError) as error:
                yield f"{path} is not used: {_reason(error)}"

    def count(self) -> int:
        """Return the number of stored listings."""
        try:
            return sum(path.suffix == ".json" for path in self.folder.iterdir())
        except OSError:
            return 0

    def _path(self, server: McpServer, *, make_key: bool = False) -> Path | None:
        """Return the path of a server's file; `None`: there is no key, or a damaged one.

        Raises:
            OSError, ValueError: The folder or the key cannot be used.
        """
        try:
            _require_own_folder(self.folder)
            key = _content(self.folder / _KEY_FILE)
        except FileNotFoundError:
            key = b""
        if len(key) != _KEY_BYTES:
            if not make_key:
                return None
            key = secrets.token_bytes(_KEY_BYTES)
            write_whole(self.folder / _KEY_FILE, key)
        return self.folder / f"{hmac.new(key, _identity(server), 'sha256').hexdigest()}.json"


def cache_folder() -> Path:
    """Return the folder of the cache."""
    named = os.environ.get("GRUE_CACHE")
    if named:
        return Path(named).expanduser() / "listings"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "grue" / "listings"


def _identity(server: McpServer) -> bytes:
    """Return everything that may change what a server lists, as bytes."""
    fields = {name: getattr(server, name) for name in server.__struct_fields__ if name != "name"}
    # When a server starts does not change what it lists.
    fields["options"] = replace(server.options, start=None)
    if isinstance(server, StdioServer):
        fields["cwd"] = str(Path(server.cwd or "").absolute())
    return msgspec.json.encode([type(server).__name__, fields], order="deterministic", enc_hook=str)


def _content(path: Path) -> bytes:
    """Return the content of a file that nobody else can have written.

    Raises:
        OSError, ValueError: There is no such file, or it is a link, another's, too large or no file at all.
    """
    # A link could lead to a file that somebody else may write, and a pipe would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        require_regular(descriptor)
        _require_own(os.fstat(descriptor))
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB")
    return content


def _require_own_folder(folder: Path) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError("it is not a folder")
    _require_own(found)


def _require_own(found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise ValueError("it belongs to another user")
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise ValueError("other users may write it")


def _seen(name: m.ServerName, content: bytes) -> SeenListing:
    file = msgspec.json.decode(content, type=_File)
    tools = tuple(read_tools({"tools": file.tools}, name, lambda _kind, _text: None))
    return SeenListing(tools, file.protocol_version, file.expires_at)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return "it is damaged" if isinstance(error, msgspec.DecodeError | RecursionError) else str(error)
