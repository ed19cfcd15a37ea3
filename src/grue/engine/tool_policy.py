"""The policy for tools, as a runner applies it to its servers."""

from collections.abc import Mapping

from msgspec.structs import replace

from grue.engine.tool_servers import ToolServer
from grue.messages import ServerName, ToolPolicy
from grue.protocol.tool_policy import check_policy
from grue.tool_sessions.function_tools import FunctionTools


def usable_policy(policy: ToolPolicy | None, servers: Mapping[ServerName, ToolServer]) -> ToolPolicy:
    """Return the policy with the host's own functions among the trusted servers; `None`: all is allowed.

    Raises:
        MCPConfigError: A value in it cannot be used; the error names the rule and the field.
    """
    if policy is None or policy == ToolPolicy():
        return ToolPolicy()
    own = (name for name, server in servers.items() if isinstance(server, FunctionTools))
    return replace(check_policy(policy), trusted=(*policy.trusted, *own))
