"""What an agent's turns are made of: the tool server and the model that its manager and client stand for."""

from typing import Any

from msgspec import Struct

from grue.config.settings import GameConfiguration
from grue.engine.tool_servers import ToolServer
from grue.hosts.zork.chat_messages import Sampling
from grue.hosts.zork.client import LLMClient
from grue.hosts.zork.duck_types import client_actor, connect_manager
from grue.hosts.zork.manager import TURN_METHODS, MCPManager
from grue.hosts.zork.manager_turn import connect_overridden
from grue.hosts.zork.overrides import is_overridden
from grue.llm_transport.endpoint import LlmEndpoint
from grue.mcp_transport.client import McpServer
from grue.messages import ServerName
from grue.runner import LlmFactory

_UNNAMED = "mcp"
"""The session's name where a manager does not say its server's; its tools keep their own names."""


class Route(Struct, frozen=True):
    """How a turn reaches its tools and its model; where that changes, the next turn is wired anew.

    Attributes:
        manager: The manager's identity.
        manager_called: The manager is an `MCPManager`, and a turn has to call its methods.
        client: The client's identity.
        client_called: The client is an `LLMClient`, and a turn has to call its `chat_completions_create`.
        client_asked: The client says by a method of its own whether a model can call tools.
    """

    manager: int
    manager_called: bool
    client: int
    client_called: bool
    client_asked: bool


def own_manager(manager: object) -> MCPManager | None:
    """Return an `MCPManager`, or of a class made from it; a mock that only looks like one is none."""
    return manager if isinstance(manager, MCPManager) and issubclass(type(manager), MCPManager) else None


def route_of(manager: object, client: object) -> Route:
    """Return how a turn that begins now reaches its tools and its model."""
    ours = own_manager(manager)
    llm = client if isinstance(client, LLMClient) else None
    return Route(
        manager=id(manager),
        manager_called=ours is not None and is_overridden(ours, TURN_METHODS),
        client=id(client),
        client_called=llm is not None and llm.completes_by_itself,
        client_asked=llm is not None and llm.judges_tool_support,
    )


def tool_server_of(manager: Any, route: Route) -> tuple[ServerName, ToolServer]:
    """Return the name and the tool server that a manager stands for.

    Raises:
        MCPError: It lacks one of the four coroutines.
    """
    if isinstance(manager, McpServer):
        return ServerName(manager.name), manager
    ours = own_manager(manager)
    if ours is not None:
        return ours.server_name, connect_overridden(ours) if route.manager_called else ours.tool_server
    server = ServerName(getattr(manager, "server_name", None) or _UNNAMED)
    return server, connect_manager(manager, server)


def model_of(
    client: Any, model: str, config: GameConfiguration, sampling: Sampling, route: Route
) -> LlmEndpoint | LlmFactory:
    """Return the model that a client stands for.

    Raises:
        MCPError: It has no `chat.completions.create`.
    """
    if isinstance(client, LLMClient) and not route.client_called:
        return client.endpoint(model, force_tool_support=config.mcp_force_tool_support, **sampling)
    return client_actor(client, model, config, **sampling)
