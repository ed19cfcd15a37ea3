"""A client for one MCP server, a process or a URL: reach it, initialize, list, call, close.

A process is spawned first and the SDK imported afterwards, so that both start up at the same time. Every
failure leaves as one flat error with the root cause; exceptions of the SDK and exception groups stay inside.
"""

import functools
import importlib.metadata
import re
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

import anyio
from msgspec import Struct
from msgspec.structs import replace

from grue.errors import MissingDependencyError
from grue.loading import load
from grue.mcp_transport.http import HttpServer, HttpWire
from grue.mcp_transport.listing import read_tools
from grue.mcp_transport.output_schemas import OutputSchemas
from grue.mcp_transport.process_group import ProcessRegistry, SpawnError
from grue.mcp_transport.server_requests import Abilities
from grue.mcp_transport.stdio import ProcessLimits, StdioServer, leaves_no_time
from grue.mcp_transport.wire import ProcessWire, Wire
from grue.messages import (
    JsonObject,
    OnToolDrift,
    ServerFailure,
    ServerName,
    ToolCallResult,
    ToolDefinition,
    ToolDrifted,
)
from grue.protocol.safe_text import beginning, plain_text, well_formed
from grue.protocol.tool_lock import ServerPins, screen
from grue.protocol.tool_results import from_mcp, is_kept_as_text, is_small, json_value
from grue.runtime.aside import aside
from grue.tool_sessions.connection import Ending, Listing, ServerExit
from grue.tool_sessions.failures import (
    Phase,
    ServerFailed,
    ToolRefusedError,
    ToolTimedOutError,
    WireFault,
    first_fault,
)
from grue.tool_sessions.notices import NoticeKind, ServerNotice

if TYPE_CHECKING:
    from grue.mcp_transport import sdk

McpServer: TypeAlias = StdioServer | HttpServer
"""How a server is reached: a program to start, or a URL."""

_NOTICE_CHARS = 500
_MESSAGE_CHARS = 100_000
_MOST_NOTICES = 500
"""Of one kind, during one request; a flood of them would fill the trace and delay the turn."""
_METHOD_NOT_FOUND = -32601


class Pinning(Struct, frozen=True, kw_only=True):
    """Which definitions of a server's tools are approved, and what becomes of others.

    Attributes:
        on_drift: Called with each drift, once a session, as `on_notice` is.
    """

    pins: ServerPins
    policy: OnToolDrift
    on_drift: Callable[[ToolDrifted], None] | None = None


class ClientOptions(Struct, frozen=True, kw_only=True):
    """How a client treats its server.

    Attributes:
        limits: How a process is ended, and how much any server may say at once.
        abilities: What the server is offered beside calling its tools.
        max_pages: Pages of the listing that are read at most.
        on_notice: Called with each notice, in the event loop; must not block or raise.
        pinning: What is approved of its tools; `None`: all that it lists.
    """

    limits: ProcessLimits = ProcessLimits()
    abilities: Abilities = Abilities()
    max_pages: int = 100
    on_notice: Callable[[ServerNotice], None] | None = None
    pinning: Pinning | None = None


