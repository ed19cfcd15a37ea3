"""The injected invoker: one function that serves every MCP tool in place of the servers."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import FunctionTools
from grue import messages as m
from grue.errors import MCPConfigError
from grue.hosting import Listing, Note, ToolConnection
from grue.protocol.json_text import json_object
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.names import MCP_PREFIX
from grue.tool_sessions.connection import WrappedConnection

InvokeMcpTool: TypeAlias = Callable[[str, m.JsonObject], Any]
"""`invoke(name, arguments) -> result`, a plain or a coroutine function. The name is `SERVER.TOOL`."""

McpTool: TypeAlias = m.ToolDefinition | Mapping[str, Any] | str
"""A tool to list: a definition, a dict as MCP writes it (`name`, `description`, `inputSchema`), or a name."""

MCP = m.ServerName("mcp")
_ANY_OBJECT: m.JsonObject = {"type": "object"}


class McpCall(Struct, frozen=True):
    """One call of the injected function, for assertions in tests.

    Attributes:
        name: The tool, `SERVER.TOOL`.
        arguments: The arguments, parsed.
        result: What the function returned; `None` if it raised.
        error: The exception that the function raised; `None` if it returned. The model reads the exception's
            class name and text, unless the exception ends the turn, as `KeyboardInterrupt` does.
    """

    name: str
    arguments: m.JsonObject
    result: Any = None
    error: BaseException | None = None


class InjectedTools:
    """A tool server that answers every call with `invoke`, whether the tool is `listed` or not."""

    def __init__(self, invoke: InvokeMcpTool, listed: Iterable[McpTool] = ()) -> None:
        if not callable(invoke):
            raise MCPConfigError(f"invoke_mcp_tool is a function of a name and arguments, not {invoke!r}.")
        if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
            raise MCPConfigError(
                f"mcp_tools= wants a list of tools, not {listed!r:.80}: write mcp_tools=[...]."
            )
        self.calls: list[McpCall] = []
        self._invoke = invoke
        self._tools = tuple(_definition(tool) for tool in listed)

    def __call__(self, note: Note) -> ToolConnection:
        """Return the connection for one session."""
        return _ListingConnection(FunctionTools(catch_all=self._call).connect(MCP, note=note), self._tools)

    def _call(self, name: str, arguments: m.JsonObject) -> Any:
        try:
            value = self._invoke(name, deepcopy(arguments))  # a copy, which the function may change
        except BaseException as error:
            self.calls.append(McpCall(name, arguments, error=error))
            raise
        if isinstance(value, Awaitable):
            return self._awaited(name, arguments, value)
        self.calls.append(McpCall(name, arguments, value))
        return _result(value)

    async def _awaited(self, name: str, arguments: m.JsonObject, value: Awaitable[Any]) -> Any:
        try:
            result = await value
        except BaseException as error:
            self.calls.append(McpCall(name, arguments, error=error))
            raise
        self.calls.append(McpCall(name, arguments, result))
        return _result(result)


class _ListingConnection(WrappedConnection):
    def __init__(self, inner: ToolConnection, tools: tuple[m.ToolDefinition, ...]) -> None:
        super().__init__(inner)
        self._tools = tools

    async def open(self, timeout_s: float) -> Listing:
        return replace(await super().open(timeout_s), tools=self._tools)


def _definition(tool: McpTool) -> m.ToolDefinition:
    given: m.ToolDefinition | Mapping[str, Any] = {"name": tool} if isinstance(tool, str) else tool
    match given:
        case m.ToolDefinition():
            return replace(given, server=MCP, tool=_bare(given.name), full_name="")
        case {"name": str(name)} if _bare(name) and isinstance(given.get("inputSchema") or {}, Mapping):
            return m.ToolDefinition(
                server=MCP,
                tool=_bare(name),
                description=str(given.get("description") or ""),
                input_schema=dict(given.get("inputSchema") or _ANY_OBJECT),
            )
        case _:
            raise MCPConfigError(
                f"mcp_tools: {tool!r:.80} is not a tool. Write a name, a ToolDefinition, or MCP's"
                ' {"name": ..., "description": ..., "inputSchema": ...}.'
            )


def _bare(name: str) -> str:
    return name.removeprefix(MCP_PREFIX)


def _result(value: Any) -> Any:
    """Convert an MCP result (a dict or SDK object) to a `ToolCallResult`. Return other values unchanged."""
    dump = getattr(value, "model_dump", None)
    answer = dump(mode="json", by_alias=True) if callable(dump) else value
    content = answer.get("content") if isinstance(answer, Mapping) else None
    if isinstance(content, list) and all(
        isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content
    ):
        return tool_results.from_mcp(json_object(answer))
    return value
