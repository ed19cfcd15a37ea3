"""Use tool servers without an agent, from synchronous code: connect, call, close.

The sessions work as in a turn, with the same actor. The difference is their lifetime: one event loop in a
background thread (`EpisodeLoop`) owns them until the `with` block is left, so that a session stays open
between calls. The thread is a daemon; the interpreter closes its loop at exit.

The state of each server is used in that loop only, and a session is opened under a lock. So any number of
threads can call at the same time: they share one session per server, and each gets its own result.
"""

import asyncio
import contextlib
import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

import anyio

from grue.engine.owned_session import OwnedSession, SessionWiring
from grue.engine.tool_servers import ToolServer, connect_to, hide_secrets, usable_servers
from grue.engine.turn_errors import error_for
from grue.errors import MCPError, TurnCancelled
from grue.mcp_transport.client import ClientOptions
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
from grue.processes.limits import ProcessLimits
from grue.processes.process_group import ProcessRegistry
from grue.protocol import tool_results
from grue.protocol.connection import Untried
from grue.protocol.tool_names import split_name
from grue.runtime.host_code import ends_the_task
from grue.runtime.interrupts import defer_interrupts
from grue.runtime.loop_thread import EpisodeLoop, ErrorTexts
from grue.runtime.trace import Recorder
from grue.tool_sessions.server_requests import Abilities, Elicit

T = TypeVar("T")


