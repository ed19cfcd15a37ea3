"""Choose the tool server and the model of a turn from the manager and the client of an agent.

A client is any object with `chat.completions.create(**kwargs)`, blocking or not. A manager is any object with
the coroutines `connect_session`, `disconnect_session`, `get_tool_schemas` and `call_tool`. For the agent they
work like an endpoint and a server process.
"""

from typing import Any

from msgspec import Struct

from grue import messages as m
from grue.hosting import GameConfiguration, LlmEndpoint, LlmFactory, ToolServer
from grue.hosts.zork.chat_messages import Sampling
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.client_actor import ClientActor, client_actor
from grue.hosts.zork.look_alikes import is_overridden
from grue.hosts.zork.manager import TURN_METHODS, MCPManager
from grue.hosts.zork.manager_connection import (
    ManagerConnection,
    SessionManager,
    connect_manager,
    connect_overridden,
)
from grue.tool_sessions.server_specs import McpServer

__all__ = ["ClientActor", "ManagerConnection", "SessionManager", "client_actor", "connect_manager"]


_UNNAMED = "mcp"
"""The server's name if a manager has no `server_name`; its tools keep their own names."""


class Route(Struct, frozen=True):
    """How a turn reaches its tools and its model. If this changes, the next turn gets a new runner.

    Attributes:
        manager: The `id` of the manager.
        manager_called: Whether the manager is an `MCPManager` whose methods a turn has to call.
        client: The `id` of the client.
        client_called: Whether the client is an `LLMClient` whose `chat_completions_create` a turn has to
            call.
        client_asked: Whether the client is an `LLMClient` that overrides `_supports_tool_calling`.
    """

    manager: int
    manager_called: bool
    client: int
    client_called: bool
    client_asked: bool


def own_manager(manager: object) -> MCPManager | None:
    """Return the manager if it is an `MCPManager`; `None` for any other object, such as a mock of one."""
    return manager if isinstance(manager, MCPManager) and issubclass(type(manager), MCPManager) else None


def route_of(manager: object, client: object) -> Route:
    """Return the route by which a turn that starts now reaches its tools and its model."""
    ours = own_manager(manager)
    llm = client if isinstance(client, LLMClient) else None
    return Route(
        manager=id(manager),
        manager_called=ours is not None and is_overridden(ours, TURN_METHODS),
        client=id(client),
        client_called=llm is not None and llm.completes_by_itself,
        client_asked=llm is not None and llm.judges_tool_support,
    )


def tool_server_of(manager: Any, route: Route) -> tuple[m.ServerName, ToolServer]:
    """Return the name and the tool server for a manager.

    Raises:
        MCPError: The manager lacks one of the four coroutines.
    """
    if isinstance(manager, McpServer):
        return m.ServerName(manager.name), manager
    ours = own_manager(manager)
    if ours is not None:
        return ours.server_name, connect_overridden(ours) if route.manager_called else ours.tool_server
    server = m.ServerName(getattr(manager, "server_name", None) or _UNNAMED)
    return server, connect_manager(manager, server)


def model_of(
    client: Any, model: str, config: GameConfiguration, sampling: Sampling, route: Route
) -> LlmEndpoint | LlmFactory:
    """Return the model for a client.

    Raises:
        MCPError: The client has no `chat.completions.create`.
    """
    if isinstance(client, LLMClient) and not route.client_called:
        return client.endpoint(model, force_tool_support=config.mcp_force_tool_support, **sampling)
    return client_actor(client, model, config, **sampling)
