"""`ServerSessions`: sessions with tool servers outside turns, for tool calls and other requests of the host.

`ToolClient` keeps one open until its block is left. A `Runner` makes one for each of its calls. Come here to
change what a call outside a turn does. A session itself is an `OwnedSession`.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import anyio
from msgspec import Struct, field

from grue.engine.owned_session import OwnedSession, SessionWiring
from grue.engine.turn_errors import error_for
from grue.errors import (
    MCPError,
    MCPRequestError,
    MCPRequestTimedOut,
    MCPToolCallError,
    ToolCallDenied,
    ToolCallTimedOut,
    ToolNotFound,
    ToolServerDied,
)
from grue.messages import (
    JsonObject,
    OpenSession,
    ServerFailure,
    ServerName,
    ServerRequested,
    SessionClosed,
    SessionOpened,
    StartupFailed,
    ToolCallResult,
    ToolDefinition,
    TurnFailed,
)
from grue.protocol import tool_results
from grue.protocol.connection import Untried
from grue.protocol.tool_calls import tool_of
from grue.protocol.tool_names import split_known, split_name
from grue.protocol.tool_policy import judge
from grue.runtime.host_code import ends_the_task
from grue.runtime.trace import Recorder
from grue.tool_rules import ToolPolicy
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError, ToolTimedOutError

T = TypeVar("T")

_OWN_METHODS = {
    "tools/call": "Use `call`, which applies the tool policy.",
    "initialize": "The session is initialized when it is opened.",
}
"""Requests that are not sent as they are, with what to do instead."""

_SUBSCRIBING = frozenset(("resources/subscribe", "subscriptions/listen"))
"""Requests whose effect ends with the session."""

_PAGED = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "tools/list": "tools",
}
"""Requests with several pages, and the member of a page that has its items."""

_MAX_PAGES = 100


class SessionSources(Struct, frozen=True, kw_only=True):
    """How sessions are opened, and what limits their use.

    Attributes:
        connect: Makes a connection to a server, by the server's name.
        recorder: Records the sessions' messages.
        startup_timeout_s: Limit for opening a session.
        startup_timeouts_s: The same for single servers, by name.
        max_reconnects: How often a server that has died is connected again, before the next call or request
            to it; `None`: without limit.
        tool_policy: Its denials hold. Its questions do not apply, since the host itself makes the call.
        lasting: The sessions stay open after a request, so that subscriptions make sense.
    """

    connect: Mapping[ServerName, Connect]
    recorder: Recorder
    startup_timeout_s: float
    startup_timeouts_s: Mapping[str, float] = field(default_factory=dict)
    max_reconnects: int | None = 0
    tool_policy: ToolPolicy = ToolPolicy()
    lasting: bool = False

    def startup_limit(self, server: ServerName) -> float:
        """Return the time limit in seconds for opening a session of this server."""
        return self.startup_timeouts_s.get(server, self.startup_timeout_s)


class ServerSessions:
    """At most one session per server, opened when it is first needed. Use it in one asyncio event loop.

    Calls to one server run one at a time, and calls to different servers run in parallel.

    Args:
        sources: How sessions are opened.
    """

    def __init__(self, sources: SessionSources) -> None:
        self._sources = sources
        self._states = {name: _ServerState() for name in sources.connect}

    @property
    def closed(self) -> Mapping[str, SessionClosed]:
        """How each closed session ended."""
        sessions = {name: state.session for name, state in self._states.items()}
        return {name: each.closed for name, each in sessions.items() if each is not None and each.closed}

    async def connect(self, names: Sequence[ServerName]) -> dict[ServerName, SessionOpened | ServerFailure]:
        """Connect to servers in parallel and return the result for each. A session that has died is replaced.

        Raises:
            MCPError: A session crashed.
        """
        outcomes: dict[ServerName, SessionOpened | ServerFailure] = {}
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

    async def tools(self) -> tuple[ToolDefinition, ...]:
        """Return the tools of all servers. Connects to servers for which no connect was tried yet.

        Raises:
            MCPServerStartupError: A server that this call connects to could not be started.
        """
        untried = [name for name, state in self._states.items() if not state.attempts]
        for outcome in (await self.connect(untried)).values():
            if isinstance(outcome, ServerFailure):
                raise error_for(TurnFailed(turn=0, failure=outcome))
        sessions = [state.session for state in self._states.values() if state.session is not None]
        return tuple(tool for session in sessions for tool in session.tools)

    async def tool(self, name: str) -> ToolDefinition | None:
        """Return the definition of a tool, or `None` if the server does not list it.

        Raises:
            MCPError: There is no such server.
            MCPServerStartupError: The server could not be started.
        """
        server, _ = self._split(name)
        session = await self._session(server)
        return next((tool for tool in session.tools if tool.name == name), None)

    async def call(
        self, name: str, arguments: JsonObject, timeout_s: float, *, turn: int = 0
    ) -> ToolCallResult:
        """Call a tool and return its result.

        Args:
            name: `SERVER.TOOL`.
            arguments: A JSON object.
            timeout_s: Starts when the call is sent.
            turn: The turn that the call is recorded in; 0: none.

        Raises:
            MCPToolCallError: The call failed; its subclasses say why. It has the result for the caller.
            MCPError: There is no such server, or its session crashed.
            MCPServerStartupError: The server could not be started.
        """
        server, tool = self._split(name)
        session = await self._session(server, again=True)
        unlisted = (server,) if session.serves_unlisted else ()
        definition = tool_of(name, {each.name: each for each in session.tools}, unlisted)
        if definition is None:
            known = ", ".join(each.name for each in session.tools) or "none"
            text = f"Unknown MCP tool: {server}.{tool}. Available tools: {known}"
            raise _failed(ToolNotFound, name, tool_results.failure(text))
        (terms,), _ = judge(self._sources.tool_policy, [definition], {})
        if terms.verdict == "deny":
            raise _failed(
                ToolCallDenied,
                name,
                tool_results.failure(
                    f"The call was denied: {terms.reason}. A rule of the tool policy says so"
                ),
            )
        try:
            result = await session.call(tool, arguments, timeout_s, turn=turn)
        except TimeoutError as error:
            raise _failed(ToolCallTimedOut, name, tool_results.timed_out(timeout_s)) from error
        except MCPError as error:
            raise _failed(ToolServerDied, name, tool_results.call_failed(str(error))) from error
        if result.is_error:
            raise _failed(MCPToolCallError, name, result)
        return result

    async def request(self, server: str, method: str, params: JsonObject, timeout_s: float) -> JsonObject:
        """Send a request other than a tool call and return the server's raw result.

        Raises:
            MCPRequestError: The server refused it, did not answer in time, or has died.
            MCPError: There is no such server, or this request cannot be sent.
            MCPServerStartupError: The server could not be started.
        """
        name = self._known(server)
        self._refuse(method)
        session = await self._session(name, again=True)
        started, error = anyio.current_time(), ""
        try:
            return await session.request(method, params, timeout_s)
        except (ToolTimedOutError, ToolRefusedError, ServerFailed) as failed:
            raised = _request_error(failed, name, method)
            error = str(raised)
            raise raised from failed
        finally:
            duration_s = anyio.current_time() - started
            note = ServerRequested(
                server=name, method=method, params=params, error=error, duration_s=duration_s
            )
            self._sources.recorder.record(note, sender="host")

    async def request_all(
        self, server: str, method: str, params: JsonObject, timeout_s: float
    ) -> tuple[JsonObject, ...]:
        """Send a listing request for each of its pages and return the items of all pages.

        A repeated cursor ends the listing, and so does the 100th page.

        Raises:
            ValueError: The method is not a listing.
            MCPError: As `request` does.
        """
        member = _PAGED.get(method)
        if member is None:
            raise ValueError(f"{method!r} has no pages. Requests with pages: {', '.join(_PAGED)}.")
        items: list[JsonObject] = []
        seen: set[str] = set()
        for _ in range(_MAX_PAGES):
            page = await self.request(server, method, params, timeout_s)
            listed = page.get(member)
            items += [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
            params = {**params, "cursor": cursor}
        return tuple(items)

    async def close(self, *, hurried: bool = False) -> None:
        """Close all sessions in parallel, and wait until their processes have ended.

        Args:
            hurried: Give the servers only as much time as a cancellation does.
        """
        sessions = [state.session for state in self._states.values() if state.session is not None]
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(functools.partial(session.close, hurried=hurried))

    def _known(self, server: str) -> ServerName:
        if server not in self._states:
            known = ", ".join(self._states) or "none"
            raise MCPError(f"There is no MCP server {server!r}. Configured: {known}.")
        return ServerName(server)

    def _split(self, name: str) -> tuple[ServerName, str]:
        known = split_known(name, self._states)
        if known is not None:
            return ServerName(known[0]), known[1]
        try:
            server, tool = split_name(name)
        except ValueError as error:
            raise MCPError(f"{name!r} names no tool: a tool's full name is SERVER.TOOL.") from error
        return self._known(server), tool

    def _refuse(self, method: str) -> None:
        if method in _OWN_METHODS:
            raise MCPError(f"{method} cannot be sent as a request. {_OWN_METHODS[method]}")
        if method in _SUBSCRIBING and not self._sources.lasting:
            raise MCPError(
                f"{method} needs a session that stays open: use a ToolClient, or a runner with "
                'lifetime="episode" and keep_sessions=True.'
            )

    async def _session(self, server: ServerName, *, again: bool = False) -> OwnedSession:
        """Return a server's session, opened if necessary.

        Args:
            server: The server's name.
            again: Replace a session whose server has died, as far as the limit allows.
        """
        state, most = self._states[server], self._sources.max_reconnects
        outcome = state.outcome if state.reconnects else None
        if not isinstance(outcome, ServerFailure) or most is None:
            died = again and state.session is not None and not state.session.usable
            anew = died and (most is None or state.reconnects < most)
            state.reconnects += anew
            outcome = await self._connected(server, anew=anew)
        session = state.session
        if isinstance(outcome, ServerFailure) or session is None:
            assert isinstance(outcome, ServerFailure), "an opened session is kept"
            raise error_for(TurnFailed(turn=0, failure=outcome))
        return session

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
                return state.outcome  # of another caller's attempt, which this one waited for
            if state.session is not None and isinstance(state.outcome, SessionOpened):
                if state.session.usable or not anew:
                    return state.outcome
                await state.session.close()
            state.outcome, session = await self._open(name)
            state.session = session or state.session
            state.attempts += 1
            return state.outcome

    async def _open(self, name: ServerName) -> tuple[SessionOpened | ServerFailure, OwnedSession | None]:
        sources = self._sources
        command = OpenSession(server=name, turn=0, timeout_s=sources.startup_limit(name))
        session = OwnedSession(command, SessionWiring(sources.connect[name], sources.recorder, Untried()))
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


class _ServerState:
    """The state of one server.

    Attributes:
        lock: Held while its session is opened.
        attempts: Number of finished connect attempts.
        reconnects: How often it was connected again after it had died.
        outcome: Result of the last attempt.
        session: The last session that was opened.
    """

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.attempts = 0
        self.reconnects = 0
        self.outcome: SessionOpened | ServerFailure | None = None
        self.session: OwnedSession | None = None


SessionWork: TypeAlias = Callable[[ServerSessions], Awaitable[T]]
"""Something to do with sessions outside turns."""


async def with_sessions(sources: SessionSources, work: SessionWork[T]) -> T:
    """Run `work` with sessions of its own, which are closed at the end, also after a cancellation."""
    sessions = ServerSessions(sources)
    hurried = True
    try:
        result = await work(sessions)
        hurried = False
        return result
    except Exception:
        hurried = False
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await sessions.close(hurried=hurried)


def _failed(error: type[MCPToolCallError], name: str, result: ToolCallResult) -> MCPToolCallError:
    return error(f"{name}: {result.error_message}", tool=name, result=result)


def _request_error(failed: MCPError, server: ServerName, method: str) -> MCPRequestError:
    match failed:
        case ToolTimedOutError(timeout_s=timeout_s):
            text = f"MCP server '{server}' did not answer {method} within {timeout_s:g} s."
            return MCPRequestTimedOut(text, server=server, method=method)
        case ToolRefusedError(code=code):
            text = f"MCP server '{server}' refused {method}: {failed} ({code})"
            return MCPRequestError(text, server=server, method=method, code=code)
        case _:
            return MCPRequestError(str(failed), server=server, method=method)
