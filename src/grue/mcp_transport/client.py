"""A client for one MCP server process: spawn, initialize, list, call, close.

The process is spawned first and the SDK imported afterwards, so that both start up at the same time. Every
failure leaves as one flat error with the root cause; exceptions of the SDK and exception groups stay inside.
"""

import functools
import importlib.metadata
import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
from msgspec import Struct

from grue.errors import MissingDependencyError
from grue.mcp_transport.failures import (
    Phase,
    ServerFailed,
    ToolRefusedError,
    ToolTimedOutError,
    first_fault,
    remedy_for,
)
from grue.mcp_transport.listing import read_tools
from grue.mcp_transport.notices import NoticeKind, ServerNotice
from grue.mcp_transport.process_group import ProcessRegistry, ServerExit, SpawnError
from grue.mcp_transport.redaction import Redactor
from grue.mcp_transport.stdio import Ending, ProcessLimits, ServerProcess, StdioServer, leaves_no_time
from grue.messages import JsonObject, ServerFailure, ServerName, ToolCallResult, ToolDefinition
from grue.protocol.safe_text import plain_text
from grue.protocol.tool_results import from_mcp

if TYPE_CHECKING:
    from grue.mcp_transport import sdk

_EXIT_SEEN_S = 0.5
"""How long a broken connection waits for the exit that most likely broke it."""

_NOTICE_CHARS = 500
_METHOD_NOT_FOUND = -32601


class ClientOptions(Struct, frozen=True, kw_only=True):
    """How a client treats its server.

    Attributes:
        max_pages: Pages of the listing that are read at most.
        on_notice: Called with each notice, in the event loop; must not block or raise.
    """

    limits: ProcessLimits = ProcessLimits()
    max_pages: int = 100
    on_notice: Callable[[ServerNotice], None] | None = None


class Listing(Struct, frozen=True, kw_only=True):
    """What a server said of itself when it was opened."""

    tools: tuple[ToolDefinition, ...]
    protocol_version: str
    server_version: str = ""
    instructions: str = ""


