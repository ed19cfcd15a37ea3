"""The interface between a session actor and a tool server, which each kind of tool server implements."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue.errors import MCPError
from grue.policies import Ending
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.results import INTERRUPTED
from grue.runtime.actor import Note
from grue.runtime.loops.host_code import calling
from grue.runtime.processes.limits import ServerExit
from grue.tool_sessions.failures import ServerFailed, ToolRefusedError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class ConnectionStatus(Struct, frozen=True, kw_only=True):
    """The state of a connection, and of its server's process if there is one, at one moment.

    Attributes:
        alive: Whether the connection can still be used, as far as is known without asking the server.
        pid: Process id of the server; `None`: grue has not started a process for it.
        exit: The process's exit status or signal. `None`: the process still runs, no process was started, or
            its exit status is unknown.
        ending: How the process ended, such as `killed` or `polite` (by itself, when its stdin was closed);
            `none`: it still runs, or there is no process. `handed_over`: the session pool keeps or ends it.
        stderr_tail: The end of the process's standard error, with secrets redacted; untrusted.
        address: The URL of an MCP server over HTTP, without secrets; empty for other servers.
        box: In words, what the server can reach from its sandbox; empty: no sandbox limits the server.
        last_request_id: The JSON-RPC id of the last tool call; empty: there was no call, or it was not sent
            to an MCP server.
    """

    alive: bool = True
    pid: int | None = None
    exit: ServerExit | None = None
    ending: Ending = "none"
    stderr_tail: str = ""
    address: str = ""
    box: str = ""
    last_request_id: str = ""

    @property
    def exit_status(self) -> int | None:
        """The status in `exit`; `None`: `exit` is `None` or has no status, such as after a signal."""
        return None if self.exit is None else self.exit.status


class Listing(Struct, frozen=True, kw_only=True):
    """What a server reports when its connection is opened.

    Attributes:
        tools: The server's tools that may be offered, in the server's order.
        protocol_version: The MCP revision that was agreed on; empty if the server does not speak MCP.
        server_version: The server's name and version.
        instructions: The server's text for the model; untrusted.
        serves_unlisted: Whether tools that are not in `tools` can be called too.
    """

    tools: tuple[m.ToolDefinition, ...]
    protocol_version: str
    server_version: str = ""
    instructions: str = ""
    serves_unlisted: bool = False


class SeenListing(Struct, frozen=True):
    """The valid tools that a server has listed, including those that `include` and `exclude` leave out."""

    tools: tuple[m.ToolDefinition, ...]
    protocol_version: str = ""  # empty: not known
    expires_at: float | None = None  # in seconds since the epoch; `None`: the server has not said
    private: bool = False  # whether the listing is valid only for the person who is logged in


class ToolConnection(Protocol):
    """One connection to a tool server. The task that enters it has to leave it.

    Entering the connection starts the server's process, if it is to have one. Leaving it ends the process
    within a bounded time, also when the task is cancelled. A connection to a session of the pool does
    neither: the pool starts and ends the process.
    """

    async def __aenter__(self) -> Self:
        """Start the server; raises `ServerFailed`."""

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Close the connection. Afterwards no process that `__aenter__` has started is alive."""

    async def open(self, timeout_s: float) -> Listing:
        """Agree on a protocol version and list the tools; raises `ServerFailed`.

        `timeout_s` counts from `__aenter__`; the wait for `server_gate()` and the SDK's import do not count.
        The schemas of a tool are nested at most 100 levels deep.

        Source: R13.3
        """

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool; raises `ToolTimedOutError`, `ToolRefusedError`, `ServerFailed`."""

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Return all tools if they changed; `None`: no change is known, or listing failed. Raises nothing."""

    @property
    def status(self) -> ConnectionStatus:
        """The connection's current state, as far as is known without asking the server."""


Connect: TypeAlias = Callable[[Note], ToolConnection]
"""Makes a connection that is not entered yet, and that records its server's notices with the `Note`."""


