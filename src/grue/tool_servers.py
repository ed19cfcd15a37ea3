"""What can stand behind a session, and how it is reached."""

import os
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from grue.actors.function_tools import FunctionTools
from grue.actors.mcp_session import Connect, ToolConnection
from grue.errors import MCPConfigError
from grue.mcp_transport.client import ClientOptions, McpClient, McpServer, require_mcp
from grue.mcp_transport.http import HttpServer
from grue.mcp_transport.notices import ServerNotice
from grue.mcp_transport.process_group import ProcessRegistry
from grue.mcp_transport.stdio import StdioServer
from grue.messages import ServerName, ServerNoted
from grue.protocol.secret_names import secrets_in
from grue.runtime.actor import Note
from grue.runtime.trace import Recorder

ToolServer: TypeAlias = McpServer | FunctionTools | Connect
"""A server process, a server by URL, a dictionary of functions, or a factory of connections to anything."""


def connect_to(
    name: str, server: ToolServer, registry: ProcessRegistry, options: ClientOptions | None = None
) -> Connect:
    """Return what makes a connection to a tool server, whatever kind it is of.

    Args:
        name: Its name in the configuration.
        server: What there is to connect to.
        registry: Knows its process, if it has one, for whoever has the last word.
        options: How it is treated; its notices are recorded.
    """
    match server:
        case StdioServer() | HttpServer():
            return lambda note: _mcp_client(server, registry, options or ClientOptions(), note)
        case FunctionTools():
            return lambda _note: server.connect(ServerName(name))
        case _:
            return server


def _mcp_client(
    server: McpServer, registry: ProcessRegistry, options: ClientOptions, note: Note
) -> ToolConnection:
    def noted(notice: ServerNotice) -> None:
        body = ServerNoted(server=ServerName(server.name), kind=notice.kind, text=notice.text)
        note(body, sender=server.name)

    return McpClient(server, registry, replace(options, on_notice=noted))


def hide_secrets(recorder: Recorder, servers: Iterable[ToolServer]) -> None:
    """Keep the environment's secrets and the servers' own out of everything that is recorded."""
    configured = [server.env for server in servers if isinstance(server, StdioServer)]
    configured += [server.headers for server in servers if isinstance(server, HttpServer)]
    for name, value in secrets_in(os.environ, *configured).items():
        recorder.hide(name, value)


def usable_servers(servers: Mapping[str, ToolServer]) -> dict[ServerName, ToolServer]:
    """Return the servers by names that are known to be possible.

    Raises:
        MCPConfigError: A name is none.
        MissingDependencyError: There is an MCP server to talk to, and `mcp` is absent or too old (R14.4).
    """
    named = {_server_name(name): server for name, server in servers.items()}
    if any(isinstance(server, StdioServer | HttpServer) for server in named.values()):
        require_mcp()
    return named


def _server_name(name: str) -> ServerName:
    if not name or "." in name:
        raise MCPConfigError(
            f"'{name}' cannot be the name of a tool server: names may not be empty and may not contain "
            "a dot, because a tool's full name is SERVER.TOOL."
        )
    return ServerName(name)
