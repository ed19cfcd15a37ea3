"""Use the host's own manager object as the tool server of a turn, by calling its coroutines."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self

import anyio
from msgspec.structs import replace

from grue import MCPError
from grue import messages as m
from grue.engine.outside_turns.owned_session import OwnedSession
from grue.errors import MCPServerStartupError
from grue.hosting import Connect, ConnectionStatus, Listing, Note, ServerFailed, ToolTimedOutError
from grue.hosts.zork.chat_messages import given_tool
from grue.hosts.zork.look_alikes import accepts, tool_result
from grue.hosts.zork.manager import MCPManager, TurnUse
from grue.protocol.tools import results as tool_results
from grue.runtime.loops.host_code import ends_the_task
from grue.runtime.processes.limits import ProcessLimits

_SPARE_S = 1.0  # seconds that `disconnect_session` gets in addition to the time that a server gets to exit


class ManagerConnection:
    """One session with a manager object, whose coroutines may raise any exception. Needs asyncio.

    `connect_session` and `disconnect_session` run in the same task, outside any cancel scope: a manager may
    enter a task group in the first and leave it in the second, as the clients of the MCP SDK do. anyio raises
    an error if a task group is left in another task, or in other cancel scopes.

    `disconnect_session` is called once for each `connect_session` that succeeded or was cancelled, and not if
    `connect_session` raised. A cancelled turn does not cancel it. Its time limit is one second more than a
    server gets to exit, or what is left of the turn's time if that is less.
    """

    report_s = 0.0  # seconds that `open` waits beyond its limit; above 0 if the manager applies the limit too

    def __init__(self, manager: Any, server: m.ServerName, note: Note) -> None:
        self._manager = manager
        self._server = server
        self._note = note
        self._names: dict[str, str] = {}
        self._leaving = asyncio.Event()
        self._opened: asyncio.Future[list[dict[str, Any]]] | None = None
        self._owner: asyncio.Task[None] | None = None
        self._close_by = float("inf")
        self._limits = ProcessLimits()

    async def __aenter__(self) -> Self:
        # In a scope that is cancelled already, the deadline is -inf, and the time that is left is unknown.
        deadline = anyio.current_effective_deadline()
        self._close_by = float("inf") if deadline == float("-inf") else deadline
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._owner is None or self._opened is None:
            return
        self._leaving.set()
        if not self._opened.done():
            self._owner.cancel()
        began = anyio.current_time()
        try:
            await self._end(self._owner, began)
        except anyio.get_cancelled_exc_class():
            if self._hurry():
                began = anyio.current_time()  # from now on the server gets its shorter times
            with anyio.CancelScope(shield=True):
                await self._end(self._owner, began)
            raise

    async def _end(self, owner: "asyncio.Task[None]", began: float) -> None:
        usual_s = self._limits.exit_grace_s + self._limits.term_grace_s + _SPARE_S
        limit_s = max(0.0, min(usual_s, self._close_by - began))
        _, unfinished = await asyncio.wait({owner}, timeout=max(0.0, began + limit_s - anyio.current_time()))
        if unfinished:
            owner.cancel()
            self._say("log", f"disconnect_session did not end within {limit_s:.3g} s")

    def _hurry(self) -> bool:
        """Let `disconnect_session` end sooner, because the turn is cancelled; `False`: that is impossible."""
        return False

    @property
    def status(self) -> ConnectionStatus:
        """An empty status: nothing is known about the manager's server process."""
        return ConnectionStatus()

    async def open(self, timeout_s: float) -> Listing:
        """Connect and list the tools; the list is empty if the manager is disabled."""
        if self._is_disabled():
            return Listing(tools=(), protocol_version="")
        loop = asyncio.get_running_loop()
        self._opened = loop.create_future()
        self._owner = loop.create_task(self._own(self._opened), name=f"grue-manager-{self._server}")
        started = time.monotonic()
        either: tuple[asyncio.Future[Any], ...] = (self._opened, self._owner)
        try:
            with anyio.fail_after(timeout_s + self.report_s) as limit:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._opened.done():
                raise MCPError("the manager's own code cancelled it")
            tools = self._read(self._opened.result())
        except TimeoutError as error:
            if not limit.cancelled_caught:  # the manager has raised the `TimeoutError`
                raise self._failure(error, started) from error
            raise self._failed(f"no answer to connect_session within {timeout_s:g} s", started) from error
        except Exception as error:
            if self._is_disabled():
                return Listing(tools=(), protocol_version="")
            raise self._failure(error, started) from error
        return Listing(tools=tools, protocol_version="")

    async def refresh_tools(self, timeout_s: float) -> None:
        """Do nothing: a manager does not report changed tools."""
        del timeout_s

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool; an exception of the manager other than a timeout becomes an error result."""
        name = self._names.get(tool, f"{self._server}.{tool}")
        options = (
            {"timeout_seconds": timeout_s} if accepts(self._manager.call_tool, "timeout_seconds") else {}
        )
        try:
            with anyio.fail_after(timeout_s):
                answer = await self._manager.call_tool(tool_name=name, arguments=arguments, **options)
        except TimeoutError as error:
            raise ToolTimedOutError(tool, timeout_s) from error
        except (Exception, asyncio.CancelledError) as error:  # whatever a manager raises is a failed call
            if ends_the_task(error):
                raise
            return tool_results.call_failed(str(error) or type(error).__name__)
        return tool_result(answer)

    async def _own(self, opened: "asyncio.Future[list[dict[str, Any]]]") -> None:
        try:
            await self._manager.connect_session()
        except Exception as error:  # noqa: BLE001 - passed on to `open`, if it still waits
            if not self._leaving.is_set():
                opened.set_exception(error)
            return
        except asyncio.CancelledError:
            await self._disconnect()
            raise
        try:
            opened.set_result(await self._manager.get_tool_schemas())
            await self._leaving.wait()
        except Exception as error:  # noqa: BLE001 - as above
            if not self._leaving.is_set():
                opened.set_exception(error)
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        try:
            await self._manager.disconnect_session()
        except Exception as error:  # noqa: BLE001 - the session is over in any case
            self._say("log", f"disconnect_session failed: {type(error).__name__}: {error}")

    def _read(self, schemas: Iterable[Mapping[str, Any]]) -> tuple[m.ToolDefinition, ...]:
        if not isinstance(schemas, Iterable):
            raise MCPError(f"get_tool_schemas has returned {type(schemas).__name__}, not a list of tools")
        tools: dict[str, m.ToolDefinition] = {}
        for schema in schemas:
            try:
                given = given_tool(schema, self._server)
            except MCPError as error:
                self._say("bad_tool", str(error))
                continue
            prefix, _, bare = given.tool.partition(".")
            own = prefix == self._server and bool(bare)
            name = bare if own else given.tool
            if name in tools:
                self._say("bad_tool", f"{given.tool}: listed twice, the first one counts")
                continue
            tools[name] = replace(given, tool=bare, full_name="") if own else given
            if not own:
                self._names[name] = name
        return tuple(tools.values())

    def _is_disabled(self) -> bool:
        return getattr(self._manager, "is_disabled", False) is True

    def _failure(self, error: Exception, started: float) -> ServerFailed:
        return self._failed(str(error) or type(error).__name__, started)

    def _failed(self, cause: str, started: float) -> ServerFailed:
        opening = f"Failed to start MCP server '{self._server}': "
        return ServerFailed(
            m.ServerFailure(
                server=self._server,
                phase="initialize",
                command=f"{type(self._manager).__name__}.connect_session()",
                cause=cause.removeprefix(opening),
                elapsed_s=time.monotonic() - started,
            )
        )

    def _say(self, kind: Literal["bad_tool", "log"], text: str) -> None:
        self._note(m.ServerNoted(server=self._server, kind=kind, text=text), sender=self._server)


def connect_manager(manager: Any, server: m.ServerName) -> Connect:
    """Return a tool server for a `Runner`; raises `MCPError` if the manager lacks a method."""
    four = ("connect_session", "disconnect_session", "get_tool_schemas", "call_tool")
    missing = [name for name in four if not callable(getattr(manager, name, None))]
    if missing:
        raise MCPError(f"{type(manager).__name__} is not an MCP manager: it lacks {', '.join(missing)}.")
    return lambda note: ManagerConnection(manager, server, note)


class OverriddenManagerConnection(ManagerConnection):
    """One session with an `MCPManager` of which a program has overridden some methods."""

    report_s = 0.45

    def __init__(self, manager: MCPManager, note: Note) -> None:
        super().__init__(manager, manager.server_name, note)
        self._lent = manager
        self._before = manager.session
        self._limits = manager.tool_server.options.of_process(self._limits)

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await super().__aexit__(*exc_info)
        finally:
            self._lent.lend(None)

    async def open(self, timeout_s: float) -> Listing:
        """Connect and list the tools, or raise `ServerFailed`. A disabled manager has no tools."""
        self._lent.lend(TurnUse(self._note, timeout_s, self._close_by))
        return await super().open(timeout_s)

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool. Raises `ServerFailed` if the result is an error, and the server has died."""
        result = await super().call(tool, arguments, timeout_s)
        session = self._session
        if result.is_error and session is not None and session.died is not None:
            raise ServerFailed(session.died)
        return result

    @property
    def status(self) -> ConnectionStatus:
        """The state of the server's process, as the manager's session reports it."""
        session = self._session
        return ConnectionStatus() if session is None else session.status

    def _hurry(self) -> bool:
        self._limits = self._limits.when_cancelled()
        self._lent.hurry()
        return True

    @property
    def _session(self) -> OwnedSession | None:
        """The session that `MCPManager`'s own methods have opened in this turn, or `None`."""
        session = self._lent.session
        return None if session is self._before else session

    def _failure(self, error: Exception, started: float) -> ServerFailed:
        known = self._lent.failure
        if isinstance(error, MCPServerStartupError) and known is not None:
            return ServerFailed(known)
        return super()._failure(error, started)
