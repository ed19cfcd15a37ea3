"""Find the MCP servers that other hosts on this machine have, and copy their entries without a secret.

To add a host, add a line to `_places`. `grue init` offers what is found. A file is only read, never changed.
One that cannot be read or holds no servers is passed over.
"""

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from grue.config.copied_entry import CopiedEntry, copied
from grue.config.mcp_servers import ROOT_KEYS, MCPConfig
from grue.errors import MCPConfigError

_MOST_BYTES: Final = 1 << 24
_KEYS: Final = (*ROOT_KEYS, "mcp_servers")
_STRING_OR_COMMENT: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_COMMA: Final = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])')


class FoundServers(Struct, frozen=True, kw_only=True):
    """The servers of one host's file.

    Attributes:
        host: The host's name, for people.
        path: Its file.
        servers: The entries that grue can use, without secrets.
        unusable: Servers that grue cannot use, with the reason.
    """

    host: str
    path: Path
    servers: dict[str, CopiedEntry]
    unusable: dict[str, str] = {}


def _places(home: Path, project: Path) -> Iterator[tuple[str, Path]]:
    mac = sys.platform == "darwin"
    plain = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    settings = home / "Library" / "Application Support" if mac else plain
    extensions = settings / "Code" / "User" / "globalStorage"
    yield "Claude Code, this project", project / ".mcp.json"
    yield "Cursor, this project", project / ".cursor" / "mcp.json"
    yield "VS Code, this project", project / ".vscode" / "mcp.json"
    yield "Claude Desktop", settings / "Claude" / "claude_desktop_config.json"
    yield "Claude Code", home / ".claude.json"
    yield "Cursor", home / ".cursor" / "mcp.json"
    yield "VS Code", settings / "Code" / "User" / "mcp.json"
    yield "Windsurf", home / ".codeium" / "windsurf" / "mcp_config.json"
    yield "Gemini CLI", home / ".gemini" / "settings.json"
    yield "Codex", home / ".codex" / "config.toml"
    yield "Zed", home / ".config" / "zed" / "settings.json"
    yield "LM Studio", home / ".lmstudio" / "mcp.json"
    yield "Cline", extensions / "saoudrizwan.claude-dev" / "settings" / "cline_mcp_settings.json"
    yield "Roo Code", extensions / "rooveterinaryinc.roo-cline" / "settings" / "mcp_settings.json"
    yield "Amazon Q", home / ".aws" / "amazonq" / "mcp.json"


def find_hosts(home: Path, project: Path) -> list[FoundServers]:
    """Return the servers of every host whose file is there and has some, those of the project first.

    Args:
        home: The user's home folder.
        project: The folder of the project.
    """
    found = []
    for host, path in _places(home, project):
        if path.is_file():
            try:
                servers = read_host(path, host)
            except MCPConfigError:
                continue
            if servers.servers or servers.unusable:
                found.append(servers)
    return found


def read_host(path: Path, host: str | None = None) -> FoundServers:
    """Return the servers of one host's file: JSON, JSON with comments, or TOML.

    Args:
        path: The file.
        host: The host's name; `None`: the file's path.

    Raises:
        MCPConfigError: The file cannot be read or has no servers.
    """
    entries = _entries(_parsed(path))
    if entries is None:
        raise MCPConfigError(f"{path} configures no MCP servers: it has none of {', '.join(_KEYS)}.")
    servers: dict[str, CopiedEntry] = {}
    unusable: dict[str, str] = {}
    for name, entry in entries.items():
        try:
            if not isinstance(entry, Mapping):
                raise MCPConfigError("it is not an object.")
            copy = copied(name.replace(".", "-"), entry)
            MCPConfig.from_mapping({copy.name: copy.entry})
        except MCPConfigError as error:
            unusable[name] = str(error)
        else:
            servers[copy.name] = copy
    return FoundServers(host=host or str(path), path=path, servers=servers, unusable=unusable)


def _parsed(path: Path) -> Any:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise MCPConfigError(f"{path} is larger than {_MOST_BYTES >> 20} MiB.")
        text = path.read_text(encoding="utf-8-sig")
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(_without_comments(text))
    except OSError as error:
        raise MCPConfigError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        # The error's own text may quote the file, which can hold a secret.
        raise MCPConfigError(f"{path} is neither valid JSON nor TOML.") from error


def _without_comments(text: str) -> str:
    """Make plain JSON of JSON with comments and trailing commas, as editors write it."""
    text = _STRING_OR_COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    return _STRING_OR_COMMA.sub(lambda found: found[0] if found[0].startswith('"') else "", text)


def _entries(parsed: Any) -> dict[str, Any] | None:
    places = [parsed]
    if isinstance(parsed, Mapping):
        places += [parsed.get("mcp"), (parsed.get("projects") or {}).get(str(Path.cwd()))]
    for place in places:
        for key in _KEYS:
            if isinstance(place, Mapping) and isinstance(place.get(key), Mapping):
                return {str(name): entry for name, entry in place[key].items()}
    return None
