"""Use tool servers without an agent, from plain code: connect, call, close.

The sessions are those of a turn, actor and all; what is different is who holds them. One event loop in a
background thread owns them until the block is left, so that a session lives from one call to the next.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from grue.actors.owned_session import OwnedSession, SessionWiring
from grue.errors import MCPError
from grue.mcp_transport.client import ClientOptions
from grue.mcp_transport.process_group import ProcessRegistry
from grue.mcp_transport.server_requests import Abilities, Elicit
from grue.mcp_transport.stdio import ProcessLimits
from grue.messages import (
    JsonObject,
    OpenSession,
    ServerFailure,
    ServerName,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolCallResult,
    ToolDefinition,
    TurnFailed,
    TurnLimits,
)
from grue.protocol import tool_results
from grue.protocol.connection import Untried
from grue.protocol.tool_names import split_name
from grue.runtime.sync_edge import unmasked_interrupt
from grue.runtime.trace import Recorder
from grue.tool_servers import ToolServer, connect_to, hide_secrets, usable_servers
from grue.turn_errors import error_for

T = TypeVar("T")


class ToolClient:
    """Sessions with tool servers, open until the block is left; afterwards no process of them is alive (P9).

    ```python
    with ToolClient({"files": StdioServer(name="files", command="mcp-files")}) as client:
        print(client.call("files.read", {"path": "notes.txt"}).content)
    ```

    Thread-safe; the calls to one server are served one at a time. Ctrl-C ends what is waited for, and leaving
    the block then gives the servers no more time than a cancelled turn would.

    Args:
        servers: By name, as for a `Runner`.
        limits: Of these, `server_startup_timeout_s` and `tool_call_timeout_s` count.
        recorder: Where the sessions' messages go; `None`: nowhere.
        process_limits: How server processes are ended.
        elicit: Asks the person behind the host what a server wants to know, in the sessions' event loop;
            `None`: always declined.

    Raises:
        MCPConfigError: A server name cannot be used.
        MissingDependencyError: There is a server process to talk to, and `mcp` is absent or too old (R14.4).
    """

    def __init__(
        self,
        servers: Mapping[str, ToolServer],
        *,
        limits: TurnLimits | None = None,
        recorder: Recorder | None = None,
        process_limits: ProcessLimits | None = None,
        elicit: Elicit | None = None,
    ) -> None:
        self.limits = limits or TurnLimits()
        self.recorder = recorder or Recorder()
        self._servers = usable_servers(servers)
        self._options = ClientOptions(
            limits=process_limits or ProcessLimits(), abilities=Abilities(elicit=elicit)
        )
        hide_secrets(self.recorder, self._servers.values())
        self._registry = ProcessRegistry()
        self._sessions: dict[ServerName, OwnedSession] = {}
        self._loop: contextlib.AbstractContextManager[BlockingPortal] | None = None
        self._portal: BlockingPortal

    def __enter__(self) -> Self:
        self._loop = start_blocking_portal("asyncio")
        self._portal = self._loop.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._close(hurried=exc_type is not None and not issubclass(exc_type, Exception))

    def close(self) -> None:
        """Close every session and wait until its process is gone; a second call does nothing."""
        self._close(hurried=False)

    @property
    def closed(self) -> Mapping[str, SessionClosed]:
        """How each session ended that has."""
        ended = {name: session.closed for name, session in self._sessions.items()}
        return {name: closed for name, closed in ended.items() if closed is not None}

    def connect(self, *names: str) -> Mapping[str, SessionOpened | ServerFailure]:
        """Connect to servers, all at once, and return what came of each, in order; nothing is retried.

        Args:
            names: Which; none: every one that is configured.

        Raises:
            KeyError: There is no server of that name.
        """
        wanted = [ServerName(name) for name in names] or list(self._servers)
        for name in wanted:
            self._servers[name]
        return self._wait(lambda: self._connect_all(wanted))

    def tools(self) -> tuple[ToolDefinition, ...]:
        """Return what the connected servers list, as far as they have said."""
        return tuple(tool for session in self._sessions.values() for tool in session.tools)

    def tool(self, name: str) -> ToolDefinition | None:
        """Return what the server says of a tool; connects if need be. `None`: it lists no such tool.

        Args:
            name: `SERVER.TOOL`.

        Raises:
            MCPError: There is no such server.
            MCPServerStartupError: It could not be started.
        """
        server, _ = self._parsed(name)
        if server not in self._sessions:
            outcome = self.connect(server)[server]
            if isinstance(outcome, ServerFailure):
                raise error_for(TurnFailed(turn=0, failure=outcome))
        return next((tool for tool in self._sessions[server].tools if tool.name == name), None)

    def call(
        self, name: str, arguments: Mapping[str, object], timeout_s: float | None = None
    ) -> ToolCallResult:
        """Call a tool and return what it answered; connects if need be.

        A call that is refused, times out or loses its server is an error result (R6.4, R6.5).

        Args:
            name: `SERVER.TOOL`.
            arguments: A JSON object.
            timeout_s: Default: the limits'.

        Raises:
            MCPError: There is no such server.
            MCPServerStartupError: It could not be started.
        """
        if self.tool(name) is None:
            server, _ = self._parsed(name)
            known = ", ".join(tool.name for tool in self._sessions[server].tools) or "none"
            return tool_results.failure(f"Unknown MCP tool: {name}. Available tools: {known}")
        limit_s = self.limits.tool_call_timeout_s if timeout_s is None else timeout_s
        return self._wait(lambda: self._call(name, tool_results.json_object(arguments), limit_s))

    def _parsed(self, name: str) -> tuple[ServerName, str]:
        try:
            server, tool = split_name(name)
        except ValueError as error:
            raise MCPError(f"{name!r} names no tool: a tool's full name is SERVER.TOOL.") from error
        if server not in self._servers:
            known = ", ".join(self._servers) or "none"
            raise MCPError(f"There is no MCP server {server!r}. Configured: {known}.")
        return ServerName(server), tool

    async def _connect_all(self, names: list[ServerName]) -> dict[str, SessionOpened | ServerFailure]:
        outcomes: dict[str, SessionOpened | ServerFailure] = {}
        crashes: list[MCPError] = []

        async def connect(name: ServerName) -> None:
            try:
                outcomes[name] = await self._connect(name)
            except MCPError as error:  # kept out of the group, which would wrap it
                crashes.append(error)

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(connect, name)
        if crashes:
            raise crashes[0]
        return {name: outcomes[name] for name in names}

    async def _connect(self, name: ServerName) -> SessionOpened | ServerFailure:
        if name in self._sessions:
            await self._sessions[name].close()
        command = OpenSession(server=name, turn=0, timeout_s=self.limits.server_startup_timeout_s)
        connect = connect_to(name, self._servers[name], self._registry, self._options)
        session = OwnedSession(command, SessionWiring(connect, self.recorder, Untried()))
        self._sessions[name] = session
        outcome = await session.opened()
        match outcome:
            case SessionOpened():
                return outcome
            case StartupFailed(failure=failure):
                return failure
            case _:
                raise MCPError(
                    f"The session with MCP server '{name}' ended: {session.fault or 'it was closed'}"
                ) from session.fault

    async def _call(self, name: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        server, tool = self._parsed(name)
        try:
            return await self._sessions[server].call(tool, arguments, timeout_s)
        except TimeoutError:
            return tool_results.timed_out(timeout_s)
        except MCPError as error:
            return tool_results.call_failed(str(error))

    def _wait(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function in the sessions' loop; an interrupt of the wait cancels it."""
        if self._loop is None:
            raise RuntimeError("use the ToolClient in a `with` block")
        with unmasked_interrupt():
            future = self._portal.start_task_soon(function)
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise

    def _close(self, *, hurried: bool) -> None:
        if self._loop is None:
            return
        with contextlib.ExitStack() as last_words:
            last_words.callback(self._registry.kill_leftovers)
            last_words.callback(setattr, self, "_loop", None)
            last_words.push(self._loop)
            try:
                self._wait(lambda: self._close_all(hurried=hurried))
            except KeyboardInterrupt:
                self._registry.kill_now()
                raise

    async def _close_all(self, *, hurried: bool) -> None:
        async with anyio.create_task_group() as group:
            for session in self._sessions.values():
                group.start_soon(lambda session: session.close(hurried=hurried), session)
