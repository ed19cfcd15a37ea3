"""One connection of the session pool, and the task of the episode that owns it.

A connection must be entered and left by the same task. The owner records `SessionPrewarmed` and
`ServerEnded` in the trace. Which connections there are is in `session_pool.py`.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
from msgspec.structs import replace

from grue import messages as m
from grue.runtime.actor import describe_crash
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions.connection import Connect, Listing, ToolConnection
from grue.tool_sessions.failures import ServerFailed

_PREWARM_DELAY_S = 0.005
"""How long a prewarm is delayed. Spawning holds the interpreter for a millisecond, and at that moment the
host's thread is about to receive its result, or the turn's request to the model is about to be written."""

Room: TypeAlias = Callable[["PooledConnection"], Awaitable[None]]
"""Waits until a connection may start its process."""


class PooledConnection:
    """A connection and its owner task. `run` is the task; other tasks use the rest.

    Args:
        server: The server's name.
        connect: Makes the connection.
        recorder: Records what the owner does, in the trace.
        timeout_s: Time limit for opening it.
        room: Waits until it may start its process.

    Attributes:
        connection: Open once `opened` is set, unless `failed` is set too.
        listing: The latest listing of the server; `None` until it is open.
        failed: Why it could not be opened (`ServerFailed`), or the exception that crashed its owner.
        opened: Set when opening has succeeded or failed.
        wanted: Set by a turn that is waiting for this connection. Until then spawning is delayed by 5 ms, so
            that the host gets its result first.
        gone: Set when the connection is closed and none of its processes is alive.
        turn: Number of the turn that uses it; 0: none.
        generation: Which of the pool's turns uses it, or is to use it; the pool counts them from 1.
        alone: Held during a batch of calls, because a kept session may have two users: a turn, and a call
            outside turns.
    """

    def __init__(
        self, server: m.ServerName, connect: Connect, recorder: Recorder, timeout_s: float, room: Room
    ) -> None:
        self.server = server
        self.turn = 0
        self.generation = 0
        self.connection: ToolConnection = connect(self._note)
        self.listing: Listing | None = None
        self.failed: Exception | None = None
        self.opened = anyio.Event()
        self.wanted = anyio.Event()
        self.gone = anyio.Event()
        self.alone = anyio.Lock()
        self._released = anyio.Event()
        self._opening = anyio.CancelScope()
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._room = room
        self._pid: int | None = None

    @property
    def usable(self) -> bool:
        """Whether it is open or still opening, and its process has not ended."""
        return self.failed is None and not self.gone.is_set() and self.connection.status.alive

    async def current_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...]:
        """Return the server's tools now. They are listed again only if the server has announced a change.

        The server announces a change once, and the session may have several users. Each of them compares the
        result with what it has seen.
        """
        assert self.listing is not None, "only an open connection has tools"
        tools = await self.connection.refresh_tools(timeout_s)
        if tools is not None:
            self.listing = replace(self.listing, tools=tools)
        return self.listing.tools

    def release(self) -> None:
        """Let the owner close the connection. If it is still opening, opening is cancelled."""
        self._released.set()
        if not self.opened.is_set():
            self._opening.cancel()

    async def run(self) -> None:
        """Open the connection, wait for `release`, close it. If cancelled, close it within a time limit."""
        try:
            # The scope covers the connection's whole life, not just its opening. The connection enters task
            # groups when it opens and leaves them when it closes, and anyio requires scopes to nest.
            with self._opening:
                await self._hold_open()
        except ServerFailed as failed:
            self.failed = failed
        except Exception as crash:  # noqa: BLE001 - the turn that needs it raises it; other turns go on
            self.failed = crash
            # If the trace cannot be written, that may be the crash itself, and recording it fails again.
            with contextlib.suppress(Exception):
                self._record(describe_crash(self.server, crash))
        finally:
            self.opened.set()
            self.gone.set()

    async def _hold_open(self) -> None:
        if not self.turn:
            with anyio.move_on_after(_PREWARM_DELAY_S):
                await self.wanted.wait()
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
                await self._released.wait()
                begun = anyio.current_time()
        finally:
            if self.listing is not None:
                self._record_end(anyio.current_time() - begun)

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
