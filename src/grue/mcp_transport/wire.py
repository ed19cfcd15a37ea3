"""`Wire`: what carries a session's messages. Here it is the pipes of a process; `http.py` has the other.

The client (`client.py`) speaks MCP and does not know which wire it uses. A wire knows how to reach its
server, how the server ended, and what the user can do about a failure.
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
    """The transport to one server. The same task enters, uses and leaves it.

    Attributes:
        redactor: Removes this server's secrets from texts.
    """

    redactor: Redactor

    async def __aenter__(self) -> Self:
        """Start the server, if it is a process; raises `SpawnError`."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close the connection within a bounded time; afterwards no process of the server is alive."""
        ...

    def stream(self, notify: Notify) -> "MessageStream":
        """Return the stream of messages in both directions. Call it once."""
        ...

    async def broken(self, method: str, why: str | None) -> str:
        """Return the cause of a connection that broke during `method`; `why` is the stream's own cause."""
        ...

    async def remedy(self, phase: Phase, *, missing: bool = False, timed_out: bool = False) -> str:
        """Return what the user can do about a failure in `phase`."""
        ...

    @property
    def address(self) -> str:
        """The command line or the URL, without secrets."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the server still runs, as far as is known without asking it."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of the server; `None` for a server over HTTP."""
        ...

    @property
    def exit(self) -> ServerExit | None:
        """How the process exited; `None` while it runs, or if there is none."""
        ...

    @property
    def ending(self) -> Ending | None:
        """How the process was ended; `None` while it runs, or if there is none."""
        ...

    @property
    def stderr_tail(self) -> str:
        """The end of the server's standard error, with secrets redacted."""
        ...


class ProcessWire:
    """The wire to a server that runs as our child process."""

    def __init__(self, server: StdioServer, registry: ProcessRegistry, limits: ProcessLimits) -> None:
        # Redact the host's whole environment: a server may know a secret from elsewhere, a file for example,
        # even if it does not inherit the variable.
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
        """Wait a moment for the exit that is the likely cause of closed pipes; return the cause."""
        with anyio.move_on_after(_EXIT_SEEN_S):
            await self._process.wait_exit()
        if self.exit is not None:
            return f"the server ended during {method} ({self.exit})"
        return f"the connection broke during {method}: {why}"

    async def remedy(self, phase: Phase, *, missing: bool = False, timed_out: bool = False) -> str:
        """Return what the user can do. If a server did not start, check whether Node is too old for it.

        Source: R14
        """
        advice = remedy_for(self._server.command, phase, missing=missing, timed_out=timed_out)
        if phase not in ("initialize", "list"):
            return advice
        # After a timeout the start-up limit has been used up, so asking Node gets only a short time.
        limit_s = ASK_AFTER_TIMEOUT_S if timed_out else ASK_S
        found = await node_too_old(self._server, self._registry, limit_s=limit_s)
        if found is None:
            return advice
        # A server that still runs may only be slow, so give the general advice too.
        return found if self.exit is not None else f"{found}\n{advice}"

    @property
    def address(self) -> str:
        """The command line as one would type it."""
        return self.redactor.command_line(self._server.command, self._server.args)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._spawned and not self._process.has_ended

    @property
    def pid(self) -> int | None:
        """The process id, which is also its group's id."""
        return self._process.pid if self._spawned else None

    @property
    def exit(self) -> ServerExit | None:
        """How the process ended; `None` while it runs."""
        return self._process.exited if self._spawned else None

    @property
    def ending(self) -> Ending | None:
        """How the process was ended; `None` while it runs."""
        return self._process.ending if self._spawned else None

    @property
    def stderr_tail(self) -> str:
        """The end of its standard error, with secrets redacted."""
        return self._process.stderr_tail(self.redactor.text) if self._spawned else ""