_WithBlocks: TypeAlias = tuple[m.ToolCallResult, tuple[m.JsonObject, ...]]


# The functions below call methods that not every connection has. They look for a method by its name, because
# an `isinstance` test with a protocol is much slower.


async def refusal(connection: ToolConnection, tool: str, arguments: m.JsonObject) -> str | None:
    """Return why the connection would refuse to send this call; `None`: no reason is known."""
    ask: Callable[[str, m.JsonObject], Awaitable[str | None]] | None = getattr(connection, "refusal", None)
    return None if ask is None else await ask(tool, arguments)


async def finish_task(
    connection: ToolConnection, tool: str, task: m.ToolTask, timeout_s: float
) -> m.ToolCallResult:
    """Get the result of an MCP task that an interrupted turn began. Raises as `ToolConnection.call` does."""
    finish: Callable[..., Awaitable[m.ToolCallResult]] | None = getattr(connection, "finish_task", None)
    if finish is None:
        raise ToolRefusedError(f"{INTERRUPTED}: it cannot be asked for a result later", code=-32601)
    return await finish(tool, task, timeout_s)


async def call_with_blocks(
    connection: ToolConnection, tool: str, arguments: m.JsonObject, timeout_s: float
) -> _WithBlocks:
    """Call a tool. Return its result, and the server's own content blocks if the connection keeps them."""
    call: Callable[..., Awaitable[_WithBlocks]] | None = getattr(connection, "call_with_blocks", None)
    if call is None:
        return await connection.call(tool, arguments, timeout_s), ()
    return await call(tool, arguments, timeout_s)


async def request(
    connection: ToolConnection, method: str, params: m.JsonObject, timeout_s: float
) -> m.JsonObject:
    """Send any request to an MCP server and return the raw result; raises `MCPError` for other servers."""
    send: Callable[..., Awaitable[m.JsonObject]] | None = getattr(connection, "request", None)
    if send is None:
        raise MCPError(f"{method}: this tool server is not an MCP server. It takes tool calls only.")
    return await send(method, params, timeout_s)


async def still_there(connection: ToolConnection, timeout_s: float) -> bool:
    """Return whether the session seems usable. A server over HTTP is asked, for `timeout_s` at most."""
    ask: Callable[[float], Awaitable[bool]] | None = getattr(connection, "still_there", None)
    return ask is None or await ask(timeout_s)


def exclusive(connection: ToolConnection | None) -> contextlib.AbstractAsyncContextManager[object]:
    """Return a context manager within which no other user of a shared session makes calls."""
    alone: Callable[..., contextlib.AbstractAsyncContextManager[object]]
    alone = getattr(connection, "exclusive", contextlib.nullcontext)
    return alone()


class WrappedConnection:
    """A base class: a `ToolConnection` that forwards the calls of its methods to another one.

    Of the optional methods it has `refusal`, `finish_task` and `exclusive`. A subclass that needs
    `call_with_blocks`, `request` or `still_there` defines it.
    """

    def __init__(self, connection: ToolConnection) -> None:
        self._connection = connection

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._connection.__aexit__(exc_type, exc, tb)

    async def open(self, timeout_s: float) -> Listing:
        """Open the wrapped connection."""
        return await self._connection.open(timeout_s)

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool."""
        return await self._connection.call(tool, arguments, timeout_s)

    async def refusal(self, tool: str, arguments: m.JsonObject) -> str | None:
        """Return why a call would not be sent; `None`: no reason is known."""
        return await refusal(self._connection, tool, arguments)

    async def finish_task(self, tool: str, task: m.ToolTask, timeout_s: float) -> m.ToolCallResult:
        """Ask the wrapped connection for the result of an MCP task."""
        return await finish_task(self._connection, tool, task, timeout_s)

    def exclusive(self) -> contextlib.AbstractAsyncContextManager[object]:
        """Return a context manager in which other users of the session wait; see the function `exclusive`."""
        return exclusive(self._connection)

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Return all tools if they have changed; `None`: no change is known, or listing failed."""
        return await self._connection.refresh_tools(timeout_s)

    @property
    def status(self) -> ConnectionStatus:
        """The state of the wrapped connection."""
        return self._connection.status