class ToolClient:
    """Keep sessions with tool servers open until the block is left. Then no server process is alive.

    ```python
    with ToolClient({"files": StdioServer(name="files", command="mcp-files")}) as client:
        print(client.call("files.read", {"path": "notes.txt"}).content)
    ```

    Thread-safe. Threads share one session per server. Calls to one server run one at a time, and calls to
    different servers run in parallel. Ctrl-C cancels the current call; leaving the block then gives the
    servers only as much time as a cancelled turn does. If the block is never left, the client is closed at
    the interpreter's exit or when it is garbage collected.

    Args:
        servers: By name, as for a `Runner`.
        limits: Only `server_startup_timeout_s` and `tool_call_timeout_s` are used.
        recorder: Records the sessions' messages; `None`: they are not recorded.
        process_limits: How server processes are ended.
        elicit: Asks the user a server's question, in the sessions' event loop; `None`: always declined.

    Raises:
        MCPConfigError: A server name cannot be used.
        MissingDependencyError: There is a server process to talk to, and `mcp` is absent or too old.

    Source: R14.4, P9
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
        self._states: dict[ServerName, _ServerState] = {}
        self._loop: EpisodeLoop | None = None

    def __enter__(self) -> Self:
        self._states = states = {name: _ServerState() for name in self._servers}
        self._loop = EpisodeLoop(
            lambda _: _closing_at_end(states),
            on_exit=self._registry.kill_leftovers,
            force_kill=self._registry.kill_now,
            error_texts=_ERROR_TEXTS,
        )
        # Ends the loop if the client is garbage collected without having been closed.
        self._lost = weakref.finalize(self, self._loop.end)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._close(hurried=exc_type is not None and not issubclass(exc_type, Exception))

    def close(self) -> None:
        """Close every session and wait until its process has ended. A second call does nothing.

        Calls of other threads that are still running raise an error.
        """
        self._close(hurried=False)

    @property
    def closed(self) -> Mapping[str, SessionClosed]:
        """How each closed session ended."""
        sessions = {name: state.session for name, state in self._states.items()}
        return {name: each.closed for name, each in sessions.items() if each is not None and each.closed}

    def connect(self, *names: str) -> Mapping[str, SessionOpened | ServerFailure]:
        """Connect to servers in parallel and return the result for each, in order. Nothing is retried.

        An open session is kept. If its server has died, it is replaced by a new session.

        Args:
            names: Names of the servers; none: all configured ones.

        Raises:
            KeyError: There is no server of that name.
        """
        wanted = [ServerName(name) for name in names] or list(self._servers)
        for name in wanted:
            self._servers[name]
        return self._wait(lambda: self._connect_all(wanted))

    def tools(self) -> tuple[ToolDefinition, ...]:
        """Return the tools of all servers. Connects to servers for which no connect was tried yet.

        A server whose connect failed earlier contributes no tools.

        Raises:
            MCPServerStartupError: A server that this call connects to could not be started.
        """
        return self._wait(self._tools)

    def tool(self, name: str) -> ToolDefinition | None:
        """Return the definition of a tool, or `None` if the server does not list it. Connects if necessary.

        Args:
            name: `SERVER.TOOL`.

        Raises:
            MCPError: There is no such server.
            MCPServerStartupError: It could not be started.
        """
        server, _ = self._parsed(name)
        listed = self._wait(lambda: self._listed(server))
        return next((tool for tool in listed if tool.name == name), None)

    def call(
        self, name: str, arguments: Mapping[str, object], timeout_s: float | None = None
    ) -> ToolCallResult:
        """Call a tool and return its result. Connects if necessary.

        If the call is rejected, times out, or its server dies, the result is an error. Calls to
        other servers run in parallel. Another call to the same server waits until this one is done.

        Args:
            name: `SERVER.TOOL`.
            arguments: A JSON object.
            timeout_s: `None`: `limits.tool_call_timeout_s`. It starts when the call is sent.

        Raises:
            MCPError: There is no such server, or the client was closed meanwhile.
            MCPServerStartupError: It could not be started.

        Source: R6.4, R6.5
        """
        server, tool = self._parsed(name)
        limit_s = self.limits.tool_call_timeout_s if timeout_s is None else timeout_s
        return self._wait(lambda: self._call(server, tool, tool_results.json_object(arguments), limit_s))

    def _parsed(self, name: str) -> tuple[ServerName, str]:
        try:
            server, tool = split_name(name)
        except ValueError as error:
            raise MCPError(f"{name!r} names no tool: a tool's full name is SERVER.TOOL.") from error
        if server not in self._servers:
            known = ", ".join(self._servers) or "none"
            raise MCPError(f"There is no MCP server {server!r}. Configured: {known}.")
        return ServerName(server), tool

    async def _connect_all(self, names: Sequence[ServerName]) -> dict[str, SessionOpened | ServerFailure]:
        outcomes: dict[str, SessionOpened | ServerFailure] = {}
        crashes: list[BaseException] = []

        async def connect(name: ServerName) -> None:
            try:
                outcomes[name] = await self._connected(name, anew=True)
            except BaseException as error:  # the task group would wrap it in an exception group
                if ends_the_task(error):
                    raise
                crashes.append(error)

        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(connect, name)
        if crashes:
            raise crashes[0]
        return {name: outcomes[name] for name in names}

    async def _connected(self, name: ServerName, *, anew: bool = False) -> SessionOpened | ServerFailure:
        """Connect, or return the result of a connect that is running or has ended.

        Args:
            name: The server's name.
            anew: If the server of an earlier session has died, replace the session.
        """
        state = self._states[name]
        seen = state.attempts
        async with state.lock:
            if state.attempts > seen and state.outcome is not None:
                return (
                    state.outcome
                )  # another caller's attempt, which ended while this one waited for the lock
            if state.session is not None and isinstance(state.outcome, SessionOpened):
                if state.session.usable or not anew:
                    return state.outcome
                await state.session.close()
            state.outcome, session = await self._open(name)
            state.session = session or state.session
            state.attempts += 1
            return state.outcome

    async def _open(self, name: ServerName) -> tuple[SessionOpened | ServerFailure, OwnedSession | None]:
        command = OpenSession(server=name, turn=0, timeout_s=self.limits.server_startup_timeout_s)
        connect = connect_to(name, self._servers[name], self._registry, self._options)
        session = OwnedSession(command, SessionWiring(connect, self.recorder, Untried()))
        outcome = await session.opened()
        match outcome:
            case SessionOpened():
                return outcome, session
            case StartupFailed(failure=failure):
                return failure, None
            case _:
                if session.fault is not None and not isinstance(session.fault, Exception):
                    raise session.fault
                raise MCPError(
                    f"The session with MCP server '{name}' ended: {session.fault or 'it was closed'}"
                ) from session.fault

    async def _tools(self) -> tuple[ToolDefinition, ...]:
        untried = [name for name, state in self._states.items() if not state.attempts]
        for outcome in (await self._connect_all(untried)).values():
            if isinstance(outcome, ServerFailure):
                raise error_for(TurnFailed(turn=0, failure=outcome))
        sessions = [state.session for state in self._states.values() if state.session is not None]
        return tuple(tool for session in sessions for tool in session.tools)

    async def _session(self, server: ServerName) -> OwnedSession:
        outcome = await self._connected(server)
        session = self._states[server].session
        if isinstance(outcome, ServerFailure) or session is None:
            assert isinstance(outcome, ServerFailure), "what has opened is kept"
            raise error_for(TurnFailed(turn=0, failure=outcome))
        return session

    async def _listed(self, server: ServerName) -> tuple[ToolDefinition, ...]:
        return (await self._session(server)).tools

    async def _call(
        self, server: ServerName, tool: str, arguments: JsonObject, timeout_s: float
    ) -> ToolCallResult:
        session = await self._session(server)
        if not session.serves_unlisted and not any(each.tool == tool for each in session.tools):
            known = ", ".join(each.name for each in session.tools) or "none"
            return tool_results.failure(f"Unknown MCP tool: {server}.{tool}. Available tools: {known}")
        try:
            return await session.call(tool, arguments, timeout_s)
        except TimeoutError:
            return tool_results.timed_out(timeout_s)
        except MCPError as error:
            return tool_results.call_failed(str(error))

    def _wait(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function in the sessions' loop and wait. An interrupted wait cancels it."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("use the ToolClient in a `with` block")
        loop.loop_thread.refuse_waiting()
        with defer_interrupts():
            try:
                return loop.submit(function).wait(force_kill=self._registry.kill_now)
            except TurnCancelled as cut:
                raise MCPError(str(cut)) from cut.__cause__

    def _close(self, *, hurried: bool) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._lost.detach()
        states = self._states
        with defer_interrupts():
            try:
                if not loop.is_over and not loop.loop_thread.is_here:
                    loop.submit(lambda: _close_all(states, hurried=hurried)).wait(
                        force_kill=self._registry.kill_now
                    )
            finally:
                loop.close()


class _ServerState:
    """The state of one server. Used in the sessions' loop only.

    Attributes:
        lock: LoopContext while its session is opened.
        attempts: Number of finished connect attempts.
        outcome: Result of the last attempt.
        session: The last session that was opened.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.attempts = 0
        self.outcome: SessionOpened | ServerFailure | None = None
        self.session: OwnedSession | None = None


@contextlib.asynccontextmanager
async def _closing_at_end(states: Mapping[ServerName, _ServerState]) -> AsyncIterator[None]:
    """Close the sessions when the loop ends, for whatever reason."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await _close_all(states, hurried=True)


async def _close_all(states: Mapping[ServerName, _ServerState], *, hurried: bool) -> None:
    sessions = [state.session for state in states.values() if state.session is not None]
    async with anyio.create_task_group() as group:
        for session in sessions:
            group.start_soon(functools.partial(session.close, hurried=hurried))


_ERROR_TEXTS = ErrorTexts(
    forked="The ToolClient is its parent process's: make a new one after a fork.",
    waiting="A ToolClient cannot be waited for in its own event loop, where what it asks the host runs.",
    closed="The ToolClient is closed.",
    ended_early="The ToolClient was closed before the call was over.",
)
