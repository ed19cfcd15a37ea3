"""A connection that writes each call to the trace file before it sends it.

A turn that can be parked may be resumed after its process was killed. A call that is in the trace without a
result may have run then, and is not sent again. This holds only if no call is sent that is not in the trace.
"""

from collections.abc import Awaitable, Callable

from grue.messages import JsonObject, ToolCallResult, ToolDefinition, ToolPolicy
from grue.protocol.tool_policy import terms_of
from grue.tool_sessions.connection import Listing, ToolConnection
from grue.tool_sessions.failures import ToolRefusedError
from grue.tool_sessions.wrapped_connection import WrappedConnection

_INTERNAL_ERROR = -32603  # as JSON-RPC numbers it
NOT_WRITTEN = "the call was not sent, because the trace file could not be written before it"


class DurableConnection(WrappedConnection):
    """A `ToolConnection` that flushes the trace before each call of a tool that is not read-only.

    The session records `ToolCalled` before it calls, so the flush puts it on file. If that fails, the call is
    not sent, and its result tells the model why.

    Args:
        connection: Makes the calls.
        policy: Says which annotations are believed.
        written: Flushes the trace, and returns whether it is on file.
    """

    def __init__(
        self, connection: ToolConnection, policy: ToolPolicy, written: Callable[[], Awaitable[bool]]
    ) -> None:
        super().__init__(connection)
        self._policy = policy
        self._written = written
        self._read_only: set[str] = set()

    async def open(self, timeout_s: float) -> Listing:
        """Open the connection, and learn which tools are read-only."""
        listing = await self._connection.open(timeout_s)
        self._learn(listing.tools)
        return listing

    async def refresh_tools(self, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        """Return the new list of tools, if there is one."""
        tools = await self._connection.refresh_tools(timeout_s)
        if tools is not None:
            self._learn(tools)
        return tools

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        """Call a tool once the call is on file.

        Raises:
            ToolRefusedError: The trace could not be written, so the call was not sent; also as the connection
                itself raises it.
        """
        if tool not in self._read_only and not await self._written():
            raise ToolRefusedError(NOT_WRITTEN, code=_INTERNAL_ERROR)
        return await self._connection.call(tool, arguments, timeout_s)

    def _learn(self, tools: tuple[ToolDefinition, ...]) -> None:
        self._read_only = {tool.tool for tool in tools if terms_of(self._policy, tool).read_only}
