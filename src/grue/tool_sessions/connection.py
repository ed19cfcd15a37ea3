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
"""How a server was ended.

- `polite`: it exited by itself at the end of its input.
- `terminated`: it exited on SIGTERM.
- `killed`: it was killed with SIGKILL.
- `died`: it exited before it was asked to.
- `handed_over`: the session pool ends or keeps it after the turn; the trace's `ServerEnded` says how.
"""


class ServerExit(Struct, frozen=True):
    """How a process ended: by itself with a `status`, or killed by a `signal` (a name such as `SIGKILL`)."""

    status: int | None = None
    signal: str | None = None

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit status {self.status}"


class Listing(Struct, frozen=True, kw_only=True):
    """What a server reports when it is opened: its tools, versions and instructions."""

    tools: tuple[ToolDefinition, ...]
    protocol_version: str
    server_version: str = ""
    instructions: str = ""


class ToolConnection(Protocol):
    """One connection to a tool server. The same task enters, uses and leaves it.

    Entering starts the server. Leaving ends it within a bounded time, also when cancelled. `pid`, `exit` and
    `ending` are `None` where there is no process.
    """

    async def __aenter__(self) -> Self:
        """Start the server; raises `ServerFailed`."""
        ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """End the server; afterwards none of its processes is alive."""
        ...

    async def open(self, timeout_s: float) -> Listing:
        """Agree on a protocol version and list the tools; raises `ServerFailed`.

        `timeout_s` counts from when entering began.

        Source: R13.3
        """
        ...

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        """Call a tool; raises `ToolTimedOutError`, `ToolRefusedError`, `ServerFailed`."""
        ...

    async def refresh_tools(self, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        """Return the new list of tools if the server has said that it changed since it was last listed.

        Returns `None` if it has not changed, or if listing it again failed. Raises nothing.
        """
        ...

    @property
    def alive(self) -> bool:
        """Whether its process still runs. Looks at the process only; the server itself is not asked."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of the server."""
        ...

    @property
    def exit(self) -> ServerExit | None:
        """How the process exited; `None` while it runs."""
        ...

    @property
    def ending(self) -> Ending | None:
        """How the server was ended; `None` while it runs."""
        ...

    @property
    def stderr_tail(self) -> str:
        """The end of the server's standard error, with secrets redacted."""
        ...


Connect: TypeAlias = Callable[[Note], ToolConnection]
"""Makes a new connection that is not entered yet. It records the server's notices with the given `Note`."""


@runtime_checkable
class Checkable(Protocol):
    """A connection that can ask its server whether the session still exists (MCP over HTTP)."""

    async def still_there(self, timeout_s: float) -> bool:
        """Return whether the session can still be used; asks the server for at most `timeout_s`."""
        ...
