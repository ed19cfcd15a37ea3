"""An MCP server that follows the specification, for tests: the official SDK's server with additions.

```python
server = MockServer("shop")

@server.tool()
def price(article: str) -> int:
    return 12

with server.serve_http() as url:
    ...
```

Tools, resources and prompts are functions, added with the SDK's decorators (`tool`, `resource`, `prompt`,
`completion`). `reference_server` in `mock_features.py` returns a server that uses nearly all features of MCP.
"""

import logging
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from grue.errors import MissingDependencyError
from grue.protocol.tools.json_schema import fault_of

try:
    import mcp_types as types
    import uvicorn
    from anyio.abc import ObjectReceiveStream
    from mcp.server.connection import Connection
    from mcp.server.lowlevel.server import NotificationOptions, Server
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
    from mcp.shared.exceptions import MCPError as ProtocolError
    from mcp.shared.message import SessionMessage
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS
    from pydantic import ValidationError
except ImportError as error:
    raise MissingDependencyError(
        "The mock server needs the package 'mcp', version 2 or later: pip install 'mcp>=2.3,<3'"
    ) from error


class _WithoutInitialize(ObjectReceiveStream[SessionMessage | Exception]):
    # Answers `initialize` itself, with an error: after an `initialize`, even a refused one, the SDK's server
    # expects older revisions on the connection.

    def __init__(self, read: Any, write: Any) -> None:
        self._read = read
        self._write = write

    @property
    def last_context(self) -> Any:
        return getattr(self._read, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self._read.receive()
            request = item.message if isinstance(item, SessionMessage) else None
            if not isinstance(request, types.JSONRPCRequest) or request.method != "initialize":
                return item
            error = _unsupported((request.params or {}).get("protocolVersion")).error
            refusal = types.JSONRPCError(jsonrpc="2.0", id=request.id, error=error)
            await self._write.send(SessionMessage(message=refusal))

    async def aclose(self) -> None:
        await self._read.aclose()


def _unsupported(requested: object) -> ProtocolError:
    versions = {"supported": list(MODERN_PROTOCOL_VERSIONS), "requested": requested}
    return ProtocolError(types.UNSUPPORTED_PROTOCOL_VERSION, "Unsupported protocol version", versions)


_MOST_EVENTS = 10_000
_NUMBER = re.compile(r"[0-9]{1,9}")  # at most 9 digits: `int` raises for thousands of them


class MemoryEventStore(EventStore):
    """Keeps the newest 10,000 events of all streams together, so that a client can resume a stream."""

    def __init__(self) -> None:
        self._events: dict[int, tuple[str, types.JSONRPCMessage | None]] = {}
        self._last = 0

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Keep an event and return its id."""
        self._last += 1
        self._events[self._last] = (stream_id, message)
        self._events.pop(self._last - _MOST_EVENTS, None)
        return str(self._last)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the events after this one in its stream, and return the stream's id; `None`: no such event."""
        if not _NUMBER.fullmatch(last_event_id) or int(last_event_id) not in self._events:
            return None
        stream, _ = self._events[int(last_event_id)]
        later = [
            (number, message)
            for number, (of_stream, message) in self._events.items()
            if of_stream == stream and number > int(last_event_id)
        ]
        for number, message in later:
            if message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from starlette.applications import Starlette

Feature: TypeAlias = Literal[
    "tools", "resources", "templates", "subscriptions", "prompts", "completions", "logging"
]
Era: TypeAlias = Literal["both", "initialize", "stateless"]
FEATURES: tuple[Feature, ...] = get_args(Feature)
ERAS: tuple[Era, ...] = get_args(Era)
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

_METHODS: Mapping[Feature, tuple[str, ...]] = {
    "tools": ("tools/list", "tools/call"),
    "resources": ("resources/list", "resources/read"),
    "templates": ("resources/templates/list",),
    "subscriptions": ("resources/subscribe", "resources/unsubscribe", "subscriptions/listen"),
    "prompts": ("prompts/list", "prompts/get"),
    "completions": ("completion/complete",),
    "logging": ("logging/setLevel",),
}
_GRACE_S = 1  # how many seconds `serve_http` waits at its end for clients to disconnect
_STOP_S = 5.0  # how many seconds it waits for the server's thread, which a tool may block
F = TypeVar("F", bound=Callable[..., Any])
_logger = logging.getLogger(__name__)


class _OfClient:
    def __init__(self) -> None:
        self.subscribed: set[str] = set()
        self.log_level = "debug"


class MockServer(MCPServer[Any]):
    """A correct MCP server, for tests.

    Args:
        page_size: Number of items in a page of each list, at least 1; `None`: everything in one page.
        without: Features to switch off. Their methods are answered with "method not found".
        era: The protocol revisions that the server speaks. `initialize`: the older ones, in which a client
            begins with the request `initialize`. `stateless`: 2026-07-28, which does not have that request.
            `both`: all.

    Raises:
        MissingDependencyError: On import, if `mcp` is missing.
        ValueError: An argument is not as described.

    Source: L1, L3
    """

    def __init__(
        self,
        name: str = "mock",
        *,
        page_size: int | None = None,
        without: Sequence[Feature] = (),
        era: Era = "both",
    ) -> None:
        if page_size is not None and (not isinstance(page_size, int) or page_size < 1):
            raise ValueError(f"page_size is at least 1, not {page_size!r}")
        unknown = [feature for feature in without if feature not in FEATURES]
        if unknown:
            raise ValueError(f"there is no feature {unknown[0]!r}; the features are {', '.join(FEATURES)}")
        if era not in ERAS:
            raise ValueError(f"era is one of {', '.join(ERAS)}, not {era!r}")
        with _logging_as_it_is():
            super().__init__(name, version="1.0", middleware=[self._check_request])
        self._clients: dict[Connection, _OfClient] = {}
        self._page_size = page_size
        self._without = frozenset(without)
        self._era = era
        self._add_handlers(self._lowlevel_server)

    @property
    def subscribed(self) -> set[str]:
        """URIs that clients are subscribed to, with `resources/subscribe`."""
        return {uri for client in self._clients.values() for uri in client.subscribed}

    def logs(self, level: str, ctx: "ServerRequestContext[Any, Any]") -> bool:
        """Return whether `level` is at least the level that the client has set; default: `debug`."""
        return LOG_LEVELS.index(level) >= LOG_LEVELS.index(self._client(ctx).log_level)

    async def tell_updated(self, uri: str) -> None:
        """Tell the clients that have subscribed to a resource (`resources/subscribe`) that it has changed."""
        for connection, client in tuple(self._clients.items()):
            if uri in client.subscribed:
                await connection.send_resource_updated(uri)

    async def tell_tools_changed(self) -> None:
        """Tell all clients that began with `initialize` that the list of tools has changed."""
        for connection in tuple(self._clients):
            await connection.send_tool_list_changed()

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool. Arguments that its schema refuses are an error; the SDK would convert `"1"` to `1`."""
        tool = self._tool_manager.get_tool(name)
        fault = None if tool is None else fault_of(tool.parameters, arguments)
        if fault is not None:
            raise ToolError(f"Error executing tool {name}: invalid arguments: {fault}")
        return await super().call_tool(name, arguments, context)

    def completion(self) -> Callable[[F], F]:
        """Return a decorator for the function that completes arguments; no effect if `completions` is off."""
        if "completions" in self._without:
            return lambda function: function
        decorator: Callable[[F], F] = super().completion()  # type: ignore[no-untyped-call]
        return decorator

    async def serve_stdio(self) -> None:
        """Serve one client over standard input and output, until the input ends."""
        async with stdio_server() as (read, write):
            reading = _WithoutInitialize(read, write) if self._era == "stateless" else read
            await self._lowlevel_server.run(
                reading, write, self._lowlevel_server.create_initialization_options()
            )

    @contextmanager
    def serve_http(self, *, port: int = 0, transport: Literal["http", "sse"] = "http") -> Iterator[str]:
        """Serve over HTTP on loopback, in a thread, and yield the URL. Leaving the block stops the server.

        A tool that is no coroutine function and still runs 5 s later keeps its thread until it has ended.
        `port` 0 chooses a free port. The transport `http` is Streamable HTTP; `sse` is the older HTTP+SSE.

        Raises:
            OSError: The port is not available.
        """
        listener = socket.create_server(("127.0.0.1", port))
        http = uvicorn.Server(
            uvicorn.Config(
                self.app(transport),
                log_config=None,  # uvicorn's own would close all handlers of the program
                log_level="critical",
                lifespan="on",
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        name = f"mock server {self.name}"
        thread = threading.Thread(target=http.run, args=([listener],), name=name, daemon=True)
        thread.start()
        try:
            path = "/mcp" if transport == "http" else "/sse"
            yield f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        finally:
            http.should_exit = True
            thread.join(_STOP_S)
            listener.close()

    def app(self, transport: Literal["http", "sse"] = "http") -> "Starlette":
        """Return the server as an ASGI application."""
        if transport == "sse":
            return self.sse_app()
        return self.streamable_http_app(event_store=MemoryEventStore(), retry_interval=100)

    # --- What the SDK leaves to the application ---

    def _add_handlers(self, server: Server[Any]) -> None:
        # The SDK's HTTP transports call `create_initialization_options` without arguments. With the SDK's own
        # defaults, they would not declare that lists can change.
        changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
        options = partial(server.create_initialization_options, changes)
        server.create_initialization_options = options  # type: ignore[method-assign]
        templates = types.ListResourceTemplatesResult
        for method, listed, result, field in (
            ("tools/list", self.list_tools, types.ListToolsResult, "tools"),
            ("prompts/list", self.list_prompts, types.ListPromptsResult, "prompts"),
            ("resources/list", self.list_resources, types.ListResourcesResult, "resources"),
            ("resources/templates/list", self.list_resource_templates, templates, "resource_templates"),
        ):
            server.add_request_handler(
                method, types.PaginatedRequestParams, self._pages(listed, result, field)
            )
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        # Remove the handlers of features that are switched off, because the SDK declares a capability for
        # each handler. There is no public method that removes a handler.
        for feature in self._without:
            for method in _METHODS[feature]:
                server._request_handlers.pop(method, None)  # noqa: SLF001

    async def _check_request(
        self, ctx: "ServerRequestContext[Any, Any]", call_next: "CallNext"
    ) -> "HandlerResult":
        off = any(ctx.method in _METHODS[feature] for feature in self._without)
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        if off or (self._era == "initialize" and (modern or ctx.method == "server/discover")):
            raise ProtocolError(types.METHOD_NOT_FOUND, f"Method not found: {ctx.method}")
        if self._era == "stateless" and not modern:
            raise _unsupported(ctx.protocol_version)
        if not modern:
            self._client(ctx)
        self._require_known(ctx.method, ctx.params or {})
        try:
            return await call_next(ctx)
        except (ProtocolError, ValidationError):
            raise
        except Exception as error:  # otherwise the SDK would send the error code 0
            _logger.exception("The handler of %s raised an exception", ctx.method)
            raise ProtocolError(types.INTERNAL_ERROR, str(error)) from error

    def _client(self, ctx: "ServerRequestContext[Any, Any]") -> "_OfClient":
        connection = ctx.session._connection  # noqa: SLF001 - the SDK makes a new session for each request
        if connection not in self._clients:
            self._clients[connection] = _OfClient()
            connection.exit_stack.callback(self._clients.pop, connection, None)
        return self._clients[connection]

    def _require_known(self, method: str, params: Mapping[str, Any]) -> None:
        # MCP prescribes these JSON-RPC errors, but the SDK does not send them.
        match method, params:
            case "tools/call", {"name": str(name)} if self._tool_manager.get_tool(name) is None:
                raise ProtocolError(types.INVALID_PARAMS, f"Unknown tool: {name}")
            case "prompts/get", {"name": str(name)}:
                given = params.get("arguments") or {}
                missing = [each for each in self._required_of(name) if each not in given]
                if missing:
                    wanted = ", ".join(missing)
                    raise ProtocolError(types.INVALID_PARAMS, f"Missing required arguments: {wanted}")
            case "completion/complete", {"ref": {"type": "ref/prompt", "name": str(name)}}:
                self._required_of(name)
            case "completion/complete", {"ref": {"type": "ref/resource", "uri": str(uri)}}:
                templates = self._resource_manager.list_templates()
                known = {*(each.uri_template for each in templates)}
                if uri not in known | {str(each.uri) for each in self._resource_manager.list_resources()}:
                    raise ProtocolError(types.INVALID_PARAMS, f"Unknown resource: {uri}")

    def _required_of(self, prompt: str) -> list[str]:
        known = self._prompt_manager.get_prompt(prompt)
        if known is None:
            raise ProtocolError(types.INVALID_PARAMS, f"Unknown prompt: {prompt}")
        return [each.name for each in known.arguments or () if each.required]

    def _pages(
        self, listed: Callable[[], Awaitable[Sequence[Any]]], result: Callable[..., Any], field: str
    ) -> Callable[[Any, types.PaginatedRequestParams | None], Awaitable[Any]]:
        # The cursor of a page is the position of its first item. Other cursors are refused.
        async def list_page(_: Any, params: types.PaginatedRequestParams | None) -> Any:
            items = await listed()
            cursor = params.cursor if params is not None else None
            size = self._page_size or max(1, len(items))
            start = 0 if cursor is None else int(cursor) if _NUMBER.fullmatch(cursor) else -1
            if start < 0 or start % size or (start and start >= len(items)):
                raise ProtocolError(types.INVALID_PARAMS, f"Invalid cursor: {cursor!r}")
            following = start + size
            following_cursor = str(following) if following < len(items) else None
            return result(**{field: items[start:following]}, next_cursor=following_cursor)

        return list_page

    async def _subscribe(self, ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self._client(ctx).subscribed.add(str(params.uri))
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._client(ctx).subscribed.discard(str(params.uri))
        return types.EmptyResult()

    async def _set_level(self, ctx: Any, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self._client(ctx).log_level = params.level
        return types.EmptyResult()


@contextmanager
def _logging_as_it_is() -> Iterator[None]:
    # The constructor of the SDK's server changes the root logger, so restore it.
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
