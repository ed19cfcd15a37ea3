"""Read and write `mcp_tools.listing.json`: the tools that the servers listed when they were approved.

The file stands beside the tool lock and is meant to be committed, as the lock is. A listing that does not fit
the lock is not used. For each server the file holds the tools in the form of the server's `tools/list`
answer.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from grue import messages as m
from grue.config.documents import converted, parse_json, read_config_text, replace_file
from grue.transports.mcp.listing import as_listed, read_tools

FILE_NAME = "mcp_tools.listing.json"
_COMMAND = "grue tools --lock"


class _ListingFile(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    servers: dict[str, list[dict[str, Any]]]


def listing_path(lock: Path) -> Path:
    """Return the path of the listing file that belongs to a tool lock."""
    return lock.parent / FILE_NAME


def read(path: Path) -> dict[str, tuple[m.ToolDefinition, ...]]:
    """Return the tools of each server; empty if there is no file.

    Raises:
        MCPConfigError: The file cannot be read, or is not a listing file of a version that grue knows.
    """
    return {name: _tools(name, tools) for name, tools in _read(path).items()}


def write(
    path: Path, tools_by_server: Mapping[str, Iterable[m.ToolDefinition]], *, keep: Collection[str] = ()
) -> None:
    """Write what servers list now.

    Args:
        path: The file; it is created, or replaced as a whole.
        tools_by_server: The tools of each server.
        keep: Servers whose tools are kept if they are not in `tools_by_server`. All others are removed.

    Raises:
        MCPConfigError: The file exists and is not a listing file, or it cannot be written.
    """
    servers = {name: tools for name, tools in _read(path).items() if name in keep}
    servers |= {name: [as_listed(tool) for tool in tools] for name, tools in tools_by_server.items()}
    document = {"version": 1, "servers": dict(sorted(servers.items()))}
    replace_file(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    if not path.is_file():
        return {}
    document = parse_json(read_config_text(path, if_missing=f"{path} has just been removed."), path)
    what = "a listing of tools that this grue can read"
    return converted(document, _ListingFile, what, f"write it again with: {_COMMAND}").servers


def _tools(server: str, tools: list[dict[str, Any]]) -> tuple[m.ToolDefinition, ...]:
    return tuple(read_tools({"tools": tools}, m.ServerName(server), lambda _kind, _text: None))
