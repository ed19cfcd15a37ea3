"""`McpManager`: connects MCP servers once, and calls their tools from synchronous code until it is closed.

If a program never closes its manager, the sessions end when the interpreter ends or the manager is
garbage-collected. If two servers have a tool of the same name, the bare name calls the later server's.
"""

import threading
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Literal, Self, TypeAlias, get_args

from msgspec import Struct

from grue import MCPError, Recorder, ToolClient, TurnLimits
from grue import messages as m
from grue.errors import MCPConfigError, MCPToolCallError, ToolChanged, ToolNotFound
from grue.hosting import ToolServer, error_for
from grue.hosts.skill_agent.facts import McpConnectionFailed, McpServerAbsent, McpToolShadowed
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.names import ToolRoutes, tool_routes

OnConnectFailure: TypeAlias = Literal["raise", "skip"]


class McpToolInfo(Struct, frozen=True):
    """A tool that can be called; pass its `name` to `call_tool`."""

    server_name: str
    name: str
    description: str
    input_schema: m.JsonObject


class McpCallResult(Struct, frozen=True):
    """The result of a call.

    Attributes:
        server_name: The server; empty if no server has such a tool.
        tool_name: The tool's bare name at that server; if no server has such a tool, the name as called.
        content: The server's content blocks; if there are none, one text block with `raw_text`.
        is_error: Whether the tool reported an error, or was not called, for example because it has changed.
        raw_text: The text of the content blocks. If they have none: the error, or the result as text or JSON.
    """

    server_name: str
    tool_name: str
    content: list[m.JsonObject]
    is_error: bool
    raw_text: str


class _Connected(Struct, frozen=True):
    """The state of a connected manager. This object is never changed, so reading it needs no lock."""

    client: ToolClient
    servers: tuple[str, ...]
    routes: ToolRoutes


