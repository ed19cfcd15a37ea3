"""`SharedSession`: the kept session of an episode, as a connection for calls outside turns."""

import contextlib
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from grue import messages as m
from grue.tool_sessions.connection import (
    Connect,
    ConnectionStatus,
    KeepsBlocks,
    Listing,
    TakesRequests,
    refusal,
)
from grue.tool_sessions.failures import ToolRefusedError
from grue.tool_sessions.pooled_connection import PooledConnection
from grue.tool_sessions.session_pool import SessionPool

_METHOD_NOT_FOUND = -32601


class SharedSession:
    """A `ToolConnection` to a kept session, for calls outside turns. Leaving it closes nothing."""

    def __init__(self, pool: SessionPool, server: m.ServerName, connect: Connect) -> None:
        self._pool = pool
        self._server = server
        self._connect = connect
        self._owned: PooledConnection | None = None
        self._seen: tuple[m.ToolDefinition, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass

    async def open(self, timeout_s: float) -> Listing:
        """Wait until the kept session is open. If there is none, or it is lost, open a new one."""
        self._owned = owned = await self._pool.open_kept(self._server, self._connect, timeout_s)
        assert owned.listing is not None, "a connection that opened without failing has listed its tools"
        self._seen = owned.listing.tools
        return owned.listing

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool of the kept session."""
        return await self._open.connection.call(tool, arguments, timeout_s)

    async def refusal(self, tool: str, arguments: m.JsonObject) -> str | None:
        """Return why a call would not be sent."""
        return await refusal(self._open.connection, tool, arguments)

    async def call_with_blocks(
        self, tool: str, arguments: m.JsonObject, timeout_s: float
    ) -> tuple[m.ToolCallResult, tuple[m.JsonObject, ...]]:
        """Call a tool of the kept session; return the server's content blocks too."""
        connection = self._open.connection
        if isinstance(connection, KeepsBlocks):
            return await connection.call_with_blocks(tool, arguments, timeout_s)
        return await connection.call(tool, arguments, timeout_s), ()

    async def request(self, method: str, params: m.JsonObject, timeout_s: float) -> m.JsonObject:
        """Send any request to the kept session."""
        connection = self._open.connection
        if not isinstance(connection, TakesRequests):
            raise ToolRefusedError(f"{self._server} takes tool calls only", code=_METHOD_NOT_FOUND)
        return await connection.request(method, params, timeout_s)

    def exclusive(self) -> contextlib.AbstractAsyncContextManager[object]:
        """Wait for the batch of the running turn, and keep its next one waiting."""
        return self._open.alone

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Return the tools if they have changed since this user has seen them."""
        tools = await self._open.current_tools(timeout_s)
        changed, self._seen = tools is not self._seen, tools
        return tools if changed else None

    @property
    def status(self) -> ConnectionStatus:
        """The state of the kept session; its ending is `handed_over`, because the pool keeps it."""
        if self._owned is None:
            return ConnectionStatus(ending="handed_over")
        return replace(self._owned.connection.status, ending="handed_over")

    @property
    def _open(self) -> PooledConnection:
        assert self._owned is not None, "a connection is used after it was opened"
        return self._owned
