"""Sessions that outlive the turns that use them: prepared ahead, ended behind, or kept for the episode.

A connection is entered and left by one task, its owner. Here the owner is a task of the episode, so that

- a connection can be opened while the host plays its move, used by the next turn, and by that one only
  (`ahead`): what a turn sees is a fresh process, without the wait for it;
- it can go on dying after its turn: the turn ends with its answer, and the next turn's first tool call waits
  until every older process is gone, or its end, if it calls none;
- or it can serve turn after turn (`kept`), for servers with a memory.

To the session's actor a lent connection is one like any other (`ToolConnection`). What the owners do by
themselves is noted in the trace, outside turns: `SessionPrewarmed`, `PrewarmLost`, `ServerEnded`.
"""

import contextlib
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from grue.messages import (
    JsonObject,
    PrewarmLost,
    ServerEnded,
    ServerName,
    SessionPrewarmed,
    ToolCallResult,
    ToolDefinition,
)
from grue.runtime.supervisor import describe_crash
from grue.runtime.trace import Envelope, Recorder
from grue.tool_sessions.connection import Checkable, Connect, Ending, Listing, ServerExit, ToolConnection
from grue.tool_sessions.failures import ServerFailed

_HOST_FIRST_S = 0.005
"""Before a spare is spawned: that takes the interpreter for a millisecond, and the host is being told."""

_STILL_THERE_S = 2.0
"""For the answer of a server by URL, whether it still knows of a session that has waited."""

Sessions: TypeAlias = Literal["fresh", "ahead", "kept"]
"""Whether a turn's session is opened in it, opened before it, or the one of the turns before."""


class PooledConnection:
    """A connection with a task of its own. `run` is the task; everything else is for those who use it.

    Attributes:
        connection: Open once `opened` is set, unless `failed` says why it is not.
        listing: What the server listed last.
        failed: Why it could not be opened, or, of another kind than `ServerFailed`, what crashed its owner.
        wanted: To be set by whoever waits for it; without, it lets the host have its decision first.
        gone: Set when it is left and no process of it is alive.
        turn: Number of the turn that uses it; 0: none.
    """

    def __init__(self, server: ServerName, connect: Connect, recorder: Recorder, timeout_s: float) -> None:
        self.server = server
        self.turn = 0
        self.connection: ToolConnection = connect(self._note)
        self.listing: Listing | None = None
        self.failed: Exception | None = None
        self.opened = anyio.Event()
        self.wanted = anyio.Event()
        self.gone = anyio.Event()
        self._released = anyio.Event()
        self._opening = anyio.CancelScope()
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._pid: int | None = None

    @property
    def usable(self) -> bool:
        """It is open, or may still become so, and its process has not ended by itself."""
        return self.failed is None and not self.gone.is_set() and self.connection.alive

    def release(self) -> None:
        """Have it left; what is not open yet need not become so first."""
        self._released.set()
        if not self.opened.is_set():
            self._opening.cancel()

    async def run(self) -> None:
        """Open it, wait for its release, leave it. Cancelled, it is left all the same, bounded."""
        try:
            # Around all of it: what the connection begins in this scope ends in it.
            with self._opening:
                await self._live()
        except ServerFailed as failed:
            self.failed = failed
        except Exception as crash:  # noqa: BLE001 - it ends the turn that needs it, and no other one
            self.failed = crash
            # A trace that cannot be written may be what it crashed of.
            with contextlib.suppress(Exception):
                self._say(describe_crash(self.server, crash))
        finally:
            self.opened.set()
            self.gone.set()

    async def _live(self) -> None:
        if not self.turn:
            with anyio.move_on_after(_HOST_FIRST_S):
                await self.wanted.wait()
        begun = anyio.current_time()
        try:
            async with self.connection as connection:
                self.listing = await connection.open(self._timeout_s)
                self.opened.set()
                self._pid = connection.pid
                if not self.turn:
                    elapsed_s = anyio.current_time() - begun
                    self._say(SessionPrewarmed(server=self.server, pid=self._pid, elapsed_s=elapsed_s))
                await self._released.wait()
                begun = anyio.current_time()
        finally:
            if self.listing is not None:
                self._say_ended(anyio.current_time() - begun)

    def _say_ended(self, elapsed_s: float) -> None:
        left = self.connection
        self._say(
            ServerEnded(
                server=self.server,
                pid=self._pid,
                ending=_ending(left),
                exit_status=left.exit.status if left.exit else None,
                stderr_tail=left.stderr_tail,
                elapsed_s=elapsed_s,
            )
        )

    def _say(self, body: object) -> None:
        self._recorder.record(body, sender=self.server)

    def _note(self, body: Any, *, sender: str, cause: int | None = None) -> Envelope[Any]:
        return self._recorder.record(body, sender=sender, cause=cause, turn=self.turn)


