"""Tool calls outside turns, as a `Runner` and a `ToolClient` offer them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from grue import messages as m
from grue.errors import MCPError, MCPToolCallError
from grue.policies import TurnLimits
from grue.protocol.json_text import is_repetitive, json_object
from grue.runtime.safe_text import well_formed

if TYPE_CHECKING:  # at run time, the import would delay the first turn of a runner
    from grue.engine.outside_turns.server_sessions import ServerSessions, SessionWork

T = TypeVar("T")

_LONGEST_S = 2.0**63


def _object(what: str, given: Mapping[str, object] | None) -> m.JsonObject:
    if not isinstance(given, Mapping | None):
        raise MCPError(f"{what} are a dictionary, such as {{'text': 'hello'}}, not a {type(given).__name__}.")
    if is_repetitive(given):
        raise MCPError(f"{what} hold themselves, or the same parts so often that they cannot be sent.")
    return json_object(given or {})


class ToolAccess(ABC):
    """Calls of tools, and requests to their servers, outside turns. Blocking.

    Attributes:
        limits: Of these, the methods use the start-up limits and `tool_call_timeout_s`.
    """

    limits: TurnLimits

    @abstractmethod
    def _outside_turns(self, work: SessionWork[T]) -> T:
        """Run `work` with the sessions of this object and return its result, blocking."""

    def tools(self) -> tuple[m.ToolDefinition, ...]:
        """Return the tools of all servers. Connects if necessary.

        A `ToolClient` leaves out a server that it could not start earlier; with `max_reconnects=None` it
        tries again.

        Raises:
            MCPServerStartupError: A server that this call connects to could not be started.
            MCPError: The caller is inside a turn of this runner, or a call that this client runs.
        """
        return self._outside_turns(lambda sessions: sessions.tools())

    def tool(self, name: str) -> m.ToolDefinition | None:
        """Return the definition of a tool, or `None` if the server does not list it. Connects if necessary.

        Args:
            name: `SERVER.TOOL`.

        Raises:
            MCPError: The server is not configured. Or the caller is inside a turn or a call, as for `tools`.
            MCPServerStartupError: The server could not be started.
        """
        return self._outside_turns(lambda sessions: sessions.tool(name))

    def call(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
        *,
        check: bool = False,
        turn: int = 0,
        definition: m.ToolDefinition | None = None,
    ) -> m.ToolCallResult:
        """Call a tool and return its result. Connects if necessary.

        `result.blocks` has the server's own content blocks. Calls in one session run one at a time, calls to
        different servers in parallel. Ctrl-C cancels the call. A runner makes no call that its tool policy
        denies. A call that the policy would ask about is made without asking, because the program itself
        makes it. For the same reason, `max_calls` denies a call only if it is 0: these calls are not counted,
        also if `turn` is set. A `ToolClient` has no tool policy.

        Args:
            name: `SERVER.TOOL`.
            arguments: A JSON object; `None`: no arguments.
            timeout_s: Limit in seconds, from the sending of the call; `None`: `limits.tool_call_timeout_s`.
                If the server's `call_timeout_s` is smaller, that counts.
            check: Raise an error for a failed call. By default, such a call returns an error result.
            turn: Number of the turn that the call is recorded in, for a host that makes the calls of a reply
                itself; 0: the call belongs to no turn.
            definition: The tool's definition, as `tools()` returned it when the call was decided. If the tool
                has another definition now, the call is not made. `None`: its present definition is accepted.

        Raises:
            MCPToolCallError: With `check`: the call failed. `ToolCallTimedOut`, `ToolChanged`,
                `ToolNotFound`, `ToolServerDied` and, from a runner, `ToolCallDenied` are subclasses.
            MCPServerStartupError: The server could not be started.
            MCPError: The server is not configured. Or the caller is inside a turn or a call, as for `tools`.

        Source: R6.4, R6.5
        """
        return self._outside_turns(
            self._calling(name, arguments, timeout_s, check=check, turn=turn, definition=definition)
        )

    def request(
        self,
        server: str,
        method: str,
        params: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
    ) -> m.JsonObject:
        """Send an MCP request other than a tool call, and return the raw result. Connects if necessary.

        For example `prompts/get`, `resources/read`, `completion/complete`, `resources/subscribe`. A
        subscription needs a session that stays open: a `ToolClient`, or a runner that keeps its sessions. The
        updates are recorded as `ServerNoted` of the kind `updated`. `subscriptions/listen` (MCP revision
        2026-07-28) returns what the server agreed to, with a `subscriptionId`. The stream of updates ends
        with the session, or when you send `notifications/cancelled` with that id as its `requestId`. If the
        stream ends otherwise, that is recorded as `ServerNoted` of the kind `updates_ended`.

        Args:
            server: The server's name.
            method: Method of the request, as in the MCP specification.
            params: Parameters of the request; `None`: no parameters.
            timeout_s: Limit in seconds; `None`: `limits.tool_call_timeout_s`.

        Raises:
            MCPRequestError: The server refused the request, has died, or is no MCP server.
                `MCPRequestTimedOut` is a subclass.
            MCPServerStartupError: The server could not be started.
            MCPError: The server is not configured. `method` is `tools/call`, `initialize`, or a subscription
                although no session stays open. Or the caller is inside a turn or a call, as for `tools`.
        """
        return self._outside_turns(self._requesting(server, method, params, timeout_s))

    def request_all(
        self,
        server: str,
        method: str,
        params: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[m.JsonObject, ...]:
        """Send a listing request, read its pages, at most 100, and return their items.

        Args:
            server: The server's name.
            method: `prompts/list`, `resources/list`, `resources/templates/list`, `skills/list`, `tools/list`.
            params: Parameters besides the cursor.
            timeout_s: Limit for each page; `None`: `limits.tool_call_timeout_s`.

        Raises:
            ValueError: The method has no pages.
            MCPError: As `request`.
        """
        return self._outside_turns(self._requesting_all(server, method, params, timeout_s))

    def _limit_s(self, call: str, timeout_s: float | None) -> float:
        if timeout_s is None:
            return self.limits.tool_call_timeout_s
        known = isinstance(timeout_s, int | float)
        # A trace cannot hold an infinite number, nor a subclass of `float` such as numpy's.
        limit_s = float(min(max(timeout_s, -_LONGEST_S), _LONGEST_S)) if known else math.nan
        if math.isnan(limit_s):
            raise MCPError(f"{call}: timeout_s is a number of seconds, not {timeout_s!r:.60}.")
        return limit_s

    def _calling(
        self,
        name: str,
        arguments: Mapping[str, object] | None,
        timeout_s: float | None,
        *,
        check: bool,
        turn: int,
        definition: m.ToolDefinition | None,
    ) -> SessionWork[m.ToolCallResult]:
        if not isinstance(name, str):
            raise MCPError(f"call({name!r:.60}): a tool's name is a text, 'server.tool'.")
        limit_s = self._limit_s(f"call({name!r:.60})", timeout_s)
        given = _object(f"call({name!r:.60}): arguments", arguments)

        async def calling(sessions: ServerSessions) -> m.ToolCallResult:
            try:
                return await sessions.call(name, given, limit_s, turn=turn, definition=definition)
            except MCPToolCallError as error:
                if check or not isinstance(error.result, m.ToolCallResult):
                    raise
                return error.result

        return calling

    def _requesting(
        self, server: str, method: str, params: Mapping[str, object] | None, timeout_s: float | None
    ) -> SessionWork[m.JsonObject]:
        where = f"request({server!r:.60})"
        if not isinstance(method, str):
            raise MCPError(f"{where}: method is a text, such as 'resources/list', not {method!r:.60}.")
        sent = well_formed(method)
        limit_s, given = self._limit_s(where, timeout_s), _object(f"{where}: params", params)
        return lambda sessions: sessions.request(server, sent, given, limit_s)

    def _requesting_all(
        self, server: str, method: str, params: Mapping[str, object] | None, timeout_s: float | None
    ) -> SessionWork[tuple[m.JsonObject, ...]]:
        where = f"request_all({server!r:.60})"
        limit_s, given = self._limit_s(where, timeout_s), _object(f"{where}: params", params)
        return lambda sessions: sessions.request_all(server, method, given, limit_s)


class AsyncToolAccess(ToolAccess):
    """`ToolAccess` with an async version of each method, which does not block the caller's event loop."""

    @abstractmethod
    async def _outside_turns_async(self, work: SessionWork[T]) -> T:
        """Do the same as `_outside_turns`, without blocking the caller's event loop."""

    async def tools_async(self) -> tuple[m.ToolDefinition, ...]:
        """Return what `tools` returns."""
        return await self._outside_turns_async(lambda sessions: sessions.tools())

    async def tool_async(self, name: str) -> m.ToolDefinition | None:
        """Return what `tool` returns."""
        return await self._outside_turns_async(lambda sessions: sessions.tool(name))

    async def call_async(
        self,
        name: str,
        arguments: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
        *,
        check: bool = False,
        turn: int = 0,
        definition: m.ToolDefinition | None = None,
    ) -> m.ToolCallResult:
        """Call a tool, as `call` does. Cancellation cancels the call."""
        return await self._outside_turns_async(
            self._calling(name, arguments, timeout_s, check=check, turn=turn, definition=definition)
        )

    async def request_async(
        self,
        server: str,
        method: str,
        params: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
    ) -> m.JsonObject:
        """Send a request, as `request` does. Cancellation cancels the request."""
        return await self._outside_turns_async(self._requesting(server, method, params, timeout_s))

    async def request_all_async(
        self,
        server: str,
        method: str,
        params: Mapping[str, object] | None = None,
        timeout_s: float | None = None,
    ) -> tuple[m.JsonObject, ...]:
        """Read the pages of a listing, as `request_all` does."""
        return await self._outside_turns_async(self._requesting_all(server, method, params, timeout_s))
