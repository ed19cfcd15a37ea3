"""Use tool servers without an agent, from plain code: connect, call, close.

The sessions are those of a turn, actor and all; what is different is who holds them. One event loop in a
background thread owns them until the block is left, so that a session lives from one call to the next. It is
the loop of an episode: a daemon's, which the interpreter's exit closes if nothing else has.

What is known of a server is touched in that loop alone, and its session is opened under a lock. So any number
of threads may ask at once: they get one session for each server, and each gets its own answer.
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
from grue.runtime.host_code import ends_the_task
from grue.runtime.loop_thread import EpisodeLoop, Wording
from grue.runtime.sync_edge import counted_interrupts
from grue.runtime.trace import Recorder

T = TypeVar("T")


class ToolClient:
    """Sessions with tool servers, open until the block is left; afterwards no process of them is alive (P9).

    ```python
    with ToolClient({"files": StdioServer(name="files", command="mcp-files")}) as client:
        print(client.call("files.read", {"path": "notes.txt"}).content)
    ```

    Any number of threads may use it at once: they share one session a server, calls to one server are served
    one at a time, and those to several at the same time. Ctrl-C ends what is waited for, and leaving the
    block then gives the servers no more time than a cancelled turn would. One that is never left ends with
    the interpreter, or when it is garbage collected.

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
        self._places: dict[ServerName, _Place] = {}
        self._loop: EpisodeLoop | None = None

    def __enter__(self) -> Self:
        self._places = places = {name: _Place() for name in self._servers}
        self._loop = EpisodeLoop(
            lambda _: _held(places),
            on_exit=self._registry.kill_leftovers,
            force_kill=self._registry.kill_now,
            wording=_WORDING,
        )
        # For one that is lost without having been closed.
        self._lost = weakref.finalize(self, self._loop.end)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._close(hurried=exc_type is not None and not issubclass(exc_type, Exception))

    def close(self) -> None:
        """Close every session and wait until its process is gone; a second call does nothing.

        What other threads wait for then ends with an error.
        """
        self._close(hurried=False)

    @property
    def closed(self) -> Mapping[str, SessionClosed]:
        """How each session ended that has."""
        sessions = {name: place.session for name, place in self._places.items()}
        return {name: each.closed for name, each in sessions.items() if each is not None and each.closed}

    def connect(self, *names: str) -> Mapping[str, SessionOpened | ServerFailure]:
        """Connect to servers, all at once, and return what came of each, in order; nothing is retried.

        A session that is open stays as it is. One whose server has died is followed by a new one.

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
        """Return what the servers list; connects to those that nobody has tried to connect to yet.

        A server whose connect has failed lists nothing.

        Raises:
            MCPServerStartupError: A server that was tried by this call could not be started.
        """
        return self._wait(self._tools)

    def tool(self, name: str) -> ToolDefinition | None:
        """Return what the server says of a tool; connects if need be. `None`: it lists no such tool.

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
        """Call a tool and return what it answered; connects if need be.

        A call that is refused, times out or loses its server is an error result (R6.4, R6.5). Calls to other
        servers go on at the same time; one to the same server waits until this one is answered.

        Args:
            name: `SERVER.TOOL`.
            arguments: A JSON object.
            timeout_s: Default: the limits'. It counts from when the server is asked.

        Raises:
            MCPError: There is no such server, or the client was closed meanwhile.
            MCPServerStartupError: It could not be started.
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
            except BaseException as error:  # kept out of the group, which would wrap it
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
        """Return what came of the connect: one that others wait for too, or an earlier one.

        Args:
            name: The server's.
            anew: Follow a session whose server has died by another one.
        """
        place = self._places[name]
        seen = place.attempts
        async with place.lock:
            if place.attempts > seen and place.outcome is not None:
                return place.outcome  # of another caller's attempt, which this one has waited for
            if place.session is not None and isinstance(place.outcome, SessionOpened):
                if place.session.usable or not anew:
                    return place.outcome
                await place.session.close()
            place.outcome, session = await self._open(name)
            place.session = session or place.session
            place.attempts += 1
            return place.outcome

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
        untried = [name for name, place in self._places.items() if not place.attempts]
        for outcome in (await self._connect_all(untried)).values():
            if isinstance(outcome, ServerFailure):
                raise error_for(TurnFailed(turn=0, failure=outcome))
        sessions = [place.session for place in self._places.values() if place.session is not None]
        return tuple(tool for session in sessions for tool in session.tools)

    async def _session(self, server: ServerName) -> OwnedSession:
        outcome = await self._connected(server)
        session = self._places[server].session
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
        if not any(each.tool == tool for each in session.tools):
            known = ", ".join(each.name for each in session.tools) or "none"
            return tool_results.failure(f"Unknown MCP tool: {server}.{tool}. Available tools: {known}")
        try:
            return await session.call(tool, arguments, timeout_s)
        except TimeoutError:
            return tool_results.timed_out(timeout_s)
        except MCPError as error:
            return tool_results.call_failed(str(error))

    def _wait(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function in the sessions' loop; an interrupt of the wait cancels it."""
        loop = self._loop
        if loop is None:
            raise RuntimeError("use the ToolClient in a `with` block")
        loop.home.refuse_waiting()
        with counted_interrupts():
            try:
                return loop.submit(function).wait(force_kill=self._registry.kill_now)
            except TurnCancelled as cut:
                raise MCPError(str(cut)) from cut.__cause__

    def _close(self, *, hurried: bool) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._lost.detach()
        places = self._places
        with counted_interrupts():
            try:
                if not loop.is_over and not loop.home.is_here:
                    loop.submit(lambda: _close_all(places, hurried=hurried)).wait(
                        force_kill=self._registry.kill_now
                    )
            finally:
                loop.close()


class _Place:
    """What is known of one server. Used in the sessions' loop alone.

    Attributes:
        lock: Held while its session is opened.
        attempts: To open one, that have come to an end.
        outcome: Of the last of them.
        session: The last one that was opened.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.attempts = 0
        self.outcome: SessionOpened | ServerFailure | None = None
        self.session: OwnedSession | None = None


@contextlib.asynccontextmanager
async def _held(places: Mapping[ServerName, _Place]) -> AsyncIterator[None]:
    """Have the sessions closed with the loop, whatever ends it."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await _close_all(places, hurried=True)


async def _close_all(places: Mapping[ServerName, _Place], *, hurried: bool) -> None:
    sessions = [place.session for place in places.values() if place.session is not None]
    async with anyio.create_task_group() as group:
        for session in sessions:
            group.start_soon(functools.partial(session.close, hurried=hurried))


_WORDING = Wording(
    forked="The ToolClient is its parent process's: make a new one after a fork.",
    waiting="A ToolClient cannot be waited for in its own event loop, where what it asks the host runs.",
    closed="The ToolClient is closed.",
    cut="The ToolClient was closed before the call was over.",
)
