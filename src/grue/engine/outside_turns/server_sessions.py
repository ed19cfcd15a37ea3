"""`ServerSessions`: sessions with tool servers outside turns, for the host's tool calls and requests."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

import anyio

from grue import errors
from grue import messages as m
from grue.engine.outside_turns.owned_session import NotAsDecided, NotSent, OwnedSession
from grue.engine.tool_servers import startup_limits
from grue.engine.turn import TurnSettings, error_for, refuse_inside_turn
from grue.engine.turn_actors import TurnResources
from grue.engine.wiring import connect_fresh
from grue.policies import ToolPolicy, TurnLimits
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.calls import tool_of
from grue.protocol.tools.names import split_known, split_name
from grue.protocol.tools.policy import judge
from grue.protocol.turn.connection import Untried
from grue.runtime.loops.host_code import ends_the_task
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.connection import Connect
from grue.tool_sessions.failures import ToolRefusedError, ToolTimedOutError
from grue.tool_sessions.server_specs import McpServer
from grue.tool_sessions.session_pool import SessionPool, SharedSession

T = TypeVar("T")

_OWN_METHODS = {  # methods that `request` refuses, each with advice for the error text
    "tools/call": "Use the method `call`.",
    "initialize": "The session is initialized when it is opened.",
}
_SUBSCRIBING = frozenset(("resources/subscribe", "subscriptions/listen"))
"""Requests whose effect ends with the session."""

_PAGED = {  # requests whose answer has pages, and the member of a page that holds its items
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "skills/list": "skills",
    "tools/list": "tools",
}
_MAX_PAGES = 100
_MAX_JUDGEMENTS = 3  # how often the policy judges one call at most: again if the tool has changed


SessionWork: TypeAlias = Callable[["ServerSessions"], Awaitable[T]]


@dataclass(eq=False, repr=False, kw_only=True)
class ServerSessions:
    """At most one session per server, opened when it is first needed. Use it in one asyncio loop only.

    If a server cannot be started, `connect` returns the failure; other methods that need the server raise
    `MCPServerStartupError`.
    """

    servers: Mapping[m.ServerName, Connect]
    recorder: Recorder
    limits: TurnLimits
    max_reconnects: int | None = 0  # how often each server that has died is connected again; `None`: no limit
    tool_policy: ToolPolicy = field(default_factory=ToolPolicy)
    lasting: bool = False  # the sessions stay open; otherwise, requests for a subscription are refused

    def __post_init__(self) -> None:
        self._states = {name: _ServerState() for name in self.servers}

    async def run(self, work: SessionWork[T]) -> T:
        """Run `work`, and close the sessions at its end, even after a cancellation."""
        hurried = False
        try:
            return await work(self)
        except BaseException as error:
            hurried = not isinstance(error, Exception)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self.close(hurried=hurried)

    @property
    def closed(self) -> Mapping[str, m.SessionClosed]:
        """How each server's last session ended, if that session is closed."""
        sessions = {name: state.session for name, state in self._states.items()}
        return {name: each.closed for name, each in sessions.items() if each is not None and each.closed}

    async def connect(
        self, names: Sequence[m.ServerName]
    ) -> dict[m.ServerName, m.SessionOpened | m.ServerFailure]:
        """Connect to servers in parallel and return the result for each. Dead sessions are replaced."""
        outcomes: dict[m.ServerName, m.SessionOpened | m.ServerFailure] = {}

        async def connect(name: m.ServerName) -> None:
            outcomes[name] = await self._connected(name, anew=True)

        await _in_parallel(connect, names)
        return {name: outcomes[name] for name in names}

    async def tools(self) -> tuple[m.ToolDefinition, ...]:
        """Return the tools of all started servers. First connect to the servers that were not tried yet.

        Without a limit for reconnects, connect also to servers that did not start, or have died.
        """
        always = self.max_reconnects is None
        wanted = [
            name
            for name, state in self._states.items()
            if not state.attempts or (always and not (state.session and state.session.usable))
        ]
        for outcome in (await self.connect(wanted)).values():
            if isinstance(outcome, m.ServerFailure):
                raise error_for(m.TurnFailed(turn=0, failure=outcome))
        sessions = [state.session for state in self._states.values() if state.session is not None]
        return tuple(tool for session in sessions for tool in session.tools)

    async def tool(self, name: str) -> m.ToolDefinition | None:
        """Return the definition of a tool, or `None` if the server does not list it."""
        server, _ = self._split(name)
        session = await self._session(server)
        return next((tool for tool in session.tools if tool.name == name), None)

    async def call(
        self,
        name: str,
        arguments: m.JsonObject,
        timeout_s: float,
        *,
        turn: int = 0,
        definition: m.ToolDefinition | None = None,
    ) -> m.ToolCallResult:
        """Call the tool `SERVER.TOOL` and return its result. The time limit starts when the call is sent.

        The policy judges the call by the tool's present definition. With a `definition`, the call is made
        only if the tool still has it. If the call failed, raises `MCPToolCallError`, often a subclass.
        """
        server, tool = self._split(name)
        waited = False
        for _ in range(_MAX_JUDGEMENTS):
            session = await self._session(server, again=True)
            judged = self._judged(session, server, tool, name)
            try:
                result = await session.call(
                    tool, arguments, timeout_s, turn=turn, definition=definition or judged
                )
                break
            except NotAsDecided as error:
                if definition is not None:
                    raise _failed(errors.ToolChanged, name, tool_results.call_failed(str(error))) from error
            except TimeoutError as error:
                # The error's text names the limit that was exceeded, which may be the server's own.
                raise _failed(errors.ToolCallTimedOut, name, tool_results.failure(str(error))) from error
            except errors.TraceError:
                raise
            except errors.MCPError as error:
                # While the call waited for another one, its session has ended: use the next session, once.
                if isinstance(error, NotSent) and not waited:
                    waited = True
                    continue
                raise _failed(errors.ToolServerDied, name, tool_results.call_failed(str(error))) from error
        else:
            raise _failed(errors.ToolChanged, name, tool_results.call_failed(tool_results.NOT_AS_DECIDED))
        if result.is_error:
            raise _failed(errors.MCPToolCallError, name, result)
        return result

    def _judged(self, session: OwnedSession, server: m.ServerName, tool: str, name: str) -> m.ToolDefinition:
        unlisted = (server,) if session.serves_unlisted else ()
        definition = tool_of(name, {each.name: each for each in session.tools}, unlisted)
        if definition is None:
            known = ", ".join(each.name for each in session.tools) or "none"
            text = f"Unknown MCP tool: {server}.{tool}. Available tools: {known}"
            raise _failed(errors.ToolNotFound, name, tool_results.failure(text))
        (terms,), _ = judge(self.tool_policy, [definition], {})
        if terms.verdict == "deny":
            why = f"The call was denied: {terms.reason}. A rule of the tool policy says so"
            raise _failed(errors.ToolCallDenied, name, tool_results.failure(why))
        return definition

    async def request(self, server: str, method: str, params: m.JsonObject, timeout_s: float) -> m.JsonObject:
        """Send a request other than a tool call and return the server's raw result.

        Raises `MCPRequestError` if the server refuses, is too slow, has died, or is no MCP server.
        """
        name = self._known(server)
        self._refuse(method)
        session = await self._session(name, again=True)
        started, error = anyio.current_time(), ""
        try:
            try:
                return await session.request(method, params, timeout_s)
            except NotSent:  # as in `call`
                session = await self._session(name, again=True)
                return await session.request(method, params, timeout_s)
        except (errors.TraceError, errors.MCPServerStartupError):
            raise
        except errors.MCPError as failed:
            raised = _request_error(failed, name, method)
            error = str(raised)
            raise raised from failed
        finally:
            duration_s = anyio.current_time() - started
            note = m.ServerRequested(
                server=name, method=method, params=params, error=error, duration_s=duration_s
            )
            self.recorder.record(note, sender="host")

    async def request_all(
        self, server: str, method: str, params: m.JsonObject, timeout_s: float
    ) -> tuple[m.JsonObject, ...]:
        """Send a listing request, such as `resources/list`, page by page; return the items of the pages.

        At most 100 pages are read, and none after the server has repeated a cursor. If a page with a repeated
        cursor equals the page before it, its items are left out.
        """
        member = _PAGED.get(method)
        if member is None:
            raise ValueError(f"{method!r} has no pages. Requests with pages: {', '.join(_PAGED)}.")
        items: list[m.JsonObject] = []
        seen: set[str] = set()
        before: object = None
        for _ in range(_MAX_PAGES):
            page = await self.request(server, method, params, timeout_s)
            listed, cursor = page.get(member), page.get("nextCursor")
            if isinstance(cursor, str) and cursor in seen and listed == before:
                break
            before = listed
            items += [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
            if not isinstance(cursor, str) or cursor in seen:
                break
            seen.add(cursor)
            params = {**params, "cursor": cursor}
        return tuple(items)

    async def close(self, *, hurried: bool = False) -> None:
        """Close all sessions in parallel. When all are closed, raise the first error of a session, if any."""
        sessions = [state.session for state in self._states.values() if state.session is not None]
        await _in_parallel(partial(OwnedSession.close, hurried=hurried), sessions)

    def _known(self, server: str) -> m.ServerName:
        if server not in self._states:
            known = ", ".join(self._states) or "none"
            raise errors.MCPError(f"There is no MCP server {server!r}. Configured: {known}.")
        return m.ServerName(server)

    def _split(self, name: str) -> tuple[m.ServerName, str]:
        known = split_known(name, self._states)
        if known is not None:
            return m.ServerName(known[0]), known[1]
        try:
            server, tool = split_name(name)
        except ValueError as error:
            raise errors.MCPError(f"{name!r} names no tool: a tool's full name is SERVER.TOOL.") from error
        return self._known(server), tool

    def _refuse(self, method: str) -> None:
        if method in _OWN_METHODS:
            raise errors.MCPError(f"{method} cannot be sent as a request. {_OWN_METHODS[method]}")
        if method in _SUBSCRIBING and not self.lasting:
            raise errors.MCPError(
                f"{method} needs a session that stays open: use a ToolClient, or a runner with"
                ' keep="sessions".'
            )

    async def _session(self, server: m.ServerName, *, again: bool = False) -> OwnedSession:
        """Return a server's session. If there is none yet, open one.

        With `again`, also replace a session whose server has died, at most `max_reconnects` times. If such a
        reconnect fails, only `connect` tries again, unless `max_reconnects` is `None`.
        """
        state, most = self._states[server], self.max_reconnects
        outcome = state.outcome if state.reconnects else None
        if not isinstance(outcome, m.ServerFailure) or most is None:
            died = again and state.session is not None and not state.session.usable
            anew = died and (most is None or state.reconnects < most)
            outcome = await self._connected(server, anew=anew, counted=anew)
        session = state.session
        if isinstance(outcome, m.ServerFailure) or session is None:
            assert isinstance(outcome, m.ServerFailure), "an opened session is kept"
            raise error_for(m.TurnFailed(turn=0, failure=outcome))
        return session

    async def _connected(
        self, name: m.ServerName, *, anew: bool = False, counted: bool = False
    ) -> m.SessionOpened | m.ServerFailure:
        """Connect unless the last connect succeeded; with `anew`, also if the server has died since.

        `counted`: count a reconnect. Callers that wait for the same reconnect must not each count one.
        """
        state = self._states[name]
        seen = state.attempts
        async with state.lock:
            if state.attempts > seen and state.outcome is not None:
                # Another caller has tried to connect while this call waited for the lock.
                return state.outcome
            if state.session is not None and isinstance(state.outcome, m.SessionOpened):
                if state.session.usable or not anew:
                    return state.outcome
                await state.session.close()
            state.reconnects += counted
            command = m.OpenSession(server=name, turn=0, timeout_s=self.limits.startup_timeout_s(name))
            session = OwnedSession(command, self.servers[name], self.recorder, Untried())
            match await session.opened():
                case m.SessionOpened() as opened:
                    state.session, state.outcome = session, opened
                case m.StartupFailed(failure=failure):
                    state.outcome = failure
                case _:
                    session.raise_fault()
                    raise errors.MCPError(
                        f"The session with MCP server '{name}' ended: {session.fault or 'it was closed'}"
                    ) from session.fault
            state.attempts += 1
            return state.outcome


@dataclass
class _ServerState:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    attempts: int = 0
    reconnects: int = 0
    outcome: m.SessionOpened | m.ServerFailure | None = None
    session: OwnedSession | None = None


async def _in_parallel(work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Do `work` for each of the items. When all is done, raise the first error, if any."""
    errors: list[BaseException] = []

    async def one(item: T) -> None:
        try:
            await work(item)
        except BaseException as error:  # raised below: the task group would wrap it in an exception group
            if ends_the_task(error):
                raise
            errors.append(error)

    async with anyio.create_task_group() as group:
        for item in items:
            group.start_soon(one, item)
    if errors:
        raise errors[0]


def _failed(
    error: type[errors.MCPToolCallError], name: str, result: m.ToolCallResult
) -> errors.MCPToolCallError:
    return error(f"{name}: {result.error_message}", tool=name, result=result)


def _request_error(failed: errors.MCPError, server: m.ServerName, method: str) -> errors.MCPRequestError:
    match failed:
        case ToolTimedOutError(timeout_s=timeout_s):
            text = f"MCP server '{server}' did not answer {method} within {timeout_s:g} s."
            return errors.MCPRequestTimedOut(text, server=server, method=method)
        case ToolRefusedError(code=code):
            text = f"MCP server '{server}' refused {method}: {failed} ({code})"
            return errors.MCPRequestError(text, server=server, method=method, code=code)
        case _:
            return errors.MCPRequestError(str(failed), server=server, method=method)


def outside_turns(settings: TurnSettings, work: SessionWork[T]) -> Callable[[TurnResources], Awaitable[T]]:
    """Return a function that does `work` with sessions of a runner, outside its turns.

    With `keep="sessions"`, `work` uses the kept sessions of MCP servers; during a turn, a call waits until
    the turn's current batch of tool calls is done. In other cases new sessions are opened. A prewarmed
    session is never used: it belongs to the next turn, whose calls must be the first that reach its server.
    """
    refuse_inside_turn(settings.wiring)

    async def run(resources: TurnResources) -> T:
        pool, servers = resources.pool, settings.wiring.servers
        keeping = pool if pool is not None and pool.sessions == "kept" else None
        sessions = ServerSessions(
            servers={name: _connect(settings, name, resources, keeping) for name in servers},
            recorder=settings.wiring.recorder,
            limits=startup_limits(settings.limits, servers),
            tool_policy=settings.tool_policy,
            lasting=keeping is not None,
        )
        return await sessions.run(work)

    return run


def _connect(
    settings: TurnSettings, name: m.ServerName, resources: TurnResources, keeping: SessionPool | None
) -> Connect:
    sample, drift = None, settings.policy.on_tool_drift
    if keeping is None or not isinstance(settings.wiring.servers[name], McpServer):
        return connect_fresh(settings.wiring, name, resources.registry, drift)
    if settings.limits.max_samplings > 0:
        # Later turns use this session too, and its server may send sampling requests during them.
        sample = resources.sampling.on_behalf_of(name)
    connect = connect_fresh(settings.wiring, name, resources.registry, drift, sample)
    return lambda _: SharedSession(keeping, name, connect)