def _ending(left: ToolConnection) -> Literal["polite", "terminated", "killed", "died", "none"]:
    ending = left.ending
    assert ending != "handed_over", "a connection of the pool's is made by a server, not lent"
    return ending or "none"


class SessionPool:
    """The sessions of an episode that no turn owns. Make it, and use it, in the episode's loop.

    Args:
        group: Where the owners run; cancelling it ends all of them.
        recorder: Where they note what they do.
        sessions: `ahead` or `kept`.
    """

    def __init__(self, group: TaskGroup, recorder: Recorder, sessions: Sessions) -> None:
        self._group = group
        self._recorder = recorder
        self.sessions = sessions
        self._waiting: dict[ServerName, PooledConnection] = {}
        self._leaving: list[PooledConnection] = []

    def prepare(self, server: ServerName, connect: Connect, timeout_s: float) -> None:
        """Have a connection opened for whichever turn comes next; return at once.

        Args:
            server: Its name.
            connect: Makes it.
            timeout_s: For opening it.
        """
        if server not in self._waiting:
            self._waiting[server] = self.begin(server, connect, timeout_s)

    def begin(
        self, server: ServerName, connect: Connect, timeout_s: float, *, turn: int = 0
    ) -> PooledConnection:
        """Have a connection opened, for the turn that asks for it now; 0: for none yet."""
        owned = PooledConnection(server, connect, self._recorder, timeout_s)
        owned.turn = turn
        self._group.start_soon(owned.run, name=f"owner of {server}")
        return owned

    def lend(
        self, server: ServerName, connect: Connect, turn: int, deadline: float = float("inf")
    ) -> "LeasedConnection":
        """Return a connection for one turn: the one that waits, or a new one.

        Args:
            server: Its name.
            connect: Makes a new one.
            turn: Number of the turn.
            deadline: When everything but closing has to end, on the event loop's clock.
        """
        return LeasedConnection(
            self, self._waiting.pop(server, None), LeaseRequest(server, connect, turn, deadline)
        )

    def give_back(self, owned: PooledConnection, *, usable: bool) -> None:
        """Take a connection back from its turn: to keep it, or to have it left behind."""
        owned.turn = 0
        if self.sessions == "kept" and usable and owned.usable:
            self._waiting[owned.server] = owned
        else:
            self.leave(owned)

    async def wait_closed(self) -> None:
        """Wait until every connection that was to be left is, and no process of it is alive."""
        while self._leaving:
            await self._leaving[-1].gone.wait()
            self._forget_gone()

    def lose(self, owned: PooledConnection, cause: str) -> None:
        """Say that a connection cannot be used, and have it left."""
        self._recorder.record(PrewarmLost(server=owned.server, cause=cause), sender=owned.server)
        self.leave(owned)

    def leave(self, owned: PooledConnection) -> None:
        """Have a connection left; its end is waited for by `wait_closed`."""
        owned.release()
        self._leaving.append(owned)
        self._forget_gone()

    def _forget_gone(self) -> None:
        self._leaving = [owned for owned in self._leaving if not owned.gone.is_set()]


class LeaseRequest(Struct, frozen=True):
    """What it takes to make a connection."""

    server: ServerName
    connect: Connect
    turn: int
    deadline: float

    def within(self, timeout_s: float) -> float:
        """Return the limit, or what is left until the deadline."""
        return max(0.0, min(timeout_s, self.deadline - anyio.current_time()))


