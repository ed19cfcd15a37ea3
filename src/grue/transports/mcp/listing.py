"""Reads the tool definitions of `tools/list`, page by page, and stores listings for later processes.

A turn may offer the tools of a stored listing before the server has started. A stored listing is used only
if no other user may write it. The name of its file is a keyed digest (HMAC) of how the server is started or
reached, secrets included. The key stays on the machine. Without it, nobody can guess a secret by computing
names.

Source: P37
"""

import hmac
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ToolAnnotations
from grue.protocol.json_text import json_object
from grue.protocol.tools.server_tasks import seconds_in
from grue.runtime.files import expanded, os_cause, require_regular, write_whole
from grue.runtime.loops.beside_loop import Pace
from grue.runtime.safe_text import well_formed
from grue.tool_sessions.connection import SeenListing
from grue.tool_sessions.server_requests import Notify
from grue.tool_sessions.server_specs import HttpServer, McpServer, StdioServer

MAX_TOOL_BYTES = 256 * 1024  # the most of one definition: each request to the model carries all definitions
_MOST_LISTED_BYTES = 8 * 2**20  # after more than this, no further page is read
_NAME_CHARS = 1000

_HINTS = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}


class ListedTools(Struct, frozen=True):
    """The tools of a listing. `ttl_s`: how long it is valid, if stated. `private`: for this login only."""

    tools: tuple[m.ToolDefinition, ...] = ()
    as_tasks: frozenset[str] = frozenset()  # names of tools that have to be called as tasks (MCP 2025-11-25)
    ttl_s: float | None = None
    private: bool = False


async def read_pages(
    ask: Callable[[m.JsonObject], Awaitable[m.JsonObject]],
    server: m.ServerName,
    max_pages: int,
    notify: Notify,
) -> ListedTools:
    """Read all pages of a listing. After a repeated cursor, `max_pages` pages or 8 MiB, return what was read.

    `bad_tool` notices report what is left out. Raises what `ask` raises; `ValueError`: a page has no list.
    """
    tools: dict[str, m.ToolDefinition] = {}
    as_tasks: set[str] = set()
    cursors: set[str] = set()
    cursor: str | None = None
    ttl_s: float | None = None
    private = False
    left = _MOST_LISTED_BYTES
    pace = Pace()
    for _ in range(max_pages):
        page = await ask({} if cursor is None else {"cursor": cursor})
        before = len(tools)
        for tool in read_tools(page, server, notify):
            await pace.pause()
            left -= len(msgspec.json.encode(tool))
            if tools.setdefault(tool.tool, tool) != tool:
                notify("bad_tool", f"{tool.tool}: listed twice, the first one counts")
        listed: Any = page["tools"]
        as_tasks.update(
            str(tool.get("name"))
            for tool in listed
            if isinstance(tool, dict)
            and isinstance(execution := tool.get("execution"), dict)
            and execution.get("taskSupport") == "required"
        )
        stated = seconds_in(page, "ttlMs") or None  # the SDK's servers send 0 if they state no time
        if stated is not None:
            ttl_s = stated if ttl_s is None else min(ttl_s, stated)
            private = private or page.get("cacheScope") == "private"
        following = page.get("nextCursor")
        if not isinstance(following, str):
            break
        if following in cursors:
            # No notice if a page only repeats its own cursor and adds no tools: then nothing is left out.
            if following != cursor or len(tools) > before:
                notify("bad_tool", f"the listing repeats the cursor {following!r}")
            break
        if left < 0:
            notify("bad_tool", f"the listing is longer than {_MOST_LISTED_BYTES} bytes, the rest is left")
            break
        cursors.add(following)
        cursor = following
    else:
        notify("bad_tool", f"the listing has more than {max_pages} pages, the rest is left")
    return ListedTools(tuple(tools.values()), frozenset(as_tasks), ttl_s, private)


def read_tools(page: Mapping[str, Any], server: m.ServerName, notify: Notify) -> Iterator[m.ToolDefinition]:
    """Yield a page's usable tools; report the others. Raises `ValueError` if the page has no list."""
    tools = page.get("tools")
    if not isinstance(tools, list):
        raise ValueError("tools is not a list")
    for number, tool in enumerate(tools, start=1):
        fault = _fault(tool)
        if fault is not None:
            name = tool.get("name") if isinstance(tool, dict) else None
            name = name[:_NAME_CHARS] if isinstance(name, str) else None
            notify("bad_tool", f"{name or f'tool {number}'}: {fault}")
            continue
        results, stated = tool.get("outputSchema"), tool.get("annotations")
        named = {field: stated.get(key) for field, key in _HINTS.items()} if isinstance(stated, dict) else {}
        hints = {field: hint for field, hint in named.items() if isinstance(hint, bool)}
        definition = m.ToolDefinition(
            server=server,
            tool=tool["name"],
            description=well_formed(tool.get("description") or ""),
            input_schema=_schema(tool["inputSchema"]),
            output_schema=_schema(results) if isinstance(results, dict) else None,
            annotations=ToolAnnotations(**hints) if hints else None,
        )
        if len(msgspec.json.encode(definition)) > MAX_TOOL_BYTES:
            notify("bad_tool", f"{tool['name']}: its definition is longer than {MAX_TOOL_BYTES} bytes")
            continue
        yield definition


