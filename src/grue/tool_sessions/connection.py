"""The connection between a session actor and a tool server: what it must offer, and what it reports.

Come here to write a new kind of tool server. The session actor (`actors/mcp_session.py`) uses a server only
through `ToolConnection`; an MCP client, a dictionary of functions and a pooled session all implement it.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable

from msgspec import Struct

from grue.messages import JsonObject, ToolCallResult, ToolDefinition
from grue.runtime.actor import Note

Ending = Literal["polite", "terminated", "killed", "died", "handed_over"]
"""By itself at the end of its input, on SIGTERM, on SIGKILL; before it was asked to; or behind its turn."""


class ServerExit(Struct, frozen=True):
    """How a process ended: by itself with a `status`, or killed by a `signal` (a name such as `SIGKILL`)."""

    status: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit status {self.status}"


class Listing(Struct, frozen=True, kw_only=True):
    """What a server said of itself when it was opened."""

    tools: tuple[ToolDefinition, ...]
    protocol_version: str
    server_version: str = ""
    instructions: str = ""


class ToolConnection(Protocol):
    """What a session needs of a tool server; entered, used and left by one task.

    Entering starts it, leaving ends it, bounded in time and cancelled or not. `pid`, `exit` and `ending` are
    `None` where there is no process.
    """

    async def __aenter__(self) -> Self:
        """Start the server; raises `ServerFailed`."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End it; afterwards no process of it is alive."""
        ...

    async def open(self, timeout_s: float) -> Listing:
        """Agree on a protocol and list the tools; raises `ServerFailed`.

        The limit counts from when entering began (R13.3).
        """
        ...

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        """Call a tool; raises `ToolTimedOutError`, `ToolRefusedError`, `ServerFailed`."""
        ...

    async def refresh_tools(self, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        """Return the tools if the server says that they have changed since they were last listed.

        `None`: they have not, or a new listing is not to be had; raises nothing.
        """
        ...

    @property
    def alive(self) -> bool:
        """Its process has not ended, as far as can be seen without asking it."""
        ...

    @property
    def pid(self) -> int | None:
        """The server's process."""
        ...

    @property
    def exit(self) -> ServerExit | None:
        """How the process ended."""
        ...

    @property
    def ending(self) -> Ending | None:
        """What it took to end it."""
        ...

    @property
    def stderr_tail(self) -> str:
        """The end of what it wrote to standard error, without secrets."""
        ...


Connect: TypeAlias = Callable[[Note], ToolConnection]
"""Makes a fresh connection, not yet entered; the note is for what a server does beside the protocol."""


@runtime_checkable
class Checkable(Protocol):
    """A connection that can find out whether its server still knows the session."""

    async def still_there(self, timeout_s: float) -> bool:
        """Return whether the session can still be used; asks the server for at most `timeout_s`."""
        ...
