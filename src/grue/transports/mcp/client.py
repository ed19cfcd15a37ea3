"""`McpClient`: an MCP session with one server, over the pipes of a process or over HTTP.

A process is spawned before the SDK is imported, so that the server starts during the import.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
import anyio.to_thread
from msgspec.structs import replace

from grue import messages as m
from grue.errors import TraceError
from grue.policies import NoticeKind, ServerPhase
from grue.protocol.json_text import json_object, json_value
from grue.protocol.tools.lock import screen
from grue.protocol.tools.results import content_blocks, from_mcp, is_kept_as_text, is_small
from grue.protocol.tools.server_tasks import created_task
from grue.runtime.loading import is_loaded, load, load_all
from grue.runtime.loops.beside_loop import aside, leaves_no_time
from grue.runtime.processes.process_group import ProcessRegistry, SpawnError
from grue.runtime.processes.server_gate import ServerPlace, server_gate
from grue.runtime.safe_text import beginning, plain_text, well_formed
from grue.tool_sessions import failures
from grue.tool_sessions.connection import ConnectionStatus, Listing, SeenListing
from grue.tool_sessions.server_specs import McpServer, StdioServer, in_its_box
from grue.transports.mcp.client_options import ClientOptions
from grue.transports.mcp.listing import ListedTools, read_pages
from grue.transports.mcp.process_wire import ProcessWire
from grue.transports.mcp.sdk_version import require_mcp

if TYPE_CHECKING:
    from grue.transports.mcp import sdk, session_parts
    from grue.transports.mcp.http_wire import HttpWire

T = TypeVar("T")

_PARTS = "grue.transports.mcp.session_parts"  # imported by `open`; it imports the SDK
_NOTICE_CHARS = 500
_NOISE_CHARS = 80  # most of the first output that is not MCP, in the error of a start that timed out
_MESSAGE_CHARS = 100_000
_MAX_NOTICES = 500  # most notices of one kind in one request: more would fill the trace and delay the turn
_METHOD_NOT_FOUND = -32601
_INVALID_PARAMS = -32602
_INTERNAL_ERROR = -32603
_VISIT_FIRST = -32042  # the error code with which a server asks the user to visit a page first
_KEPT_S = 3600.0  # how long a server is asked to keep a task's result: a killed turn may be resumed later
_BAD_ARGUMENTS = "the call was not sent, because its arguments are not what the tool's input schema says"


class McpClient:
    """An MCP session with one server; a `ToolConnection`. One task must enter, use and leave it.

    Without a usable `mcp` package, entering raises `MissingDependencyError`. After leaving, no process of the
    server's process group is alive, unless it is stuck in the kernel, and `status` says how the process
    ended. For a server over HTTP, leaving asks the server to end the session, for 1 s at most.

    Source: R3.5-R3.7, P9
    """

    def __init__(
        self, server: McpServer, registry: ProcessRegistry, options: ClientOptions | None = None
    ) -> None:
        self._server = server
        self._options = options or ClientOptions()
        self._wire = _wire(server, registry, self._options)
        self._link: sdk.Link | None = None
        self._inputs: session_parts.InputSchemas
        self._outputs: session_parts.OutputSchemas
        self._as_tasks: frozenset[str] = frozenset()
        self._drifted: set[m.ToolDrifted] = set()
        self._checked: m.JsonObject | None = None
        self._noticed: Counter[NoticeKind] = Counter()
        self._noise = ""  # the first output that is not MCP
        self._phase: ServerPhase = "spawn"
        self._lost = False
        self._started = 0.0
        self._entering_s = 0.0
        self._place: ServerPlace | None = None

    async def __aenter__(self) -> Self:
        require_mcp()
        self._started = time.monotonic()
        gate = server_gate()
        if gate is not None and isinstance(self._server, StdioServer):
            place = await gate.admit()
            if isinstance(place, str):
                raise await self._failed(f"the server may not start: {place}")
            self._place = place
        self._started = time.monotonic()
        try:
            await self._wire.__aenter__()
        except BaseException as error:
            self._leave_place()
            if not isinstance(error, SpawnError):
                raise
            remedy = error.remedy or await self._wire.remedy("spawn", missing=error.missing is not None)
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
            try:
                await self._wire.__aexit__(exc_type, exc, tb)
            finally:
                self._leave_place()

    def _leave_place(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            place.leave()

    @property
    def status(self) -> ConnectionStatus:
        """The server's process, and whether the process and the connection still work. Sends nothing."""
        status, link = self._wire.status, self._link
        if link is None:
            return status
        alive = status.alive and not self._lost and link.stream.broken is None
        return replace(status, alive=alive, last_request_id=link.stream.last_request_id)

    async def open(self, timeout_s: float) -> Listing:
        """Initialize the session and list the tools; raises `ServerFailed`.

        Source: R3.3, R13.3, P8, P37
        """
        if self._options.before_import is not None and not is_loaded(_PARTS, *self._wire.modules):
            await self._options.before_import()
            await anyio.to_thread.run_sync(load_all, _PARTS, *self._wire.modules, abandon_on_cancel=True)
        load(_PARTS)
        from grue.transports.mcp import sdk, session_parts

        self._inputs = session_parts.InputSchemas(self._notify)
        self._outputs = session_parts.OutputSchemas(self._notify)
        self._phase = "initialize"
        abilities = replace(self._options.abilities, roots=self._server.options.roots)
        stream, name = self._wire.stream(self._notify), m.ServerName(self._server.name)
        link = sdk.Link(stream, self._notify, abilities, server=name, spoken=self._options.spoken())
        # Enter the session's task group outside the cancel scope of the time limit: the group stays open when
        # `open` returns, and anyio raises if a scope ends before a task group that was entered inside it.
        await link.__aenter__()
        self._link = link
        try:
            with anyio.fail_after(max(0.0, timeout_s - self._entering_s)):
                return await self._handshake(link)
        except TimeoutError as error:
            noise = f", but output that is not MCP: {self._noise}" if self._noise else ""
            cause = f"no answer to {self._method} within {timeout_s:g} s{noise}"
            remedy = await self._wire.remedy(self._phase, timed_out=True)
            raise await self._failed(cause, remedy) from error
        except sdk.SdkError as error:
            if sdk.is_closed(error, link.stream):
                raise await self._broken(link) from error
            if isinstance(error.data, failures.WireFault):
                raise await self._failed_by(error.data) from error
            raise await self._failed(f"{self._method} failed: {error.message} ({error.code})") from error
        except (RuntimeError, ValueError) as error:
            cause = f"its answer to {self._method} is not usable: {failures.first_fault(error)}"
            raise await self._failed(cause) from error

    async def refusal(self, tool: str, arguments: m.JsonObject) -> str | None:
        """Return why the tool's input schema refuses a call; `None`: it accepts the call, or is not used."""
        if not self._server.options.check_arguments:
            return None
        fault = self._inputs.fault(tool, arguments)
        self._checked = arguments if fault is None else None
        return None if fault is None else f"{_BAD_ARGUMENTS}: {fault}"

    async def call(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.ToolCallResult:
        """Call a tool and return its result, which may be an error result of the tool.

        A call that the tool's input schema refuses is not sent, unless the server's options say otherwise. A
        result that does not match the output schema becomes an error. If the server makes an MCP task of the
        call, this method waits for the task's result. If the caller is cancelled, the server gets a notice.

        Raises `ToolTimedOutError`; `ToolRefusedError`, also for an unusable answer; `ServerFailed`, after
        which no call can succeed; and `HostCodeFailed` after a Ctrl-C in the host's `elicit`.

        Source: R11
        """
        result, _ = await self._call(tool, arguments, timeout_s)
        return result

    async def call_with_blocks(
        self, tool: str, arguments: m.JsonObject, timeout_s: float
    ) -> tuple[m.ToolCallResult, tuple[m.JsonObject, ...]]:
        """Call a tool as `call` does. Return the result, and all content blocks of the server's answer."""
        result, answer = await self._call(tool, arguments, timeout_s)
        return result, await _off_loop(content_blocks, answer)

    async def finish_task(self, tool: str, task: m.ToolTask, timeout_s: float) -> m.ToolCallResult:
        """Wait for the result of an MCP task that an interrupted turn has started. Raises as `call` does."""
        with self._limited(tool, timeout_s):
            return await self._read(tool, await self._follow(task, at_once=True))

    async def request(self, method: str, params: m.JsonObject, timeout_s: float) -> m.JsonObject:
        """Send any request, such as for prompts, and return the raw result. Raises as `call` does."""
        with self._limited(method, timeout_s):
            answer = await self._request(method, params)
        return await _off_loop(json_object, answer)

    async def _call(
        self, tool: str, arguments: m.JsonObject, timeout_s: float
    ) -> tuple[m.ToolCallResult, m.JsonObject]:
        self._opened.stream.last_request_id = ""
        checked, self._checked = self._checked, None
        with self._limited(tool, timeout_s) as limit_s:
            refused = None if checked is arguments else await self.refusal(tool, arguments)
            if refused is not None:
                raise failures.ToolRefusedError(refused, code=_INVALID_PARAMS)
            answer = await self._answer(tool, arguments, limit_s)
            result = await self._read(tool, answer)
            said = result.error_message or ""
            if result.is_error and (by_sandbox := self._wire.refusals(said)):
                result = replace(result, error_message=f"{said}\n{by_sandbox}")
            return result, answer

    @contextmanager
    def _limited(self, name: str, timeout_s: float) -> Iterator[float]:
        limit_s = self._server.options.call_limit(timeout_s)
        try:
            with anyio.fail_after(limit_s):
                yield limit_s
        except TimeoutError as error:
            raise failures.ToolTimedOutError(name, limit_s) from error

    async def _answer(self, tool: str, arguments: m.JsonObject, timeout_s: float) -> m.JsonObject:
        params: m.JsonObject = {"name": tool, "arguments": arguments}
        form = self._opened.task_form
        if form == "experimental" and tool in self._as_tasks:
            params["task"] = {"ttl": int(max(timeout_s, _KEPT_S) * 1000)}
        answer = await self._request("tools/call", params)
        try:
            task = created_task(answer, form)
        except ValueError as error:
            raise failures.ToolRefusedError(str(error), code=_INTERNAL_ERROR) from error
        if task is None:
            return answer
        self._options.on_task(tool, task)
        return await self._follow(task)

    async def _follow(self, task: m.ToolTask, *, at_once: bool = False) -> m.JsonObject:
        from grue.transports.mcp.session_parts import LOST, TaskOfCall

        link = self._opened
        if link.task_form is None:
            raise failures.ToolRefusedError(f"{LOST}, because it has no tasks", code=_METHOD_NOT_FOUND)

        following = TaskOfCall(
            task,
            link.task_form,
            ask=self._request,
            respond=lambda questions: self._exchange(link.respond(questions)),
            progress=lambda text: self._notify("progress", text),
        )
        return await following.result(at_once=at_once)

    @property
    def _opened(self) -> "sdk.Link":
        if self._link is None:
            raise RuntimeError("open() the client before using it")
        return self._link

    async def _request(self, method: str, params: m.JsonObject) -> m.JsonObject:
        self._phase = "call"
        self._noticed.clear()
        return await self._exchange(self._opened.request(method, params))

    async def _exchange(self, sent: Awaitable[m.JsonObject]) -> m.JsonObject:
        from grue.transports.mcp import sdk

        link = self._opened
        try:
            return await sent
        except sdk.SdkError as error:
            if sdk.is_closed(error, link.stream):
                self._lost = True
                raise await self._broken(link) from error
            fault = error.data if isinstance(error.data, failures.WireFault) else None
            if fault is not None and fault.ends_session:
                self._lost = True
                raise await self._failed_by(fault) from error
            said = f"{error.message}{_pages_to_visit(error.code, error.data)}"
            text = self._wire.redactor.text(plain_text(said[:_MESSAGE_CHARS]))
            details = None if fault is not None else json_value(error.data)
            raise failures.ToolRefusedError(text, code=error.code, details=details) from error

    async def _read(self, tool: str, answer: m.JsonObject) -> m.ToolCallResult:
        if is_kept_as_text(answer):
            self._notify("too_large", f"{tool}: a result with very many values is kept as its JSON text")
        result = await _off_loop(from_mcp, answer)
        return self._outputs.checked(tool, answer, result)

    async def refresh_tools(self, timeout_s: float) -> tuple[m.ToolDefinition, ...] | None:
        """Return the tools if the server has announced a change, and lists them; otherwise `None`."""
        from grue.transports.mcp import sdk

        link = self._link
        if link is None or not link.stream.tools_changed:
            return None
        link.stream.tools_changed = False
        try:
            with anyio.fail_after(timeout_s):
                return self._select(await self._list(link))
        except (TimeoutError, sdk.SdkError, RuntimeError, ValueError) as error:
            # List again at the next call of this method. But after a timeout wait for a further announcement:
            # this method is called before each tool call, which could then always wait for `timeout_s`.
            late = isinstance(error, TimeoutError)
            link.stream.tools_changed |= not late
            why = f"no answer within {timeout_s:g} s" if late else failures.first_fault(error)
            self._notify("bad_tool", f"listing its tools again failed: {why}")
            return None
        except BaseException:  # cancelled: a kept session still has to list its tools again
            link.stream.tools_changed = True
            raise

    async def still_there(self, timeout_s: float) -> bool:
        """Return whether an idle session can still be used; a server over HTTP is asked."""
        from grue.transports.mcp import sdk

        link = self._link
        status = self.status
        if link is None or not status.alive:
            return False
        if status.pid is not None:
            return True
        try:
            with anyio.fail_after(timeout_s):
                await link.request("ping", {})
        except TimeoutError:
            return False
        except sdk.SdkError as error:
            # If the server itself has answered with a JSON-RPC error, the session still exists.
            return not isinstance(error.data, failures.WireFault) and not sdk.is_closed(error, link.stream)
        return True

    @property
    def _method(self) -> str:
        return self._phase if self._phase == "initialize" else f"tools/{self._phase}"

    async def _handshake(self, link: "sdk.Link") -> Listing:
        await link.initialize()
        version, server = plain_text(link.protocol_version), plain_text(link.server_version)
        self._phase = "list"
        return Listing(
            tools=self._select(await self._list(link, self._options.on_listed)),
            protocol_version=version,
            server_version=server,
            instructions=well_formed(link.instructions),
        )

    def _select(self, listed: tuple[m.ToolDefinition, ...]) -> tuple[m.ToolDefinition, ...]:
        """Return the tools that options and tool lock allow, and use their schemas for later checks."""
        tools = in_its_box(self._server, self._server.options.select(listed, self._notify))
        options = self._options
        if options.pins is not None:
            name = m.ServerName(self._server.name)
            tools, notes = screen(options.pins, name, tools, options.on_tool_drift)
            for note in notes:
                if note not in self._drifted:
                    options.on_drift(note)
            self._drifted.update(notes)
        self._inputs.declare(tools)
        self._outputs.declare(tools)
        return tools

    async def _list(
        self, link: "sdk.Link", on_listed: Callable[[SeenListing], None] | None = None
    ) -> tuple[m.ToolDefinition, ...]:
        from grue.transports.mcp import sdk

        async def page(params: m.JsonObject) -> m.JsonObject:
            try:
                return await link.request("tools/list", params)
            except sdk.SdkError as error:
                if error.code == _METHOD_NOT_FOUND and not params:
                    return {"tools": []}  # a server without tools need not support `tools/list`
                raise

        server, most = m.ServerName(self._server.name), self._options.max_pages
        listed: ListedTools = await read_pages(page, server, most, self._notify)
        self._as_tasks = listed.as_tasks
        if on_listed is not None:
            expires_at = None if listed.ttl_s is None else time.time() + listed.ttl_s
            spoken = plain_text(link.protocol_version)
            on_listed(SeenListing(listed.tools, spoken, expires_at, listed.private))
        return listed.tools

    async def _broken(self, link: "sdk.Link") -> failures.ServerFailed:
        return await self._failed(await self._wire.broken(self._method, link.stream.broken))

    async def _failed_by(self, fault: failures.WireFault) -> failures.ServerFailed:
        failed = await self._failed(fault.cause, fault.remedy)
        return failures.ServerFailed(replace(failed.failure, needs_login=fault.needs_login))

    async def _failed(self, cause: str, remedy: str | None = None) -> failures.ServerFailed:
        wire, status = self._wire, self._wire.status
        ended = status.exit
        if remedy is None:
            remedy = await wire.remedy(self._phase)
        failure = m.ServerFailure(
            server=m.ServerName(self._server.name),
            phase=self._phase,
            command=wire.address,
            cause=wire.redactor.text(plain_text(cause[:_MESSAGE_CHARS])),
            exit_status=ended.status if ended else None,
            signal=ended.signal if ended else None,
            elapsed_s=time.monotonic() - self._started,
            stderr_tail=status.stderr_tail,
            remedy=plain_text(remedy),  # a package or a server may have written a part of it
        )
        return failures.ServerFailed(failure)

    def _notify(self, kind: NoticeKind, text: str) -> None:
        self._noticed[kind] += 1
        on_notice = self._options.on_notice
        if on_notice is None or self._noticed[kind] > _MAX_NOTICES:
            return
        # Cut the text before searching it for secrets, because it may have megabytes.
        shown = self._wire.redactor.text(plain_text(beginning(text, 4 * _NOTICE_CHARS)))[:_NOTICE_CHARS]
        try:
            on_notice(kind, shown)
        except TraceError:
            # Raise it only once: the SDK logs it, which makes a notice. If that raised too, the session would
            # end with a group of errors. The next message that is recorded raises the error for the caller.
            self._options = replace(self._options, on_notice=None)
            raise
        if kind == "noise" and not self._noise:
            self._noise = shown[:_NOISE_CHARS].rstrip()
        if self._noticed[kind] == _MAX_NOTICES:
            text = f"{_MAX_NOTICES} notices of the kind {kind} during one request: further ones are left out"
            on_notice("too_large", text)


def _pages_to_visit(code: int, data: object) -> str:
    """Return the pages that a server's error asks the user to visit, as lines; empty: it asks for none."""
    pages = data.get("elicitations") if code == _VISIT_FIRST and isinstance(data, dict) else None
    return "".join(
        f"\n{page.get('message') or 'Visit'}: {page.get('url')}"
        for page in (pages if isinstance(pages, list) else ())
        if isinstance(page, dict)
    )


async def _off_loop(convert: Callable[[m.JsonObject], T], answer: m.JsonObject) -> T:
    """Convert an answer. A large one is converted in a thread, so that the event loop is not blocked."""
    return convert(answer) if is_small(answer) else await aside(convert, answer)


def _wire(server: McpServer, registry: ProcessRegistry, options: ClientOptions) -> "ProcessWire | HttpWire":
    if isinstance(server, StdioServer):
        return ProcessWire(server, registry, options.limits)
    from grue.transports.mcp.http_wire import HttpWire

    return HttpWire(server, options.limits, options.on_secret)
