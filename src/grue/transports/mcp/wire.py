"""`Wire`: carries a session's messages, over pipes (`process_wire.py`) or HTTP (`http_wire.py`).

The client (`client.py`) speaks MCP and does not know which wire it uses. A wire knows how to reach its
server, how the server ended, and what the user can do about a failure.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from grue.policies import ServerPhase
from grue.tool_sessions.connection import ConnectionStatus
from grue.tool_sessions.notices import Notify
from grue.tool_sessions.redaction import Redactor

if TYPE_CHECKING:
    from grue.transports.mcp.message_stream import MessageStream


class Wire(Protocol):
    """The transport to one server. The same task enters, uses and leaves it.

    Attributes:
        modules: The modules with the SDK's part of the transport, which `stream` imports.
    """

    modules: tuple[str, ...]

    @property
    def redactor(self) -> Redactor:
        """Removes this server's secrets from texts."""
        ...

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

    async def remedy(self, phase: ServerPhase, *, missing: bool = False, timed_out: bool = False) -> str:
        """Return the advice for a failure in `phase`."""
        ...

    def refusals(self, text: str) -> str:
        """Return what the server's box has refused, as far as `text` tells; empty: nothing is known."""
        ...

    @property
    def address(self) -> str:
        """The command line or the URL, without secrets."""
        ...

    @property
    def status(self) -> ConnectionStatus:
        """The server's process, and whether the server still runs as far as is known without asking it."""
        ...