def _usable(listing: Listing) -> Listing:
    _returned(Listing, listing)
    tool_results.refuse_deep_schemas(listing.tools)
    # A Struct does not check its fields. Check them here: the trace could not be read with a wrong type.
    return msgspec.convert(msgspec.to_builtins(listing), Listing)


def _recordable(result: m.ToolCallResult) -> m.ToolCallResult:
    return tool_results.recordable(_returned(m.ToolCallResult, result))


def _returned(kind: type[T], value: T) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"a method of the connection returned {type(value).__name__}, not {kind.__name__}")
    return value


def _text(reason: str | None) -> str | None:
    return None if reason is None else _returned(str, reason)


def _usable_tools(tools: tuple[m.ToolDefinition, ...] | None) -> tuple[m.ToolDefinition, ...] | None:
    return None if tools is None else _usable(Listing(tools=tools, protocol_version="")).tools


def _checked(method: F, check: Callable[[Any], Any] = lambda result: result) -> F:
    """Wrap `method`: mark its errors as the host's, and return what `check` returns for its result."""

    async def checked(self: "HostsConnection", *args: Any) -> Any:
        with self._calling():
            return check(await method(self, *args))

    return checked  # type: ignore[return-value]  # it takes and returns what `method` does


class HostsConnection(WrappedConnection):
    """A connection that the host's `connect` makes, with checks of what its methods return.

    Raises `TypeError` if `connect` or a method returns a value of a wrong type, and `ValueError` if the trace
    could not be read because of a tool's definition. These errors, and those that the host's methods raise,
    are marked as the host's; a `ServerFailed` gets the server's name. In place of a result that cannot be
    recorded, the model gets an error.
    """

    def __init__(self, connect: Connect, server: m.ServerName, note: Note) -> None:
        self._connect, self._server = connect, server
        with self._calling():
            connection = connect(note)
            if not hasattr(connection, "open"):  # then the function is probably meant as a tool
                raise TypeError(
                    f"it returned {type(connection).__name__}, not a connection. A function that is a tool"
                    f" goes into FunctionTools: servers={{{str(server)!r}: FunctionTools([...])}}"
                )
        super().__init__(connection)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        with calling(self._connect, "the server"):
            try:
                yield
            except ServerFailed as failed:  # the host's class may have another name for the server
                if failed.failure.server == self._server:
                    raise
                raise ServerFailed(replace(failed.failure, server=self._server)) from failed

    __aenter__ = _checked(WrappedConnection.__aenter__)
    __aexit__ = _checked(WrappedConnection.__aexit__)
    open = _checked(WrappedConnection.open, _usable)
    call = _checked(WrappedConnection.call, _recordable)
    finish_task = _checked(WrappedConnection.finish_task, _recordable)
    refusal = _checked(WrappedConnection.refusal, _text)
    refresh_tools = _checked(WrappedConnection.refresh_tools, _usable_tools)

    async def call_with_blocks(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> _WithBlocks:
        """Call a tool. Return its result, and the content blocks if the connection keeps them."""
        with self._calling():
            result, blocks = await call_with_blocks(self._connection, tool, arguments, timeout_s)
            return _recordable(result), blocks

    async def request(self, method: str, params: m.JsonObject, timeout_s: float) -> m.JsonObject:
        """Send any request; raises `MCPError` if the host's connection cannot."""
        with self._calling():
            return _returned(dict, await request(self._connection, method, params, timeout_s))

    async def still_there(self, timeout_s: float) -> bool:
        """Return whether the session seems usable."""
        with self._calling():
            return _returned(bool, await still_there(self._connection, timeout_s))

    @property
    def status(self) -> ConnectionStatus:
        """The state of the host's connection."""
        with self._calling():
            status = msgspec.to_builtins(_returned(ConnectionStatus, super().status))
            return msgspec.convert(status, ConnectionStatus)  # checks the fields, as `_usable` does
