"""The session pool of an episode: sessions that are prewarmed, ended after their turn, or kept open.

A connection must be entered and left by the same task. In the pool, this is a task of the episode, not of a
turn, so that a session can be opened between two turns (`ahead`) or while the turn before waits for its model
(`beside`), or serve several turns and calls outside turns (`kept`).

A turn waits until the processes of closed sessions are gone: before its first tool call, or at its end if it
makes none. A cancelled turn may skip this wait. So a process starts only when those from three or more turns
before are gone. To replace a session that has died, a turn opens a new one. It does not take the one that was
opened for the next turn: that server may have read files that this turn's calls have changed since.
"""

import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.actor import describe_crash
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions import connection as connections
from grue.tool_sessions.connection import Connect, ConnectionStatus, Listing, ToolConnection
from grue.tool_sessions.failures import ServerFailed

# Starting and ending processes blocks Python for some milliseconds: let the host get its turn's result first.
_HOST_FIRST_S = 0.005

Room: TypeAlias = Callable[["PooledConnection"], Awaitable[None]]  # waits until a process may start


class PooledConnection:
    """A connection and its owner task. The owner task runs `run`; other tasks use the other methods."""

    def __init__(
        self, server: m.ServerName, connect: Connect, recorder: Recorder, timeout_s: float, room: Room
    ) -> None:
        self.server = server
        self.turn = 0  # the number of the turn that uses the connection; 0: no turn does
        self.generation = 0  # which turn, as the pool counts them, uses or will use the connection
        self.connection: ToolConnection = connect(self._note)
        self.listing: Listing | None = None  # the latest listing; `None`: the connection has not opened
        self.failed: Exception | None = None  # why it did not open, or what crashed the owner task
        self.opened = anyio.Event()  # set when opening has succeeded, has failed or was given up
        self.wanted = anyio.Event()  # set when somebody waits: ends the delay before opening or closing
        self.gone = anyio.Event()  # set when the connection is closed, and none of its processes is alive
        self.alone = anyio.Lock()  # held during a batch of calls, because a kept session is shared
        self._released = anyio.Event()
        self._opening = anyio.CancelScope()
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._room = room
        self._pid: int | None = None

    @property
    def usable(self) -> bool:
        """`True` if the connection has neither failed nor closed, and its `status` says that it is alive."""
        return self.failed is None and not self.gone.is_set() and self.connection.status.alive

    async def current_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...]:
        """Return the server's tools, listed again if the server has announced a change."""
        assert self.listing is not None, "only an open connection has tools"
        tools = await self.connection.refresh_tools(timeout_s)
        if tools is not None:
            self.listing = replace(self.listing, tools=tools)
        return self.listing.tools

    def release(self) -> None:
        """Let the owner task close the connection, or stop opening it if it is not open yet."""
        self.wanted = anyio.Event()
        self._released.set()
        if not self.opened.is_set():
            self._opening.cancel()

    async def run(self) -> None:
        """Open the connection, wait for `release` or a cancellation, and close the connection."""
        try:
            # anyio requires scopes to nest, and the connection enters task groups when it opens and leaves
            # them when it closes. So the scope covers the connection's whole life.
            with self._opening:
                await self._hold_open()
        except ServerFailed as failed:
            self.failed = failed
        except Exception as crash:  # noqa: BLE001 - the turn that needs it raises it; other turns go on
            self.failed = crash
            # If the trace cannot be written, this note cannot be recorded either.
            with contextlib.suppress(Exception):
                self._record(describe_crash(self.server, crash))
        finally:
            self.opened.set()
            self.gone.set()

    async def _hold_open(self) -> None:
        if not self.turn:
            await self._after_host()
        await self._room(self)
        begun = anyio.current_time()
        try:
            async with self.connection as connection:
                self.listing = await connection.open(self._timeout_s)
                self.opened.set()
                self._pid = connection.status.pid
                if not self.turn:
                    elapsed_s = anyio.current_time() - begun
                    self._record(m.SessionPrewarmed(server=self.server, pid=self._pid, elapsed_s=elapsed_s))
                try:
                    await self._released.wait()
                    await self._after_host()
                finally:  # the end of the episode cancels the waits
                    begun = anyio.current_time()
        finally:
            if self.listing is not None:
                self._record_end(anyio.current_time() - begun)

    async def _after_host(self) -> None:
        with anyio.move_on_after(_HOST_FIRST_S):
            await self.wanted.wait()

    def _record_end(self, elapsed_s: float) -> None:
        left = self.connection.status
        assert left.ending != "handed_over", "the pool holds a server's own connections, not leased ones"
        self._record(
            m.ServerEnded(
                server=self.server,
                pid=self._pid,
                ending=left.ending,
                exit_status=left.exit_status,
                stderr_tail=left.stderr_tail,
                elapsed_s=elapsed_s,
            )
        )

    def _record(self, body: object) -> None:
        self._recorder.record(body, sender=self.server)

    def _note(self, body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        return self._recorder.record(body, sender=sender, cause=cause, turn=self.turn)


_STILL_THERE_S = 2.0  # how long an HTTP server may take to say that it still knows an idle session
_GENERATIONS = 3
Sessions: TypeAlias = Literal["fresh", "ahead", "beside", "kept"]
"""When a turn's session is opened. `fresh`: in the turn. `ahead`: after the turn before. `beside`: while the
turn before waits for its model. `kept`: in the first turn or call that needs it; later turns use it too."""


class SessionPool(Struct, eq=False):
    """The sessions of turns that run one at a time. Use the pool only in the episode's event loop."""

    group: TaskGroup  # cancelling it closes all connections
    recorder: Recorder
    sessions: Sessions
    expects_turn: Callable[["SessionPool"], bool] = lambda _: True
    opened: set[m.ServerName] = set()  # servers with which a turn has had an open session
    _generation: int = 0
    _waiting: dict[m.ServerName, PooledConnection] = {}
    _leased: dict[m.ServerName, PooledConnection] = {}
    _leaving: list[PooledConnection] = []

    def begin_turn(self) -> None:
        """Count a turn that starts now. The sessions that have been prewarmed so far are for this turn."""
        self._generation += 1

    @property
    def has_spares(self) -> bool:
        """`True` if the pool has a connection for the next turn, open or still opening."""
        return bool(self._waiting)

    def lacks(self, server: m.ServerName) -> bool:
        """Return whether another turn is expected for which the pool has no connection to this server."""
        return server not in self._waiting and self.expects_turn(self)

    def prepare(self, server: m.ServerName, connect: Connect, timeout_s: float) -> None:
        """Start to open a connection that no turn uses yet, unless the pool has one; return at once."""
        if server not in self._waiting:
            self._waiting[server] = self.begin(server, connect, timeout_s)

    def begin(
        self, server: m.ServerName, connect: Connect, timeout_s: float, *, turn: int = 0
    ) -> PooledConnection:
        """Start to open a connection. `turn`: the number of the turn that waits for it; 0: no turn does."""
        owned = PooledConnection(server, connect, self.recorder, timeout_s, self._wait_for_room)
        owned.turn = turn
        is_spare = not turn and self.sessions != "kept"
        owned.generation = self._generation + is_spare
        self.group.start_soon(owned.run, name=f"owner of {server}")
        return owned

    def lend(
        self, server: m.ServerName, connect: Connect, turn: int, deadline: float = float("inf")
    ) -> "LeasedConnection":
        """Return a connection for one turn: the prewarmed or kept one, or else a new one."""
        waiting = self._waiting.get(server)
        if waiting is None or waiting.generation > self._generation:
            waiting = None
        else:
            del self._waiting[server]
            waiting.generation = self._generation
        return LeasedConnection(self, server, connect, waiting, turn=turn, deadline=deadline)

    def give_back(self, owned: PooledConnection, *, usable: bool) -> None:
        """End a turn's lease. With `kept`, keep a usable connection if the pool has none; else close it."""
        owned.turn = 0
        if self._leased.get(owned.server) is owned:
            del self._leased[owned.server]
        keep = self.sessions == "kept" and usable and owned.usable
        if keep and owned.server not in self._waiting:
            self._waiting[owned.server] = owned
        else:
            self.leave(owned)

    async def open_kept(self, server: m.ServerName, connect: Connect, timeout_s: float) -> PooledConnection:
        """Return a server's kept session, open, for a call outside turns; raises what its opening raised."""
        # A turn may use the session too, so hold its lock `alone` while you use it.
        while True:
            owned = self._current(server)
            if owned is None:
                self.prepare(server, connect, timeout_s)
                owned = self._waiting[server]
            # If the session opens during this call, its server need not be asked whether it is still there.
            was_open = owned.opened.is_set()
            owned.wanted.set()
            await owned.opened.wait()
            if owned.failed is not None:
                self._drop(owned)
                raise owned.failed
            if owned.listing is not None and (
                not was_open or owned.turn or await connections.still_there(owned.connection, _STILL_THERE_S)
            ):
                return owned
            self._drop(owned)

    def _current(self, server: m.ServerName) -> PooledConnection | None:
        """Return the session of a server, leased or not, if it is opening or usable; drop it otherwise."""
        for owned in (self._leased.get(server), self._waiting.get(server)):
            if owned is not None and (not owned.opened.is_set() or (owned.listing and owned.usable)):
                return owned
            if owned is not None:
                self._drop(owned)
        return None

    def _drop(self, owned: PooledConnection) -> None:
        """Start to close an unusable connection. If a turn has leased it, do nothing: the turn closes it."""
        if self._waiting.get(owned.server) is owned:
            del self._waiting[owned.server]
            self.leave(owned)

    def lease_to_turn(self, owned: PooledConnection) -> None:
        """Remember that the running turn uses the connection `owned`. Calls outside turns then use it too."""
        self._leased[owned.server] = owned

    async def wait_closed(self) -> None:
        """Wait until every connection passed to `leave` is closed, and none of its processes is alive."""
        while self._leaving:
            for owned in self._leaving:
                owned.wanted.set()
            await self._leaving[-1].gone.wait()
            self._forget_gone()

    async def _wait_for_room(self, starting: PooledConnection) -> None:
        """Wait until all processes from three or more turns before the turn of `starting` have ended."""
        while old := [each for each in self._leaving if self._is_too_old(each, starting)]:
            await old[0].gone.wait()

    def _is_too_old(self, leaving: PooledConnection, starting: PooledConnection) -> bool:
        newest = max(starting.generation, self._generation) - _GENERATIONS
        return leaving.generation <= newest and not leaving.gone.is_set()

    def lose(self, owned: PooledConnection, cause: str) -> None:
        """Record that a prewarmed or kept connection cannot be used, and start to close it."""
        self.recorder.record(m.PrewarmLost(server=owned.server, cause=cause), sender=owned.server)
        self.leave(owned)

    def leave(self, owned: PooledConnection) -> None:
        """Start to close a connection and return at once; `wait_closed` waits until it is closed."""
        owned.release()
        self._leaving.append(owned)
        self._forget_gone()

    def _forget_gone(self) -> None:
        self._leaving = [owned for owned in self._leaving if not owned.gone.is_set()]


class _SessionUser(Struct, eq=False):
    pool: SessionPool
    server: m.ServerName
    connect: Connect
    owned: PooledConnection | None = None
    seen: tuple[m.ToolDefinition, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def refusal(self, tool: str, arguments: m.JsonObject) -> str | None:
        return await connections.refusal(self._open.connection, tool, arguments)

    def exclusive(self) -> contextlib.AbstractAsyncContextManager[object]:
        return self._open.alone

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Return the tools if they have changed since this user saw them last; otherwise `None`."""
        tools = await self._open.current_tools(timeout_s)
        changed, self.seen = tools is not self.seen, tools
        return tools if changed else None

    @property
    def status(self) -> ConnectionStatus:
        """The session's state. `ending` is always `handed_over`, because only the pool ends the server."""
        if self.owned is None:
            return ConnectionStatus(alive=False, ending="handed_over")
        return replace(self.owned.connection.status, ending="handed_over")

    @property
    def _open(self) -> PooledConnection:
        assert self.owned is not None, "a connection is used between open and exit"
        return self.owned


class LeasedConnection(_SessionUser, eq=False, kw_only=True):
    """A `ToolConnection` that a turn leases from the pool. At its exit the connection is given back."""

    # Without an `owned` connection, which is prewarmed or kept, `connect` makes a new one.
    turn: int
    deadline: float  # of opening, listing and calls, on the event loop's clock
    broken: bool = False

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        owned, self.owned = self.owned, None
        if owned is None:
            return
        try:
            # A turn that made no tool call has not yet waited for the processes of earlier turns.
            await self.pool.wait_closed()
        finally:
            self.pool.give_back(owned, usable=exc_type is None and not self.broken)

    async def open(self, timeout_s: float) -> Listing:
        """Return the listing of a prewarmed or kept connection; if none is usable, open a new connection."""
        # `timeout_s` limits the opening of a new connection. A prewarmed one opens within its own limit.
        listing = None if self.owned is None else await self._prepared(self.owned, timeout_s)
        if listing is not None:
            return listing
        limit_s = self._within(timeout_s)
        self.owned = owned = self.pool.begin(self.server, self.connect, limit_s, turn=self.turn)
        self.pool.lease_to_turn(owned)
        await owned.opened.wait()
        if owned.failed is not None:
            self.owned = None
            raise owned.failed
        assert owned.listing is not None, "a connection that opened without failing has listed its tools"
        self.pool.opened.add(owned.server)
        self.seen = owned.listing.tools
        return owned.listing

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Wait until the connections that are being closed are gone, then call the tool."""
        await self.pool.wait_closed()
        return await self._answer(self._open.connection.call(tool, arguments, self._within(timeout_s)))

    async def finish_task(self, tool: str, task: m.ToolTask, timeout_s: float) -> m.ToolCallResult:
        """Wait as `call` does, then wait for the result of the MCP task."""
        await self.pool.wait_closed()
        limit_s = self._within(timeout_s)
        return await self._answer(connections.finish_task(self._open.connection, tool, task, limit_s))

    async def _answer(self, call: Awaitable[m.ToolCallResult]) -> m.ToolCallResult:
        try:
            return await call
        except ServerFailed:
            self.broken = True
            raise

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Wait as `call` does, then return the tools if they have changed."""
        # So in the trace, the end of the old processes comes before a batch's first tool call.
        await self.pool.wait_closed()
        return await super().refresh_tools(self._within(timeout_s))

    def _within(self, timeout_s: float) -> float:
        return max(0.0, min(timeout_s, self.deadline - anyio.current_time()))

    async def _prepared(self, owned: PooledConnection, timeout_s: float) -> Listing | None:
        """Return the listing of a prewarmed or kept connection. `None`: it is unusable and being closed."""
        owned.wanted.set()
        with anyio.CancelScope(deadline=self.deadline):
            await owned.opened.wait()
        if (
            owned.listing is None
            or not owned.usable
            or not await connections.still_there(owned.connection, _STILL_THERE_S)
        ):
            self.owned = None
            self.pool.lose(owned, _why_lost(owned))
            return None
        owned.turn = self.turn
        self.pool.opened.add(owned.server)
        self.pool.lease_to_turn(owned)
        with anyio.CancelScope(deadline=self.deadline):
            async with owned.alone:
                await owned.current_tools(self._within(timeout_s))
        self.seen = owned.listing.tools
        return owned.listing


def _why_lost(owned: PooledConnection) -> str:
    if isinstance(owned.failed, ServerFailed):
        return owned.failed.failure.cause
    if owned.failed is not None:
        return "its session crashed"
    if not owned.opened.is_set():
        return "it was not ready in time"
    return "its process has ended" if owned.connection.status.pid else "its server no longer knows of it"


class SharedSession(_SessionUser, eq=False):
    """A `ToolConnection` to a kept session, for calls outside turns. At its exit the session stays open."""

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def open(self, timeout_s: float) -> Listing:
        """Return the listing of the server's kept session, which is opened if it is not open."""
        self.owned = owned = await self.pool.open_kept(self.server, self.connect, timeout_s)
        assert owned.listing is not None, "a connection that opened without failing has listed its tools"
        self.seen = owned.listing.tools
        return owned.listing

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool in the kept session."""
        return await self._open.connection.call(tool, arguments, timeout_s)

    async def call_with_blocks(
        self, tool: str, arguments: m.JsonObject, timeout_s: float
    ) -> tuple[m.ToolCallResult, tuple[m.JsonObject, ...]]:
        """Call a tool in the kept session. Return its content blocks too, if the server sends any."""
        return await connections.call_with_blocks(self._open.connection, tool, arguments, timeout_s)

    async def request(self, method: str, params: m.JsonObject, timeout_s: float) -> m.JsonObject:
        """Send any request in the kept session and return the raw result."""
        return await connections.request(self._open.connection, method, params, timeout_s)
