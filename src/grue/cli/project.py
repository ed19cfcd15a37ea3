"""Find the project's settings and MCP servers."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from grue.cli.saying import from_here
from grue.config.documents import is_there
from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.config.project_tables import ProjectTables, read_project_tables
from grue.config.settings import GameConfiguration
from grue.config.wiring import takes_servers
from grue.errors import MCPConfigError
from grue.hosts.zork.bundled import bundled_server
from grue.runtime.safe_text import printable
from grue.sandbox.box import Sandbox
from grue.sandbox.learning import Watch, watching
from grue.tool_sessions.server_specs import McpServer, StdioServer

PROJECT_FILE = "pyproject.toml"
BUNDLED_SERVER = "bundled with grue"


class KnownServers(Struct, frozen=True, kw_only=True):
    """The configured tool servers, or the bundled one."""

    source: str  # path of the file that configures them, or `BUNDLED_SERVER`
    servers: dict[str, McpServer]  # by name, in the file's order
    unusable: dict[str, str] = {}  # by name: why a configured server cannot be used
    warnings: tuple[str, ...] = ()
    passed_over: str | None = None  # a file that is not used, because the settings turn MCP off

    def usable(self, name: str) -> McpServer:
        """Return the server of this name; raises `MCPConfigError` if it is absent or wrongly configured."""
        if name in self.servers:
            return self.servers[name]
        if name in self.unusable:
            raise MCPConfigError(self.unusable[name])
        known = f"Known ({self.source}): {', '.join((*self.servers, *self.unusable)) or 'none'}."
        if self.passed_over is not None:
            mend = f"remove that, or add --mcp-config {self.passed_over}"
            known += f" {self.passed_over} is not used, because {PROJECT_FILE} has enabled = false: {mend}."
        raise MCPConfigError(f"There is no MCP server {name!r}. {known} `grue add` adds one.")


def declines_mcp() -> bool:
    """Return whether pyproject.toml says `enabled = false` in its table `mcp`, such as `[tool.grue.mcp]`."""
    project = project_tables()
    return project is not None and project.tables["mcp"].get("enabled") is False


def project_tables() -> ProjectTables | None:
    """Return the settings in the working directory's pyproject.toml; `None` if there is no such file."""
    project = Path(PROJECT_FILE)
    return read_project_tables(project) if is_there(project) else None


def known_servers(config: GameConfiguration, mcp_config: Path | None) -> KnownServers:
    """Return the servers in the file `mcp_config`; `None`: those in the project's file, or the bundled one.

    The project's file is used if a setting turns MCP on, or if it exists and pyproject.toml does not have
    `enabled = false`. A server with an unusable value, such as a `${VAR}` that is not set, goes into
    `unusable`. If the file is missing or invalid, `MCPConfigError` is raised.
    """
    if mcp_config is None and not takes_servers(config, project_tables()):
        bundled, unused = bundled_server(), config.mcp_config_path
        passed_over = str(from_here(unused)) if unused.is_file() else None
        return KnownServers(source=BUNDLED_SERVER, servers={bundled.name: bundled}, passed_over=passed_over)
    servers: dict[str, McpServer] = {}
    unusable: dict[str, str] = {}
    path = config.mcp_config_path if mcp_config is None else mcp_config
    file = MCPConfig.from_file(path, named=mcp_config is not None)
    for name in file.mcpServers:
        try:
            servers[name] = to_tool_server(name, file.server(name))
        except MCPConfigError as error:
            unusable[name] = str(error)
    source = str(from_here(path))
    return KnownServers(source=source, servers=servers, unusable=unusable, warnings=file.warnings)


def own_python() -> str:
    """Return the command of this interpreter: `python`, or its path if PATH has another `python` or none."""
    found = shutil.which("python")
    return "python" if found is not None and Path(found) == Path(sys.executable) else sys.executable


def only_started(servers: Mapping[str, McpServer]) -> dict[str, StdioServer]:
    """Return the servers that grue starts as processes."""
    return {name: each for name, each in servers.items() if isinstance(each, StdioServer)}


def named_server(known: KnownServers, name: str, *, preset: bool = True) -> StdioServer:
    """Return a server that grue starts as a process. `preset`: an error about the name lists the presets."""
    if name in known.unusable:
        raise MCPConfigError(known.unusable[name])
    if (server := known.servers.get(name)) is None:
        listed = ", ".join((*only_started(known.servers), *known.unusable)) or "none"
        no, presets = ("no preset and no", " Presets: pure, files, web.") if preset else ("no", "")
        fault = f"There is {no} server {printable(name)!r} to start.{presets} Servers: {listed}."
        raise MCPConfigError(fault)
    if not isinstance(server, StdioServer):
        raise MCPConfigError(
            f"grue reaches the server {printable(name)!r} by URL, so there is no process that could run in a"
            " sandbox."
        )
    return server


def watched_server(known: KnownServers, name: str) -> tuple[StdioServer, Callable[[], tuple[str, str]]]:
    """Return a server that is watched, not limited, and a function that proposes a sandbox for it.

    Call the function after the server's end. It returns the sandbox, as JSON, and notes, which may be empty:
    which folders the sandbox opens because of one changed file, and which used folders it does not open.
    """
    server = named_server(known, name, preset=False)
    watch = Watch()

    def learned() -> tuple[str, str]:
        cwd = str(Path(server.cwd or "").absolute())
        box = watch.proposal(cwd=cwd)
        notes = [
            f"The server may write in all of {printable(folder)} because it changed {printable(file)}."
            for folder, file in watch.reasons(cwd=cwd).items()
        ]
        if folders := printable(", ".join(watch.left_out())):
            notes.append(
                f"The server also used {folders}. The sandbox does not allow that: it would be too wide."
            )
        given, usual = to_builtins(box), to_builtins(Sandbox())
        table = {key: value for key, value in given.items() if key == "preset" or value != usual[key]}
        return json.dumps({"sandbox": table}, indent=2, ensure_ascii=True), "\n".join(notes)

    return replace(server, sandbox=watching(watch)), learned