class LeasedConnection:
    """A connection of the pool's in the hands of one turn."""

    def __init__(self, pool: SessionPool, spare: PooledConnection | None, making: LeaseRequest) -> None:
        self._pool = pool
        self._owned = spare
        self._making = making
        self._broken = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        owned, self._owned = self._owned, None
        if owned is None:
            return
        try:
            # A turn without a call has not waited for them yet: so never more than one of each is on its way.
            await self._pool.wait_closed()
        finally:
            self._pool.give_back(owned, usable=exc_type is None and not self._broken)

    async def open(self, timeout_s: float) -> Listing:
        """Wait until it is open; where one that was prepared is lost, open another one, as any turn does.

        Each of the two has the whole limit, but no time beyond the turn's.
        """
        listing = None if self._owned is None else await self._prepared(self._owned, timeout_s)
        if listing is not None:
            return listing
        making = self._making
        limit_s = making.within(timeout_s)
        self._owned = owned = self._pool.begin(making.server, making.connect, limit_s, turn=making.turn)
        await owned.opened.wait()
        if owned.failed is not None:
            self._owned = None
            raise owned.failed
        assert owned.listing is not None, "what is open and did not fail has listed its tools"
        return owned.listing

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        """Call a tool, once no process of an earlier turn is alive."""
        await self._pool.wait_closed()
        try:
            limit_s = self._making.within(timeout_s)
            return await self._open.connection.call(tool, arguments, limit_s)
        except ServerFailed:
            self._broken = True
            raise

    async def refresh_tools(self, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        """Return the tools if they have changed, once no process of an earlier turn is alive.

        A batch begins with this question, and what it calls is recorded after it: so the trace, too, has the
        end of the older process before the first call.
        """
        await self._pool.wait_closed()
        return await self._changed(self._open, self._making.within(timeout_s))

    async def _changed(self, owned: PooledConnection, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        tools = await owned.connection.refresh_tools(timeout_s)
        if tools is not None and owned.listing is not None:
            # The server says it once; a later turn that uses this connection begins with what it said.
            owned.listing = replace(owned.listing, tools=tools)
        return tools

    @property
    def alive(self) -> bool:
        """Its process has not ended."""
        return self._owned is not None and self._owned.connection.alive

    @property
    def pid(self) -> int | None:
        """The server's process."""
        return None if self._owned is None else self._owned.connection.pid

    @property
    def exit(self) -> ServerExit | None:
        """How it ended, if it has."""
        return None if self._owned is None else self._owned.connection.exit

    @property
    def ending(self) -> Ending | None:
        """It ends behind the turn; `ServerEnded` says how."""
        return "handed_over"

    @property
    def stderr_tail(self) -> str:
        """The end of what it has written to standard error so far."""
        return "" if self._owned is None else self._owned.connection.stderr_tail

    @property
    def _open(self) -> PooledConnection:
        assert self._owned is not None, "a connection is used between open and exit"
        return self._owned

    async def _prepared(self, owned: PooledConnection, timeout_s: float) -> Listing | None:
        """Return the listing of the connection that was prepared; `None`: it was lost."""
        # It has a limit of its own, which began before the turn's, and says more when it has passed.
        owned.wanted.set()
        with anyio.move_on_after(self._making.within(float("inf"))):
            await owned.opened.wait()
        if owned.listing is None or not owned.usable or not await _still_there(owned.connection):
            self._owned = None
            self._pool.lose(owned, _why_lost(owned))
            return None
        owned.turn = self._making.turn
        await self._changed(owned, self._making.within(timeout_s))
        return owned.listing


async def _still_there(connection: ToolConnection) -> bool:
    return not isinstance(connection, Checkable) or await connection.still_there(_STILL_THERE_S)


def _why_lost(owned: PooledConnection) -> str:
    if isinstance(owned.failed, ServerFailed):
        return owned.failed.failure.cause
    if owned.failed is not None:
        return "its session crashed"
    if not owned.opened.is_set():
        return "it was not ready in time"
    return "its process has ended" if owned.connection.pid else "its server no longer knows of it"
