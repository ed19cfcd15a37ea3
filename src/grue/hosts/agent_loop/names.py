"""The tool servers of an agent loop under their names: MCP servers as `mcp.NAME`, other tools beside them.

The model sees `mcp.files.read` for the tool `read` of the server `files`, `tools.add` for a function `add`,
and `shell.run` for a `ShellTool`. It refuses names that collide.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from grue import FunctionTools, MCPConfigError, ShellTool, ToolPolicy, ToolRule, ToolSearch
from grue.hosting import ToolServer
from grue.hosts.agent_loop.injected import MCP, PREFIX

if TYPE_CHECKING:
    from grue.hosting import ToolLock

FUNCTIONS = "tools"
SHELL = "shell"

Tools: TypeAlias = Mapping[str, ToolServer] | Iterable[Callable[..., Any] | ShellTool]
"""Tools beside MCP: functions and a shell tool, or tool servers by name."""


def prefixed(servers: Mapping[str, ToolServer]) -> dict[str, ToolServer]:
    """Return MCP servers under the names that an agent loop gives them.

    Raises:
        MCPConfigError: A name has the prefix already, so its tools could be those of another server.
    """
    taken = next((name for name in servers if _is_mcp(name)), None)
    if taken is not None:
        raise MCPConfigError(
            f"The MCP server '{taken}' needs another name: the loop puts '{PREFIX}' before each one."
        )
    return {f"{PREFIX}{name}": server for name, server in servers.items()}


def beside(tools: Tools) -> dict[str, ToolServer]:
    """Return the tool servers of the tools beside MCP.

    Raises:
        MCPConfigError: An MCP tool has the same name, two tools have the same name, or a value is not a tool.
    """
    if isinstance(tools, Mapping):
        taken = next((name for name in tools if _is_mcp(name)), None)
        if taken is not None:
            raise MCPConfigError(f"The tools '{taken}' need another name: this one belongs to MCP tools.")
        return dict(tools)
    functions: list[Callable[..., Any]] = []
    servers: dict[str, ToolServer] = {}
    for tool in tools:
        if isinstance(tool, ShellTool) and SHELL not in servers:
            servers[SHELL] = tool
        elif isinstance(tool, ShellTool | FunctionTools) or not callable(tool):
            raise MCPConfigError(
                f"tools: {tool!r:.80} needs a name. Pass a dictionary: tools={{'mine': FunctionTools(...)}}."
            )
        else:
            functions.append(tool)
    return {**({FUNCTIONS: FunctionTools(functions)} if functions else {}), **servers}


def _is_mcp(name: str) -> bool:
    return name == MCP or name.startswith(PREFIX)


def prefixed_lock(lock: "ToolLock") -> "ToolLock":
    """Return a tool lock of MCP servers under the names that an agent loop gives them."""
    return replace(
        lock,
        servers={f"{PREFIX}{name}": pins for name, pins in lock.servers.items()},
        listings={f"{PREFIX}{name}": tools for name, tools in lock.listings.items()},
    )


def prefixed_policy(policy: ToolPolicy) -> ToolPolicy:
    """Return a policy for the configured names that holds for the names with the prefix, too.

    A rule for `files.*` has to match `mcp.files.*`. Otherwise a call that the configuration denies would be
    made, because a tool that no rule matches is allowed.
    """

    def both(rule: ToolRule) -> ToolRule:
        return replace(rule, tools=_prefixed_patterns(rule.tools))

    trusted = (*policy.trusted, *(f"{PREFIX}{name}" for name in policy.trusted))
    return replace(policy, rules=tuple(map(both, policy.rules)), trusted=trusted)


def prefixed_search(search: ToolSearch | None) -> ToolSearch | None:
    """Return settings whose patterns for the configured names hold for the names with the prefix, too."""
    return None if search is None else replace(search, always=_prefixed_patterns(search.always))


def _prefixed_patterns(tools: tuple[str, ...]) -> tuple[str, ...]:
    patterns = [(each, f"{PREFIX}{each}") for each in tools if not each.startswith(PREFIX)]
    return tuple(dict.fromkeys((*sum(patterns, ()), *tools)))
