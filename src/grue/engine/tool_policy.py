"""The policy for tools, as a runner applies it to its servers."""

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from grue.engine.argument_checks import settings_or_default
from grue.engine.tool_servers import ToolServer
from grue.messages import ServerName, ToolPolicy
from grue.protocol.tool_policy import check_policy
from grue.tool_sessions.host_tools import HostCommands, HostFunctions
from grue.tool_sessions.server_specs import HttpServer, StdioServer

_GLOB = re.compile(r"[*?[]")


def usable_policy(policy: ToolPolicy | None, servers: Mapping[ServerName, ToolServer]) -> ToolPolicy:
    """Return the policy, with the host's functions and commands trusted; `None`: all is allowed.

    Raises:
        MCPConfigError: A value in it cannot be used; the error names the rule and the field.
    """
    policy = settings_or_default("tool_policy", policy, ToolPolicy())
    if policy == ToolPolicy():
        return policy
    own = (name for name, server in servers.items() if isinstance(server, HostFunctions | HostCommands))
    return replace(check_policy(policy), trusted=(*policy.trusted, *own))


def servers_for(
    tools: bool | Sequence[str], servers: Mapping[ServerName, ToolServer]
) -> tuple[ServerName, ...]:
    """Return the servers that a turn has to open.

    Args:
        tools: All tools, none, or patterns of their names.
        servers: The servers. One whose tools cannot match is left out; only an MCP server's tools are certain
            to be named after it.
    """
    if isinstance(tools, bool):
        return tuple(servers) if tools else ()
    starts = tuple(_GLOB.split(pattern, maxsplit=1)[0] for pattern in tools)
    return tuple(
        name
        for name, server in servers.items()
        if not isinstance(server, StdioServer | HttpServer)
        or any(f"{name}.".startswith(start) or start.startswith(f"{name}.") for start in starts)
    )
