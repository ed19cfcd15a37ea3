"""`WrappedConnection`: passes everything on to another connection. Derive from it to change one thing."""

import contextlib
from types import TracebackType
from typing import Self

from grue import messages as m
from grue.tool_sessions.connection import (
    ConnectionStatus,
    Listing,
    ToolConnection,
    exclusive,
    finish_task,
    refusal,
)


class WrappedConnection:
    """A `ToolConnection` that does what another one does.

    Args:
        connection: The other one.
    """

    def __init__(self, connection: ToolConnection) -> None:
        self._connection = connection

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._connection.__aexit__(exc_type, exc, tb)

    async def open(self, timeout_s: float) -> Listing:
        """Open the wrapped connection."""
        return await self._connection.open(timeout_s)

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool."""
        return await self._connection.call(tool, arguments, timeout_s)

    async def refusal(self, tool: str, arguments: m.JsonObject) -> str | None:
        """Return why a call would not be sent."""
        return await refusal(self._connection, tool, arguments)

    async def finish_task(self, tool: str, task: m.ToolTask, timeout_s: float) -> m.ToolCallResult:
        """Ask for the result of a task that an earlier process has started."""
        return await finish_task(self._connection, tool, task, timeout_s)

    def exclusive(self) -> contextlib.AbstractAsyncContextManager[object]:
        """Keep other users of the session waiting, if it has any."""
        return exclusive(self._connection)

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Return the tools if they have changed."""
        return await self._connection.refresh_tools(timeout_s)

    @property
    def status(self) -> ConnectionStatus:
        """The state of the wrapped connection."""
        return self._connection.status
