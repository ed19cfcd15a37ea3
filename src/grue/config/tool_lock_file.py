"""Read and write `mcp_tools.lock`, the file of approved tool definitions, and the listing file beside it.

The lock has one digest a line, so that it can be reviewed in a diff. The listing file has the approved tools
in the form of `tools/list` results. A server's listing is used only if its tools have the lock's digests.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.config.documents import converted, file_error, is_there, read_own_json, replace_file
from grue.errors import MCPConfigError
from grue.protocol.tools.lock import ToolLock, ToolPin, lock_of, screen
from grue.runtime.files import as_path, os_errors_as
from grue.transports.mcp.listing import as_listed, read_tools

T = TypeVar("T")

FILE_NAME = "mcp_tools.lock"
_VERSION = 1
_COMMAND = "grue tools --lock"


class _LockFile(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    servers: dict[str, dict[str, ToolPin]]


class _ListingFile(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    servers: dict[str, list[dict[str, Any]]]


def lock_path(mcp_config: Path) -> Path:
    """Return the path of the tool lock that belongs to a file of MCP servers."""
    return mcp_config.parent / FILE_NAME


def listing_path(lock: Path) -> Path:
    """Return the path of the listing file that belongs to a tool lock."""
    return lock.parent / "mcp_tools.listing.json"


def read_tool_lock(path: str | PathLike[str]) -> ToolLock | None:
    """Return the tool lock in a file, with the listings of the file beside it; `None`: there is no lock.

    Raises:
        MCPConfigError: One of the files cannot be read, is invalid, or has a version that grue does not know.
    """
    path = as_path(path, "read_tool_lock()")
    pins = _pins(path)
    return None if pins is None else ToolLock(pins, listings=read_listings(listing_path(path)))


def _pins(path: Path) -> dict[str, dict[str, ToolPin]] | None:
    with os_errors_as(MCPConfigError, f"read {str(path)!r}", path=str(path)):
        if not is_there(path):
            return None
        path.lstat()  # raises where `is_file` returns `False` from Python 3.14 on
        if not path.is_file():
            kind = "not a regular file" if path.exists() else "a link to a file that does not exist"
            raise MCPConfigError(f"Cannot read {str(path)!r}: it is {kind}.", path=str(path))
    remedy = f"approve the tools again with: {_COMMAND}"
    document = read_own_json(path, remedy)
    version = document.value.get("version") if isinstance(document.value, dict) else None
    if isinstance(version, int) and version > _VERSION:
        known = f"this grue reads version {_VERSION}. Upgrade grue."
        raise file_error(path, f"is a tool lock of version {version}; {known}")
    return converted(document, _LockFile, "a tool lock", remedy).servers


def write(
    path: Path,
    tools_by_server: Mapping[str, Iterable[m.ToolDefinition]],
    *,
    shown: Mapping[str, Iterable[m.ToolDefinition]] | None = None,
    keep: Collection[str] = (),
) -> tuple[m.ToolDrifted, ...]:
    """Approve the tools that servers list now, and return the changes to the file, server by server.

    `shown` has the same tools without secrets, for the texts in the file. `keep` names servers whose digests
    stay although they are not in `tools_by_server`, such as a server that could not be started. The digests
    of all other servers are removed.
    """
    before = ToolLock(_pins(path) or {})
    listed = {name: tuple(tools) for name, tools in tools_by_server.items()}
    locked = {name: lock_of(tools, (shown or {}).get(name)) for name, tools in listed.items()}
    servers = _kept(before.servers, keep) | locked
    changes: list[m.ToolDrifted] = []
    for name in sorted({*before.servers, *servers} - (set(keep) - set(listed))):
        _, notes = screen(before.pins(name), m.ServerName(name), listed.get(name, ()), "report")
        changes += notes
    document = {"version": _VERSION, "servers": msgspec.to_builtins(servers)}
    replace_file(path, json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    return tuple(changes)


def read_listings(path: Path) -> dict[str, tuple[m.ToolDefinition, ...]]:
    """Return the tools of each server in a listing file; empty if there is no file."""
    return {
        name: tuple(read_tools({"tools": tools}, m.ServerName(name), lambda _kind, _text: None))
        for name, tools in _listings(path).items()
    }


def write_listings(
    path: Path, tools_by_server: Mapping[str, Iterable[m.ToolDefinition]], *, keep: Collection[str] = ()
) -> None:
    """Write the tools that servers list now into a listing file. `keep` is as for `write`.

    A damaged file, for example after a merge, is replaced: it has nothing but copies of what servers list.
    """
    before: dict[str, list[dict[str, Any]]] = {}
    with suppress(MCPConfigError):
        before = _listings(path)
    listed = {name: [as_listed(tool) for tool in tools] for name, tools in tools_by_server.items()}
    document = {"version": 1, "servers": dict(sorted((_kept(before, keep) | listed).items()))}
    replace_file(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _listings(path: Path) -> dict[str, list[dict[str, Any]]]:
    if not path.is_file():
        return {}
    what, remedy = "a listing of tools that this grue can read", f"write it again with: {_COMMAND}"
    return converted(read_own_json(path, remedy), _ListingFile, what, remedy).servers


def _kept(servers: Mapping[str, T], keep: Collection[str]) -> dict[str, T]:
    return {name: each for name, each in servers.items() if name in keep}