def _schema(schema: m.JsonObject) -> m.JsonObject:
    """Drop top-level keywords that are `null`: Go servers write it for empty lists; endpoints refuse it."""
    # Convert first, because that turns an infinity into `null`. Stored listings must read back the same.
    return {key: value for key, value in json_object(schema).items() if value is not None}


def as_listed(tool: m.ToolDefinition) -> m.JsonObject:
    """Return a tool in the form that it has on a `tools/list` page, which `read_tools` can read."""
    listed: m.JsonObject = {"name": tool.tool, "description": tool.description}
    listed["inputSchema"] = tool.input_schema
    if tool.output_schema is not None:
        listed["outputSchema"] = tool.output_schema
    if tool.annotations is not None:
        stated = {key: getattr(tool.annotations, field) for field, key in _HINTS.items()}
        listed["annotations"] = {key: value for key, value in stated.items() if value is not None}
    return listed


def _fault(tool: Any) -> str | None:
    if not isinstance(tool, dict):
        return "not an object"
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        return "no name"
    if len(tool["name"]) > _NAME_CHARS or well_formed(tool["name"]) != tool["name"]:
        return f"its name is longer than {_NAME_CHARS} characters, or no Unicode text"
    if not isinstance(tool.get("description") or "", str):
        return "description is not text"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "inputSchema is not the schema of an object"
    if not isinstance(tool.get("outputSchema") or {}, dict):
        return "outputSchema is not a schema"
    return None


MAX_BYTES = 4 * 2**20  # the most of a stored file; a longer listing would fill any model's context window
_KEY_FILE = "key"
_KEY_BYTES = 32
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _File(Struct, frozen=True):
    version: Literal[1]
    tools: list[dict[str, Any]]
    protocol_version: str = ""
    expires_at: float | None = None


class ListingCache:
    """The cache of tool listings: a folder with one file for each server, by default `cache_folder()`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder()

    def load(self, name: m.ServerName, server: McpServer) -> SeenListing | None:
        """Return the stored listing of a server, unfiltered; `None`: no usable listing is stored."""
        try:
            path = self._path(server)
            return None if path is None else _seen(name, _content(path))
        except (OSError, ValueError, RecursionError):
            return None

    def save(self, server: McpServer, seen: SeenListing) -> None:
        """Store the unfiltered listing of a server, if the folder is usable and the listing not too long.

        A `private` listing of a server with a login is not stored, and an earlier one is removed.
        """
        document = _File(1, [as_listed(tool) for tool in seen.tools], seen.protocol_version, seen.expires_at)
        try:
            if seen.private and isinstance(server, HttpServer) and server.auth is not None:
                if (path := self._path(server)) is not None:  # remove it, because another user may log in
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
        """Yield for each stored file that is not used, or for the whole folder, a sentence that says why."""
        try:
            _require_own(os.lstat(self.folder), folder=True)
            files = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            yield f"{self.folder} is not used: {_reason(error)}"
            return
        for path in files:
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
        """Return the path of a server's file; `None`: there is no key for its name, and none is made."""
        try:
            _require_own(os.lstat(self.folder), folder=True)
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
    """Return the folder of the stored tool listings."""
    named = os.environ.get("GRUE_CACHE")
    if named:
        return expanded(named) / "listings"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(cache) / "grue" / "listings"


def _identity(server: McpServer) -> bytes:
    """Return everything in the settings that may change what a server lists, as bytes."""
    fields = {name: getattr(server, name) for name in server.__struct_fields__ if name != "name"}
    # Leave out `start`: it says when the server is started, which does not change what the server lists.
    fields["options"] = replace(server.options, start=None)
    if isinstance(server, StdioServer):
        fields["cwd"] = str(Path(server.cwd or "").absolute())
    return msgspec.json.encode([type(server).__name__, fields], order="deterministic", enc_hook=str)


def _content(path: Path) -> bytes:
    """Return a file's content; raises `OSError` or `ValueError`, also if other users may write the file."""
    # Do not follow a link, which could lead to a file that others may write. Do not wait on a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        require_regular(descriptor)
        _require_own(os.fstat(descriptor))
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 2**20} MiB")
    return content


def _require_own(found: os.stat_result, *, folder: bool = False) -> None:
    if folder and not stat.S_ISDIR(found.st_mode):
        raise ValueError("it is not a folder")
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
        return os_cause(error)
    return "it is damaged" if isinstance(error, msgspec.DecodeError | RecursionError) else str(error)