class McpClient:
    """One server process and the MCP session with it. The task that enters it opens, calls and leaves it.

    Entering spawns the process. Leaving closes it within `limits`, cancelled or not; afterwards no process of
    its group is alive, and `exit` and `ending` say how it went (R3.5-R3.7, P9).

    Raises:
        ServerFailed: On entering, phase `spawn`.
        MissingDependencyError: On entering: the `mcp` package is absent or too old.
    """

    def __init__(
        self, server: StdioServer, registry: ProcessRegistry, options: ClientOptions | None = None
    ) -> None:
        self._server = server
        self._options = options or ClientOptions()
        self._process = ServerProcess(server, registry, self._options.limits)
        self._redactor = Redactor(server.environment())
        self._link: sdk.Link | None = None
        self._phase: Phase = "spawn"
        self._started = 0.0

    async def __aenter__(self) -> Self:
        require_mcp()
        self._started = time.monotonic()
        try:
            await self._process.__aenter__()
        except SpawnError as error:
            remedy = remedy_for(self._server.command, "spawn", missing=error.missing is not None)
            raise self._failed(str(error), remedy) from error
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if self._link is not None and not leaves_no_time(exc_type):
                await self._link.__aexit__(None, None, None)
        finally:
            await self._process.__aexit__(exc_type, exc, tb)

    @property
    def pid(self) -> int:
        """The process id of the server, which is its group's too."""
        return self._process.pid

    @property
    def exit(self) -> ServerExit | None:
        """How the process ended; `None` while it runs."""
        return self._process.exited

    @property
    def ending(self) -> Ending | None:
        """What it took to end it; `None` while it runs."""
        return self._process.ending

    async def open(self, timeout_s: float) -> Listing:
        """Initialize the session and list the tools, all pages of them (R3.3, P8, P37).

        Args:
            timeout_s: For handshake and listing together; importing the SDK does not count.

        Raises:
            ServerFailed: Phase `initialize` or `list`: refused, timed out, died, spoke something else.
        """
        from grue.mcp_transport import sdk

        link = sdk.Link(self._process, self._notify)
        # Entered before any time limit: a scope that ended inside the session's task group would be left
        # in the wrong order.
        await link.__aenter__()
        self._link = link
        try:
            with anyio.fail_after(timeout_s):
                return await self._handshake(link)
        except TimeoutError as error:
            cause = f"no answer to {self._method} within {timeout_s:.2g} s"
            raise self._failed(
                cause, remedy_for(self._server.command, self._phase, timed_out=True)
            ) from error
        except sdk.SdkError as error:
            if sdk.is_closed(error, link.stream):
                raise await self._broken(link) from error
            raise self._failed(f"{self._method} failed: {error.message} ({error.code})") from error
        except (RuntimeError, ValueError) as error:
            cause = f"its answer to {self._method} is not usable: {first_fault(error)}"
            raise self._failed(cause) from error

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        """Call a tool and return what it answered, an error of the tool's own included (R11).

        Cancelling tells the server that the call is cancelled.

        Args:
            tool: Bare name, as the server knows it.
            arguments: A JSON object.
            timeout_s: Holds whatever the server does, even if it has stopped reading.

        Raises:
            ToolTimedOutError: No answer in time; the server was told that the call is cancelled.
            ToolRefusedError: The server answered with a JSON-RPC error, or with nothing usable.
            ServerFailed: The server died or the connection broke; no further call can succeed.
        """
        from grue.mcp_transport import sdk

        if self._link is None:
            raise RuntimeError("open() the client before calling a tool")
        self._phase = "call"
        try:
            with anyio.fail_after(timeout_s):
                answer = await self._link.request("tools/call", {"name": tool, "arguments": arguments})
                return from_mcp(answer)
        except TimeoutError as error:
            raise ToolTimedOutError(tool, timeout_s) from error
        except sdk.SdkError as error:
            if sdk.is_closed(error, self._link.stream):
                raise await self._broken(self._link) from error
            text = self._redactor.text(plain_text(error.message))
            raise ToolRefusedError(text, code=error.code, details=error.data) from error

    @property
    def _method(self) -> str:
        return self._phase if self._phase == "initialize" else f"tools/{self._phase}"

    async def _handshake(self, link: "sdk.Link") -> Listing:
        self._phase = "initialize"
        welcome = await link.initialize()
        self._phase = "list"
        return Listing(
            tools=await self._list(link),
            protocol_version=str(welcome.protocol_version),
            server_version=plain_text(f"{welcome.server_info.name} {welcome.server_info.version}"),
            instructions=welcome.instructions or "",
        )

    async def _list(self, link: "sdk.Link") -> tuple[ToolDefinition, ...]:
        """Read all pages; a cursor seen before or too many pages end the listing with what there is."""
        from grue.mcp_transport import sdk

        tools: dict[str, ToolDefinition] = {}
        cursors: set[str] = set()
        cursor: str | None = None
        for _ in range(self._options.max_pages):
            try:
                page = await link.request("tools/list", {} if cursor is None else {"cursor": cursor})
            except sdk.SdkError as error:
                if error.code == _METHOD_NOT_FOUND and cursor is None:
                    return ()  # a server without tools need not know the method
                raise
            for tool in read_tools(page, ServerName(self._server.name), self._notify):
                if tools.setdefault(tool.tool, tool) is not tool:
                    self._notify("bad_tool", f"{tool.tool}: listed twice, the first one counts")
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return tuple(tools.values())
            if cursor in cursors:
                self._notify("bad_tool", f"the listing goes round in a circle at cursor {cursor!r}")
                return tuple(tools.values())
            cursors.add(cursor)
        self._notify(
            "bad_tool", f"the listing has more than {self._options.max_pages} pages, the rest is left"
        )
        return tuple(tools.values())

    async def _broken(self, link: "sdk.Link") -> ServerFailed:
        with anyio.move_on_after(_EXIT_SEEN_S):
            await self._process.wait_exit()
        if self.exit is not None:
            cause = f"the server ended during {self._method} ({self.exit})"
        else:
            cause = f"the connection broke during {self._method}: {link.stream.broken}"
        return self._failed(cause)

    def _failed(self, cause: str, remedy: str | None = None) -> ServerFailed:
        spawned = self._phase != "spawn"
        ended = self.exit if spawned else None
        failure = ServerFailure(
            server=ServerName(self._server.name),
            phase=self._phase,
            command=self._redactor.command_line(self._server.command, self._server.args),
            cause=self._redactor.text(plain_text(cause)),
            exit_status=ended.status if ended else None,
            signal=ended.signal if ended else None,
            elapsed_s=time.monotonic() - self._started,
            stderr_tail=self._redactor.text(self._process.stderr_tail()) if spawned else "",
            remedy=remedy_for(self._server.command, self._phase) if remedy is None else remedy,
        )
        return ServerFailed(failure)

    def _notify(self, kind: NoticeKind, text: str) -> None:
        if self._options.on_notice is not None:
            shown = self._redactor.text(plain_text(text))[:_NOTICE_CHARS]
            self._options.on_notice(ServerNotice(kind, shown))


@functools.cache
def require_mcp() -> None:
    """Check that the MCP SDK is installed and new enough, without importing it (R14.4).

    Raises:
        MissingDependencyError: It is not; the text has the command.
    """
    try:
        version = importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependencyError(
            "MCP servers need the package mcp, which is not installed. Install it: pip install 'grue[mcp]'"
        ) from None
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < (2, 3):
        raise MissingDependencyError(
            f"mcp {version} is installed, grue needs 2.3 or later. Upgrade it: pip install -U 'mcp>=2.3,<3'"
        )
