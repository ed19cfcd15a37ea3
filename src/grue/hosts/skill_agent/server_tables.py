"""Read the servers of `agent.yaml`: the entries that other hosts write, with one key of another meaning.

`timeout_seconds` is the time limit for connecting a server here. For a tool call it is
`mcp.tool_call_timeout_seconds`, for all servers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from grue import MCPConfigError
from grue.connections import McpServer
from grue.settings import MCPConfig, to_tool_server

Place: TypeAlias = Callable[[tuple[int | str, ...]], str]
"""Returns what an error about an entry begins with, such as `agent.yaml, line 7: `."""

_CONNECT_KEY, _CORE_KEY = "timeout_seconds", "startup_timeout_seconds"


def read_servers(
    entries: Mapping[str, Any], *, source: Path | None = None, place: Place = lambda _: ""
) -> dict[str, McpServer]:
    """Return the servers, with every `${VAR}` replaced by the variable of the environment.

    Args:
        entries: The servers by name.
        source: The file that has them; `None`: none.
        place: For errors.

    Raises:
        MCPConfigError: An entry cannot be used, or a variable is not set. The error names server and key.
    """
    config = MCPConfig.from_mapping(
        {name: _translated(name, entry, place) for name, entry in entries.items()}, source=source, place=place
    )
    return {name: _usable(name, config, place) for name in config.mcpServers}


def read_server_file(path: Path) -> dict[str, McpServer]:
    """Return the servers of an `mcp_config.json`, in which all keys have the meaning of other hosts."""
    config = MCPConfig.from_file(path)
    return {name: to_tool_server(name, config.server(name)) for name in config.mcpServers}


def _usable(name: str, config: MCPConfig, place: Place) -> McpServer:
    try:
        return to_tool_server(name, config.server(name))
    except MCPConfigError as error:
        raise MCPConfigError(f"{place((name,))}{error}", path=error.path) from error


def _translated(name: str, entry: Any, place: Place) -> Any:
    if not isinstance(entry, Mapping) or _CONNECT_KEY not in entry:
        return entry
    if _CORE_KEY in entry:
        where = place((name, _CORE_KEY))
        raise MCPConfigError(
            f"{where}MCP server {name!r} has both {_CONNECT_KEY!r} and {_CORE_KEY!r}, which mean the same."
        )
    return {_CORE_KEY if key == _CONNECT_KEY else key: value for key, value in entry.items()}