class McpManager:
    """Keep sessions with MCP servers open, and call their tools; blocking. Any thread may use it.

    ```python
    with McpManager() as manager:
        manager.connect_all({"files": {"command": "mcp-files", "args": ["/home/me"]}})
        print(manager.call_tool("read_file", {"path": "notes.txt"}).raw_text)
    ```

    Calls to one server run one at a time, calls to different servers in parallel.

    Args:
        tool_call_timeout_s: Time limit in seconds for calls without a `timeout`.
        on_connect_failure: What happens if a server that is not `optional` cannot be connected. `raise`: the
            others are closed, and `connect_all` raises. `skip`: the others are used.
        optional: Names of servers that are left out if they cannot be connected.
        reconnect: Whether a server that has died is connected again before the next call to it; once for each
            server, so not after its second death. The call during which it died is never repeated.
    """

    def __init__(
        self,
        *,
        tool_call_timeout_s: float = 60.0,
        on_connect_failure: OnConnectFailure = "raise",
        optional: AbstractSet[str] = frozenset(),
        reconnect: bool = False,
        recorder: Recorder | None = None,
    ) -> None:
        if on_connect_failure not in get_args(OnConnectFailure):
            raise MCPConfigError(f"on_connect_failure= is 'raise' or 'skip', not {on_connect_failure!r:.60}.")
        self.tool_call_timeout_s = tool_call_timeout_s
        self.on_connect_failure: OnConnectFailure = on_connect_failure
        self._optional = optional
        self._recorder = recorder or Recorder()
        self._max_reconnects = 1 if reconnect else 0
        self._connected: _Connected | None = None
        self._absent: dict[m.ServerName, str] = {}
        # Reentrant: a signal handler may close the manager in the thread that connects it.
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close_all()

    @property
    def tools(self) -> list[McpToolInfo]:
        """The tools of all connected servers."""
        return [
            McpToolInfo(tool.server, name, tool.description, tool.input_schema)
            for name, tool in self.routes.listed.items()
        ]

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of the connected servers, in the order in which `connect_all` got them."""
        return () if self._connected is None else self._connected.servers

    @property
    def routes(self) -> ToolRoutes:
        """The tools by name: `listed` has the names in `tools`, `called` all names that `call_tool` takes."""
        return tool_routes(()) if self._connected is None else self._connected.routes

    def connect_all(self, servers: Mapping[str, ToolServer | Mapping[str, object]]) -> list[McpToolInfo]:
        """Connect the servers concurrently, and return their tools.

        Args:
            servers: By name: a tool server such as a `StdioServer`, or a mapping with `command`, `args`,
                `env` and `timeout_seconds`, or `url`, as under `servers` in `agent.yaml`.

        Raises:
            MissingDependencyError: The package `mcp` is absent or too old; the text says how to install it.
            MCPServerStartupError: A server that is not optional could not be connected, and
                `on_connect_failure` is `raise`.
            MCPConfigError: A server's configuration cannot be used.
            MCPError: The manager is connected already.
            KeyboardInterrupt: Ctrl-C was pressed. The sessions that were opened are closed.
        """
        with self._lock:
            if self._connected is not None:
                raise MCPError("This McpManager is connected already. Call close_all() first.")
            if not servers:
                return []
            from grue.config.yaml_tables import servers_of_entries  # imported here, because it loads pydantic

            self._connected = self._connect(servers_of_entries(servers))
            return self.tools

    def call_tool(
        self,
        tool_name: str,
        arguments: Mapping[str, object] | None = None,
        timeout: float | None = None,
        *,
        turn: int = 0,
        definition: m.ToolDefinition | None = None,
    ) -> McpCallResult:
        """Call a tool and return its result. A call that fails is not repeated.

        If the server has changed or removed the tool since it was listed, the tool is not called, the result
        is an error result that says so, and `tools` is updated.

        Args:
            tool_name: A bare name, or `server.tool`. An unknown name gives an error result.
            arguments: A JSON object; `None`: no arguments.
            timeout: In seconds, from when the call is sent; `None`: `tool_call_timeout_s`.
            turn: Number of the turn that the call is recorded in; 0 if the call belongs to no turn.
            definition: The definition that the caller knows. If the server's definition differs, the tool
                is not called. `None`: the definition that was listed last.

        Raises:
            ToolCallTimedOut: No answer in time. The tool may have had an effect.
            ToolServerDied: The server died during this call. Or it died earlier, and is not connected again.
            MCPServerStartupError: The server had died, and connecting it again failed.
            MCPError: The manager is not connected, or `arguments` or `timeout` has a wrong type.
            KeyboardInterrupt: Ctrl-C was pressed. The call is cancelled; the session stays open.
        """
        connected = self._opened()
        tool = connected.routes.called.get(tool_name)
        if tool is None:
            return _unknown(tool_name, connected.routes, self._absent)
        limit_s = self.tool_call_timeout_s if timeout is None else timeout
        try:
            result = connected.client.call(
                f"{tool.server}.{tool.tool}",
                arguments,
                limit_s,
                check=True,
                turn=turn,
                definition=definition or tool,
            )
        except ToolNotFound:  # the server no longer has the tool that it listed
            return _unknown(tool_name, self._listed_again(connected), self._absent)
        except MCPToolCallError as failed:
            if isinstance(failed, ToolChanged):
                self._listed_again(connected)
            elif type(failed) is not MCPToolCallError:
                raise
            if not isinstance(failed.result, m.ToolCallResult):
                raise
            result = failed.result
        return _result(tool, result)

    def request(self, server: str, method: str, params: Mapping[str, object] | None = None) -> m.JsonObject:
        """Send a server a request other than a tool call, such as `resources/read`; return the raw result.

        Raises:
            MCPRequestError: The server refused the request, did not answer in time, or has died.
            MCPError: The manager is not connected, there is no such server, or it cannot be started again.
        """
        return self._opened().client.request(server, method, params)

    def request_all(self, server: str, method: str) -> tuple[m.JsonObject, ...]:
        """Request a list, such as `skills/list`, and return its items.

        Raises `ValueError` if `method` does not request a list, and otherwise the errors of `request`.
        """
        return self._opened().client.request_all(server, method)

    def _opened(self) -> _Connected:
        connected = self._connected  # read once: another thread may close the manager
        if connected is None:
            raise MCPError("The McpManager is not connected: call connect_all() first.")
        return connected

    def close_all(self) -> None:
        """Close every session; return when the server processes have ended. Waiting calls raise an error."""
        with self._lock:
            connected, self._connected = self._connected, None
            if connected is not None:
                connected.client.close()

    def _listed_again(self, connected: _Connected) -> ToolRoutes:
        routes = tool_routes(connected.client.tools())
        with self._lock:
            if self._connected is connected:
                self._connected = _Connected(connected.client, connected.servers, routes)
        return routes

    def _connect(self, servers: Mapping[str, ToolServer]) -> _Connected:
        client = ToolClient(
            servers,
            limits=TurnLimits(tool_call_timeout_s=self.tool_call_timeout_s),
            recorder=self._recorder,
            max_reconnects=self._max_reconnects,
        )
        client.__enter__()
        self._absent = {}
        try:
            outcomes = client.connect()
            opened = {name: each for name, each in outcomes.items() if isinstance(each, m.SessionOpened)}
            for name, failure in outcomes.items():
                if isinstance(failure, m.ServerFailure):
                    self._refuse_or_skip(name, failure, tuple(opened))
            routes = tool_routes(tool for session in opened.values() for tool in session.tools)
            for tool, other in routes.shadowed:
                fact = McpToolShadowed(tool=tool.tool, server=tool.server, shadowed=other.server)
                self._recorder.record(fact, sender="host")
            return _Connected(client, tuple(opened), routes)
        except BaseException:
            client.close()
            raise

    def _refuse_or_skip(self, server: str, failure: m.ServerFailure, others: tuple[str, ...]) -> None:
        error = error_for(m.TurnFailed(turn=0, failure=failure))
        self._absent[m.ServerName(server)] = failure.cause
        if server not in self._optional and self.on_connect_failure == "raise":
            raise error
        kind = McpServerAbsent if server in self._optional else McpConnectionFailed
        fact = kind(server_name=server, error=str(error), goes_on_with=others)
        self._recorder.record(fact, sender="host")


def _unknown(name: str, routes: ToolRoutes, absent: Mapping[m.ServerName, str]) -> McpCallResult:
    known = ", ".join(routes.listed) or "none"
    text = f"Unknown MCP tool: {name}{tool_results.why_unknown(name, absent)}. Available tools: {known}"
    return McpCallResult("", name, [{"type": "text", "text": text}], True, text)


def _result(tool: m.ToolDefinition, result: m.ToolCallResult) -> McpCallResult:
    text = tool_results.raw_text(result)
    # There are no blocks if, for example, the call was not sent, or the tool server does not speak MCP.
    content = list(result.blocks) or [{"type": "text", "text": text}]
    return McpCallResult(tool.server, tool.tool, content, result.is_error, text)
