"""What carries a session's messages: the pipes of a process here, HTTP in `http.py`.

The client knows the protocol and nothing of either; a wire knows how to reach its server, how the server
ended, and what to advise when it did.
"""

import os
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from grue.mcp_transport.node_version import ASK_AFTER_TIMEOUT_S, ASK_S, node_too_old
from grue.mcp_transport.process_group import ProcessRegistry
from grue.mcp_transport.redaction import Redactor
from grue.mcp_transport.stdio import ProcessLimits, ServerProcess, StdioServer
from grue.tool_sessions.connection import Ending, ServerExit
from grue.tool_sessions.failures import Phase, remedy_for
from grue.tool_sessions.notices import Notify

if TYPE_CHECKING:
    from grue.mcp_transport.sdk import MessageStream

_EXIT_SEEN_S = 0.5
"""How long a broken connection waits for the exit that most likely broke it."""


class Wire(Protocol):
    """A way to one server. One task enters, uses and leaves it.

    Attributes:
        redactor: Knows the secrets of this server.
    """

    redactor: Redactor

    async def __aenter__(self) -> Self:
        """Start the server, if it is to be started; raises `SpawnError`."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Leave it, within a bounded time; afterwards no process of it is alive."""
        ...

    def stream(self, notify: Notify) -> "MessageStream":
        """Return both directions of the connection, once."""
        ...

    async def broken(self, method: str, why: str | None) -> str:
        """Return what broke the connection during `method`; `why` is what the stream knows of it."""
        ...

    async def remedy(self, phase: Phase, *, missing: bool = False, timed_out: bool = False) -> str:
        """Return what to do about a failure in `phase`."""
        ...

    @property
    def address(self) -> str:
        """The command line or the URL, without secrets."""
        ...

    @property
    def alive(self) -> bool:
        """Nothing that can be seen without asking the server says that it has ended."""
        ...

    @property
    def pid(self) -> int | None:
        """The server's process, if it is one of ours."""
        ...

    @property
    def exit(self) -> ServerExit | None:
        """How that process ended."""
        ...

    @property
    def ending(self) -> Ending | None:
        """What it took to end it."""
        ...

    @property
    def stderr_tail(self) -> str:
        """The end of what the server wrote to standard error, without secrets."""
        ...


class ProcessWire:
    """The way to a server that is a process of ours."""

    def __init__(self, server: StdioServer, registry: ProcessRegistry, limits: ProcessLimits) -> None:
        # The host's whole environment: what a server does not inherit it may still have from elsewhere.
        self.redactor = Redactor({**os.environ, **server.env})
        self._server = server
        self._registry = registry
        self._max_message_bytes = limits.max_message_bytes
        self._process = ServerProcess(server, registry, limits)
        self._spawned = False

    async def __aenter__(self) -> Self:
        await self._process.__aenter__()
        self._spawned = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._process.__aexit__(exc_type, exc, tb)

    def stream(self, notify: Notify) -> "MessageStream":
        """Return the process's pipes as a stream of messages; imports the SDK."""
        from grue.mcp_transport.sdk import LineStream

        return LineStream(self._process, notify, self._max_message_bytes)

    async def broken(self, method: str, why: str | None) -> str:
        """Wait for the exit that has most likely closed the pipes, and name it."""
        with anyio.move_on_after(_EXIT_SEEN_S):
            await self._process.wait_exit()
        if self.exit is not None:
            return f"the server ended during {method} ({self.exit})"
        return f"the connection broke during {method}: {why}"

    async def remedy(self, phase: Phase, *, missing: bool = False, timed_out: bool = False) -> str:
        """Return what to do; if Node is too old for a server that did not start, say so (R14)."""
        advice = remedy_for(self._server.command, phase, missing=missing, timed_out=timed_out)
        if phase not in ("initialize", "list"):
            return advice
        # After a timeout the limit has passed already, and asking Node must not exceed it by much.
        limit_s = ASK_AFTER_TIMEOUT_S if timed_out else ASK_S
        found = await node_too_old(self._server, self._registry, limit_s=limit_s)
        if found is None:
            return advice
        # A server that still runs may only be slow, so that the rest of the advice holds as well.
        return found if self.exit is not None else f"{found}\n{advice}"

    @property
    def address(self) -> str:
        """The command line as one would type it."""
        return self.redactor.command_line(self._server.command, self._server.args)

    @property
    def alive(self) -> bool:
        """The process has not ended."""
        return self._spawned and not self._process.has_ended

    @property
    def pid(self) -> int | None:
        """The process id, which is its group's too."""
        return self._process.pid if self._spawned else None

    @property
    def exit(self) -> ServerExit | None:
        """How the process ended; `None` while it runs."""
        return self._process.exited if self._spawned else None

    @property
    def ending(self) -> Ending | None:
        """What it took to end it; `None` while it runs."""
        return self._process.ending if self._spawned else None

    @property
    def stderr_tail(self) -> str:
        """The end of its standard error."""
        return self._process.stderr_tail(self.redactor.text) if self._spawned else ""
