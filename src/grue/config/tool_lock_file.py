"""Read and write `mcp_tools.lock`, the file of approved tool definitions.

The lock is sorted JSON with one digest a line, so that it can be committed and reviewed in a diff. It stands
in the same folder as the file of MCP servers.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.config import tool_listing_file
from grue.config.documents import converted, parse_json, read_config_text, replace_file
from grue.config.tool_listing_file import listing_path
from grue.errors import MCPConfigError
from grue.protocol.tools.lock import ToolLock, ToolPin, lock_of, screen

FILE_NAME = "mcp_tools.lock"
_VERSION = 1
_COMMAND = "grue tools --lock"


class _LockFile(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    servers: dict[str, dict[str, ToolPin]]


def lock_path(mcp_config: Path) -> Path:
    """Return the path of the tool lock that belongs to a file of MCP servers."""
    return mcp_config.parent / FILE_NAME


def read_tool_lock(path: Path) -> ToolLock | None:
    """Return the tool lock in a file, with the listings of the listing file beside it; `None`: no such file.

    Raises:
        MCPConfigError: The file cannot be read, or is not a tool lock of a version that grue knows.
    """
    try:
        if not path.exists():
            return None
        if not path.is_file():
            raise MCPConfigError(f"Cannot read {str(path)!r}: it is not a regular file.", path=str(path))
    except OSError as error:
        raise MCPConfigError(f"Cannot read {str(path)!r}: {error.strerror}.", path=str(path)) from error
    document = parse_json(read_config_text(path, if_missing=f"{path} has just been removed."), path)
    version = document.value.get("version") if isinstance(document.value, dict) else None
    if isinstance(version, int) and version > _VERSION:
        raise MCPConfigError(
            f"{path} is a tool lock of version {version}; this grue reads version {_VERSION}. Upgrade grue.",
            path=str(path),
        )
    pins = converted(document, _LockFile, "a tool lock", f"approve the tools again with: {_COMMAND}").servers
    return ToolLock(pins, listings=tool_listing_file.read(listing_path(path)))


def write(
    path: Path, tools_by_server: Mapping[str, Iterable[m.ToolDefinition]], *, keep: Collection[str] = ()
) -> tuple[m.ToolDrifted, ...]:
    """Approve the tools that servers list now, and return the changes to the file, server by server.

    Args:
        path: The file; it is created, or replaced as a whole.
        tools_by_server: The tools of each server.
        keep: Servers whose digests are kept if they are not in `tools_by_server`, such as a server that could
            not be started. All other servers are removed from the file.

    Raises:
        MCPConfigError: The file exists and is not a tool lock, or it cannot be written.
    """
    before = read_tool_lock(path) or ToolLock()
    listed = {name: tuple(tools) for name, tools in tools_by_server.items()}
    servers = {name: dict(pins) for name, pins in before.servers.items() if name in keep}
    servers |= {name: lock_of(tools) for name, tools in listed.items()}
    changes: list[m.ToolDrifted] = []
    for name in sorted({*before.servers, *servers} - (set(keep) - set(listed))):
        _, notes = screen(before.pins(name), m.ServerName(name), listed.get(name, ()), "report")
        changes += notes
    document = {"version": _VERSION, "servers": msgspec.to_builtins(servers)}
    replace_file(path, json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n")
    return tuple(changes)