class McpClient:
    """The MCP session with one server. The task that enters it opens, calls and leaves it.

    Entering spawns the process, if the server is one. Leaving closes it within `limits`, cancelled or not;
    afterwards no process of its group is alive, and `exit` and `ending` say how it went (R3.5-R3.7, P9). A
    session over HTTP is ended at the server, which gets a second for that.

    Args:
        server: How it is reached. Its options hold for what is listed and for how long things may take.
        registry: Knows the process until it is reaped.

    Raises:
        ServerFailed: On entering, phase `spawn`.
        MissingDependencyError: On entering: the `mcp` package is absent or too old.
    """

    def __init__(
        self, server: McpServer, registry: ProcessRegistry, options: ClientOptions | None = None
    ) -> None:
        self._server = server
        self._options = options or ClientOptions()
        self._wire = _wire(server, registry, self._options.limits)
        self._link: sdk.Link | None = None
        self._outputs = OutputSchemas(self._notify)
        self._drifted: set[ToolDrifted] = set()
        self._noticed: Counter[NoticeKind] = Counter()
        self._phase: Phase = "spawn"
        self._started = 0.0
        self._entering_s = 0.0

    async def __aenter__(self) -> Self:
        require_mcp()
        self._started = time.monotonic()
        try:
            await self._wire.__aenter__()
        except SpawnError as error:
            remedy = await self._wire.remedy("spawn", missing=error.missing is not None)
            raise await self._failed(str(error), remedy) from error
        self._entering_s = time.monotonic() - self._started
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if self._link is not None and not leaves_no_time(exc_type):
                await self._link.__aexit__(None, None, None)
        finally:
            await self._wire.__aexit__(exc_type, exc, tb)

    @property
    def alive(self) -> bool:
        """Neither its process nor the connection has ended, as far as can be seen without asking it."""
        return self._wire.alive and (self._link is None or self._link.stream.broken is None)

    @property
    def pid(self) -> int | None:
        """The process id of the server, which is its group's too; `None` if it is no process of ours."""
        return self._wire.pid

    @property
    def exit(self) -> ServerExit | None:
        """How the process ended; `None` while it runs, or if there is none."""
        return self._wire.exit

    @property
    def ending(self) -> Ending | None:
        """What it took to end it; `None` while it runs, or if there is none."""
        return self._wire.ending

    @property
    def stderr_tail(self) -> str:
        """The end of what the process wrote to standard error, without secrets; empty if there is none."""
        return self._wire.stderr_tail

    async def open(self, timeout_s: float) -> Listing:
        """Initialize the session and list the tools, all pages of them (R3.3, P8, P37).

        Args:
            timeout_s: For entering, handshake and listing together (R13.3), or less where the server's
                options say so; importing the SDK does not count.

        Raises:
            ServerFailed: Phase `initialize` or `list`: refused, timed out, died, spoke something else.
        """
        load("grue.mcp_transport.sdk")
        from grue.mcp_transport import sdk

        timeout_s = self._server.options.startup_limit(timeout_s)
        self._phase = "initialize"
        abilities = replace(self._options.abilities, roots=self._server.options.roots)
        link = sdk.Link(self._wire.stream(self._notify), self._notify, abilities)
        # Entered before any time limit: a scope that ended inside the session's task group would be left
        # in the wrong order.
        await link.__aenter__()
        self._link = link
        try:
            with anyio.fail_after(max(0.0, timeout_s - self._entering_s)):
                return await self._handshake(link)
        except TimeoutError as error:
            cause = f"no answer to {self._method} within {timeout_s:g} s"
            remedy = await self._wire.remedy(self._phase, timed_out=True)
            raise await self._failed(cause, remedy) from error
        except sdk.SdkError as error:
            if sdk.is_closed(error, link.stream):
                raise await self._broken(link) from error
            if isinstance(error.data, WireFault):
                raise await self._failed(error.data.cause, error.data.remedy) from error
            raise await self._failed(f"{self._method} failed: {error.message} ({error.code})") from error
        except (RuntimeError, ValueError) as error:
            cause = f"its answer to {self._method} is not usable: {first_fault(error)}"
            raise await self._failed(cause) from error

    async def call(self, tool: str, arguments: JsonObject, timeout_s: float) -> ToolCallResult:
        """Call a tool and return what it answered, an error of the tool's own included (R11).

        A result that is not what the tool's output schema promises is an error too.

        Cancelling tells the server that the call is cancelled.

        Args:
            tool: Bare name, as the server knows it.
            arguments: A JSON object.
            timeout_s: Holds whatever the server does, even if it has stopped reading; less where the server's
                options say so.

        Raises:
            ToolTimedOutError: No answer in time; the server was told that the call is cancelled.
            ToolRefusedError: The server answered with a JSON-RPC error, or with nothing usable.
            ServerFailed: The server died or the connection broke; no further call can succeed.
        """
        from grue.mcp_transport import sdk

        if self._link is None:
            raise RuntimeError("open() the client before calling a tool")
        self._phase = "call"
        self._noticed.clear()
        timeout_s = self._server.options.call_limit(timeout_s)
        try:
            with anyio.fail_after(timeout_s):
                answer = await self._link.request("tools/call", {"name": tool, "arguments": arguments})
                return await self._read(tool, answer)
        except TimeoutError as error:
            raise ToolTimedOutError(tool, timeout_s) from error
        except sdk.SdkError as error:
            if sdk.is_closed(error, self._link.stream):
                raise await self._broken(self._link) from error
            fault = error.data if isinstance(error.data, WireFault) else None
            if fault is not None and fault.ends_session:
                raise await self._failed(fault.cause, fault.remedy) from error
            text = self._wire.redactor.text(plain_text(error.message[:_MESSAGE_CHARS]))
            details = None if fault is not None else json_value(error.data)
            raise ToolRefusedError(text, code=error.code, details=details) from error

    async def _read(self, tool: str, answer: JsonObject) -> ToolCallResult:
        """Read a result; a large one in a thread, so that it does not hold up the event loop."""
        if is_kept_as_text(answer):
            self._notify("too_large", f"{tool}: a result with very many values is kept as its JSON text")
        if is_small(answer):
            result = from_mcp(answer)
        else:
            result = await aside(from_mcp, answer)
        return await self._outputs.checked(tool, answer, result)

    async def refresh_tools(self, timeout_s: float) -> tuple[ToolDefinition, ...] | None:
        """Return the tools, listed anew, if the server says that they have changed.

        A listing that fails is noticed and leaves things as they are: the next call tells what is wrong.
        """
        from grue.mcp_transport import sdk

        link = self._link
        if link is None or not link.tools_changed:
            return None
        link.tools_changed = False
        try:
            with anyio.fail_after(timeout_s):
                return self._offered(await self._list(link))
        except (TimeoutError, sdk.SdkError, RuntimeError, ValueError) as error:
            self._notify("bad_tool", f"its new listing is not to be had: {first_fault(error)}")
            return None

    async def still_there(self, timeout_s: float) -> bool:
        """Say whether a session that has waited for its use still is one.

        A process tells by itself. Of a server by URL only asking tells: it may have been started anew, and
        know nothing of the session.
        """
        from grue.mcp_transport import sdk

        link = self._link
        if link is None or not self.alive:
            return False
        if self.pid is not None:
            return True
        try:
            with anyio.fail_after(timeout_s):
                await link.request("ping", {})
        except TimeoutError:
            return False
        except sdk.SdkError as error:
            # A refusal is an answer, too.
            return not isinstance(error.data, WireFault) and not sdk.is_closed(error, link.stream)
        return True

    @property
    def _method(self) -> str:
        return self._phase if self._phase == "initialize" else f"tools/{self._phase}"

    async def _handshake(self, link: "sdk.Link") -> Listing:
        welcome = await link.initialize()
        self._phase = "list"
        return Listing(
            tools=self._offered(await self._list(link)),
            protocol_version=plain_text(welcome.protocol_version),
            server_version=plain_text(welcome.server_version),
            instructions=well_formed(welcome.instructions),
        )

    def _offered(self, listed: tuple[ToolDefinition, ...]) -> tuple[ToolDefinition, ...]:
        """Return the tools that configuration and tool lock let the server offer."""
        tools = self._server.options.select(listed, self._notify)
        pinning = self._options.pinning
        if pinning is not None:
            tools, notes = screen(pinning.pins, ServerName(self._server.name), tools, pinning.policy)
            for note in notes:
                if note not in self._drifted and pinning.on_drift is not None:
                    pinning.on_drift(note)
            self._drifted.update(notes)
        self._outputs.declare(tools)
        return tools

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
        return await self._failed(await self._wire.broken(self._method, link.stream.broken))

    async def _failed(self, cause: str, remedy: str | None = None) -> ServerFailed:
        wire = self._wire
        ended = wire.exit
        failure = ServerFailure(
            server=ServerName(self._server.name),
            phase=self._phase,
            command=wire.address,
            cause=wire.redactor.text(plain_text(cause[:_MESSAGE_CHARS])),
            exit_status=ended.status if ended else None,
            signal=ended.signal if ended else None,
            elapsed_s=time.monotonic() - self._started,
            stderr_tail=wire.stderr_tail,
            remedy=await wire.remedy(self._phase) if remedy is None else remedy,
        )
        return ServerFailed(failure)

    def _notify(self, kind: NoticeKind, text: str) -> None:
        """Hand a notice on; of too many of one kind during one request the rest is left out."""
        self._noticed[kind] += 1
        if self._options.on_notice is None or self._noticed[kind] > _MOST_NOTICES:
            return
        # Before anything is searched in it: it may be megabytes.
        shown = self._wire.redactor.text(plain_text(beginning(text, 4 * _NOTICE_CHARS)))[:_NOTICE_CHARS]
        self._options.on_notice(ServerNotice(kind, shown))
        if self._noticed[kind] == _MOST_NOTICES:
            text = f"{_MOST_NOTICES} notices of the kind {kind} during one request: further ones are left out"
            self._options.on_notice(ServerNotice("too_large", text))


def _wire(server: McpServer, registry: ProcessRegistry, limits: ProcessLimits) -> Wire:
    match server:
        case StdioServer():
            return ProcessWire(server, registry, limits)
        case HttpServer():
            return HttpWire(server, limits)


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
