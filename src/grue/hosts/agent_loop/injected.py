"""The injected invoker: one function that serves every MCP tool in place of the servers.

With it no registry, server or import of `mcp` is involved, so a test of an agent does not depend on what was
imported or configured before. Come here to change what the function gets, or how its result is read.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from grue import FunctionTools, MCPConfigError
from grue.connections import ConnectionStatus, Listing, Note, ToolConnection, tool_results
from grue.messages import JsonObject, ServerName, ToolCallResult, ToolDefinition

InvokeMcpTool: TypeAlias = Callable[[str, JsonObject], Any]
"""`invoke(name, arguments) -> result`, a plain or a coroutine function. The name is `SERVER.TOOL`."""

McpTool: TypeAlias = ToolDefinition | Mapping[str, Any] | str
"""A tool to list: a definition, one as MCP writes it (`name`, `description`, `inputSchema`), or a name."""

MCP = ServerName("mcp")
PREFIX = f"{MCP}."
_ANY_OBJECT: JsonObject = {"type": "object"}


class McpCall(Struct, frozen=True):
    """One call of the injected function, for assertions in tests.

    Attributes:
        name: The tool, `SERVER.TOOL`.
        arguments: The arguments, parsed.
        result: What the function returned; `None` if it raised.
        error: What it raised, with its traceback; the model reads it as a text.
    """

    name: str
    arguments: JsonObject
    result: Any = None
    error: BaseException | None = None


class InjectedTools:
    """A tool server whose calls all go to one function. It is a `Connect`: pass it to a `Runner`.

    Args:
        invoke: The function.
        listed: The tools that the model is offered. Any other name is served, too.

    Attributes:
        calls: The calls so far, in the order in which they ended.

    Raises:
        MCPConfigError: `invoke` cannot be called, or an entry of `listed` is not a tool.
    """

    def __init__(self, invoke: InvokeMcpTool, listed: Iterable[McpTool] = ()) -> None:
        if not callable(invoke):
            raise MCPConfigError(f"invoke_mcp_tool is a function of a name and arguments, not {invoke!r}.")
        self.calls: list[McpCall] = []
        self._invoke = invoke
        self._tools = tuple(_definition(tool) for tool in listed)

    def __call__(self, note: Note) -> ToolConnection:
        """Return the connection for one session."""
        return _ListingConnection(FunctionTools(catch_all=self._call).connect(MCP, note=note), self._tools)

    def _call(self, name: str, arguments: JsonObject) -> Any:
        try:
            value = self._invoke(name, arguments)
        except BaseException as error:
            self.calls.append(McpCall(name, arguments, error=error))
            raise
        if isinstance(value, Awaitable):
            return self._awaited(name, arguments, value)
        self.calls.append(McpCall(name, arguments, value))
        return _result(value)

    async def _awaited(self, name: str, arguments: JsonObject, value: Awaitable[Any]) -> Any:
        try:
            result = await value
        except BaseException as error:
            self.calls.append(McpCall(name, arguments, error=error))
            raise
        self.calls.append(McpCall(name, arguments, result))
        return _result(result)


class _ListingConnection:
    """A connection whose listing has these tools, and which is otherwise `inner`."""

    def __init__(self, inner: ToolConnection, tools: tuple[ToolDefinition, ...]) -> None:
        self._inner = inner
        self._tools = tools

    @property
    def status(self) -> ConnectionStatus:
        return self._inner.status

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(exc_type, exc, tb)

    async def open(self, timeout_s: float) -> Listing:
        return replace(await self._inner.open(timeout_s), tools=self._tools)

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        return await self._inner.call(tool, arguments, timeout_s)

    async def refresh_tools(self, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        return await self._inner.refresh_tools(timeout_s)


def _definition(tool: McpTool) -> ToolDefinition:
    match tool:
        case ToolDefinition():
            return replace(tool, server=MCP, tool=_bare(tool.name), full_name="")
        case str():
            return ToolDefinition(server=MCP, tool=_bare(tool), input_schema=_ANY_OBJECT)
        case {"name": str(name)}:
            return ToolDefinition(
                server=MCP,
                tool=_bare(name),
                description=str(tool.get("description") or ""),
                input_schema=dict(tool.get("inputSchema") or _ANY_OBJECT),
            )
        case _:
            raise MCPConfigError(
                f"mcp_tools: {tool!r:.80} is not a tool. Write a name, a ToolDefinition, or MCP's"
                ' {"name": ..., "description": ..., "inputSchema": ...}.'
            )


def _bare(name: str) -> str:
    return name.removeprefix(PREFIX)


def _result(value: Any) -> Any:
    """Return an MCP result, as JSON or as the SDK's object, as a `ToolCallResult`; other values unchanged."""
    dump = getattr(value, "model_dump", None)
    answer = dump(mode="json", by_alias=True) if callable(dump) else value
    if isinstance(answer, Mapping) and _is_blocks(answer.get("content")):
        return tool_results.from_mcp(tool_results.json_object(answer))
    return value


def _is_blocks(content: object) -> bool:
    return isinstance(content, list) and all(
        isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in content
    )
