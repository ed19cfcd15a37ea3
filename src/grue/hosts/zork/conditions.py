"""The configuration that an episode is played with, and its changes at a resume.

It is recorded at the start and at each resume. A resume with another game, with MCP switched on or off, or
with another MCP server is refused. Any other change is reported and recorded, and the episode goes on,
because people also resume an episode after they have mended its configuration.
"""

import dataclasses
import hashlib

import msgspec

from grue import HttpServer, StdioServer
from grue.errors import MCPConfigError
from grue.hosting import shown_endpoint
from grue.hosts.zork.agent import ZorkAgent
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.facts import EpisodeStarted
from grue.hosts.zork.manager import MCPManager


def conditions_of(agent: ZorkAgent) -> dict[str, str]:
    """Return the settings that an agent plays with, by name, without secrets."""
    config, client = agent.config, agent.client
    said = {
        "model": agent.model,
        "endpoint": _endpoint(client),
        "wire format": config.wire_format or "by endpoint",
        "sampling": _json(dataclasses.asdict(config.agent_sampling)),
        "budget": _json(dataclasses.asdict(config.budget)),
    }
    if agent.server is None:
        return said
    return {
        **said,
        f"MCP server '{agent.server}'": _definition(agent.mcp_manager),
        "tool limits": (
            f"{config.mcp_max_tool_iterations} iterations, "
            f"{config.mcp_tool_call_timeout_seconds:g} s a call, "
            f"{config.mcp_server_startup_timeout_seconds:g} s to start"
        ),
        "tool lock": _lock(agent),
    }


def require_same_tools(started: EpisodeStarted, server: str | None) -> None:
    """Refuse to resume an episode with another server, or with MCP switched on or off.

    Raises:
        MCPConfigError: The text names the servers at the start and now.
    """
    now = (server,) if server else ()
    if now != started.servers:
        raise MCPConfigError(
            f"The episode cannot be resumed: it was begun with {_tools(started.servers)}, and now there is "
            f"{_tools(now)}. Configure MCP as it was, or play a new episode."
        )


def _endpoint(client: object) -> str:
    if isinstance(client, LLMClient):
        return shown_endpoint(client.config.client_base_url)
    return type(client).__name__


def _tools(servers: tuple[str, ...]) -> str:
    return f"the MCP server {', '.join(map(repr, servers))}" if servers else "no MCP"


def _definition(manager: object) -> str:
    server = manager.tool_server if isinstance(manager, MCPManager) else manager
    match server:
        case StdioServer(command=command, args=args, cwd=cwd):
            # Arguments may hold secrets. A digest shows whether they differ without showing them.
            return f"{command} ({_digest((command, args, cwd, sorted(server.env), server.inherit_env))})"
        case HttpServer(url=url, transport=transport):
            return f"{shown_endpoint(url)} ({_digest((url, transport, sorted(server.headers)))})"
        case _:
            return type(server).__name__


def _lock(agent: ZorkAgent) -> str:
    manager = agent.mcp_manager
    lock = manager.tool_lock if isinstance(manager, MCPManager) else None
    if lock is None or agent.server is None:
        return f"{agent.config.mcp_tool_lock}, nothing is locked"
    pins = msgspec.to_builtins(lock.pins(agent.server))
    return f"{agent.config.mcp_tool_lock}, {len(pins)} tools ({_digest(pins)})"


def _digest(value: object) -> str:
    # The order of keys does not matter. A lock can hold lone surrogates, which msgspec's JSON cannot.
    text = repr(msgspec.to_builtins(value, builtin_types=(), order="sorted"))
    return f"sha256 {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
