"""`MCPManager`: coroutines to connect to one MCP server, list its tools and call them."""

import logging
import weakref
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from grue import MCPError, Recorder
from grue import messages as m
from grue.config.mcp_servers import MCPConfig, to_tool_server
from grue.config.wiring import on_tool_drift, tool_lock, turn_limits
from grue.engine.outside_turns.owned_session import OwnedSession
from grue.engine.tool_servers import connect_to, hide_secrets, startup_limits
from grue.errors import MCPServerStartupError, TraceError
from grue.hosting import Envelope, GameConfiguration, LangfuseObserver, LoggerObserver, Note, error_for
from grue.hosts.zork.look_alikes import member, own_methods
from grue.protocol.json_text import json_object
from grue.protocol.tools import results as tool_results
from grue.protocol.tools.names import openai_tool, split_name
from grue.protocol.turn.connection import Disabled, Settled, Untried
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.trace.recorder import Observer
from grue.transports.mcp.client_options import ClientOptions


class TurnUse(Struct, frozen=True):
    """A turn that uses a manager."""

    note: Note
    startup_timeout_s: float  # the time limit of `connect_session`
    deadline: float  # the end of the turn's time, in the event loop's time


class _SessionNews:
    """Passes the messages of a manager's sessions to `observers`.

    During a turn, it passes only notices, and only to the turn. An open session refers to this object, so a
    reference from it to the manager would keep the manager alive.
    """

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.turn: TurnUse | None = None

    def __call__(self, envelope: Envelope[Any], line: bytes) -> None:
        if self.turn is None:
            for observer in self.observers:
                observer(envelope, line)
        # The turn reports everything else to the same observers itself.
        elif isinstance(envelope.body, m.ServerNoted | m.ToolDrifted):
            self.turn.note(envelope.body, sender=envelope.sender)


class MCPManager:
    """Manage sessions with the first enabled MCP server of the file, one at a time.

    Each session runs in a task of its own, so the coroutines may be called from any task of the event loop.
    No server process is left after `disconnect_session`, when the manager is garbage-collected, or when the
    interpreter ends. Needs asyncio.

    The file of the servers is read even if `mcp_enabled` is false. The logger and the Langfuse client get the
    events of the coroutines, and of the turns of an agent that uses this manager. The manager never shuts the
    client down.

    Attributes:
        ignored_servers: Names of the other enabled servers in the file, which are not used.
        config_warnings: A sentence for each key of the file that has no effect, or perhaps an unintended one.
        connection: Untried, proven or disabled in this episode. A program may store and set it.

    Source: R2.1-3, R2.5, R2.6
    """

    def __init__(
        self, config: GameConfiguration, logger: logging.Logger | None = None, langfuse_client: Any = None
    ) -> None:
        servers = MCPConfig.from_file(config.mcp_config_path)
        name, self.server_config = servers.get_server_config()
        self.config = config
        self.server_name = m.ServerName(name)
        self.ignored_servers = servers.ignored_servers
        self.config_warnings = servers.warnings
        self.tool_server = to_tool_server(name, self.server_config)
        self.tool_lock = tool_lock(config)
        self.logger = logger
        self.langfuse_client = langfuse_client
        self.connection: Settled = Untried()
        self.recorder = Recorder()
        hide_secrets(self.recorder, [self.tool_server])
        self._news = _SessionNews()
        self._startup_failure: m.ServerFailure | None = None
        self.recorder.add(self._news)
        if logger is not None:
            self._news.observers.append(LoggerObserver(logger))
        if langfuse_client is not None:
            langfuse = LangfuseObserver(langfuse_client)
            self._news.observers.append(langfuse)
            weakref.finalize(self, langfuse.close, timeout_s=0)
        self._registry = ProcessRegistry()
        # If the manager is garbage-collected before it was disconnected, the server is killed.
        weakref.finalize(self, self._registry.kill_leftovers, loop_running=True)
        self._session: OwnedSession | None = None
        self._last_session: OwnedSession | None = None
        self._sessions = 0
        self._is_hurried = False

    @property
    def is_disabled(self) -> bool:
        """`True` if the server is disabled for the rest of the episode."""
        return isinstance(self.connection, Disabled)

    @property
    def timeout_seconds(self) -> float:
        """Default time limit of a tool call."""
        return self.config.mcp_tool_call_timeout_seconds

    @property
    def session(self) -> OwnedSession | None:
        """The session of the last `connect_session`, open or not; `None` before the first."""
        return self._session or self._last_session

    @property
    def failure(self) -> m.ServerFailure | None:
        """Why the last session could not be opened, or how its server died; `None`: neither is known."""
        return self._startup_failure or (self.session.died if self.session else None)

    async def connect_session(self) -> None:
        """Start or reach the server, initialize the session and list the tools.

        During a turn, and until a connect of the episode has succeeded, each call makes only one attempt.
        Otherwise a failed connect is retried once, and if the retry fails too, the server is disabled: later
        calls fail at once. If this coroutine is cancelled, no process is left. Raises
        `MCPServerStartupError`, or another `MCPError`, for example if a session is open already.

        Source: R3.1-4, R6.1, R6.7-10
        """
        turn = self._news.turn
        if isinstance(self.connection, Disabled):
            raise self._given_up(self.connection.reason)
        if self._session is not None and self._session.alive:
            raise MCPError(
                f"A session with MCP server '{self.server_name}' is open already: disconnect it first."
            )
        # If the event loop of an earlier session ended before `disconnect_session`, its server may still run.
        self._registry.kill_leftovers(loop_running=True)
        self._sessions += 1
        self._startup_failure = None
        limits = startup_limits(turn_limits(self.config), {self.server_name: self.tool_server})
        limit_s = limits.startup_timeout_s(self.server_name) if turn is None else turn.startup_timeout_s
        command = m.OpenSession(server=self.server_name, turn=self._sessions, timeout_s=limit_s)
        # Pass no reference to the manager: an open session would keep the manager alive.
        options = ClientOptions(
            pins=None if self.tool_lock is None else self.tool_lock.pins(self.server_name),
            on_tool_drift=on_tool_drift(self.config),
            on_secret=self.recorder.hide,
        )
        connect = connect_to(self.server_name, self.tool_server, self._registry, options)
        # For a turn, try only once, as in the state `Untried`: the turn itself repeats a failed connect.
        known = self.connection if turn is None else Untried()
        deadline = float("inf") if turn is None else turn.deadline
        session = OwnedSession(command, connect, self.recorder, known, deadline=deadline)
        self._session = session
        outcome = await session.opened()
        if turn is None and isinstance(session.connection, Settled):
            self.connection = session.connection
        match outcome:
            case m.SessionOpened():
                pass
            case m.StartupFailed(failure=failure):
                self._startup_failure = failure
                raise error_for(m.TurnFailed(turn=command.turn, failure=failure))
            case m.McpDisabled(reason=reason):
                raise self._given_up(reason)
            case None:
                session.raise_fault()
                raise MCPError(
                    f"The session with MCP server '{self.server_name}' ended: {session.fault}"
                ) from session.fault

    async def disconnect_session(self) -> None:
        """Close the open session. Afterwards no process of the session is alive."""
        session, self._session = self._session, None
        if session is not None:
            self._last_session = session
            await session.close(hurried=self._is_hurried)

    async def get_tool_schemas(self) -> list[m.JsonObject]:
        """Return the server's tools in OpenAI's format, named `server.tool`. May raise `MCPError`."""
        session = self._open_session()
        if session is None:
            raise MCPError(self._not_connected())
        listed = [
            {"name": tool.tool, "description": tool.description, "inputSchema": tool.input_schema}
            for tool in session.tools
        ]
        return [self._translate_schema(tool, self.server_name) for tool in listed]

    async def call_tool(
        self, tool_name: str, arguments: Mapping[str, Any], timeout_seconds: float | None = None
    ) -> m.ToolCallResult:
        """Call the tool `server.tool`. A timeout raises `TimeoutError`; other failures give an error result.

        If the messages of the session cannot be recorded, raises the `TraceError`. Concurrent calls are made
        one after the other. Cancelling one call does not affect the others.
        """
        try:
            _, tool = self._parse_tool_name(tool_name)
        except ValueError as error:
            return tool_results.failure(str(error))
        session = self._open_session()
        if session is None:
            return tool_results.call_failed(self._not_connected())
        names = [each.name for each in session.tools]
        if tool_name not in names:
            return tool_results.failure(
                f"Unknown MCP tool: {tool_name}. Available tools: {', '.join(names) or 'none'}"
            )
        given: object = arguments  # a program may pass anything
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            return tool_results.call_failed(f"the arguments must be a JSON object, not {kind}")
        timeout_s = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            return await session.call(tool, json_object(given), timeout_s)
        except TraceError:
            raise
        except MCPError as error:
            return tool_results.call_failed(str(error))

    def lend(self, turn: TurnUse | None) -> None:
        """Set the turn that uses this manager; `None`: none does."""
        self._news.turn = turn
        self._is_hurried = False

    def hurry(self) -> None:
        """From now until the next `lend`, give a server only little time to exit."""
        self._is_hurried = True
        if self._session is None and self._last_session is not None:
            self._last_session.hurry()

    def kill_leftovers(self) -> None:
        """Kill all server processes of this manager, for example if the sessions' event loop has ended."""
        self._registry.kill_leftovers(loop_running=True)

    def _translate_schema(self, mcp_tool: object, server_name: str) -> m.JsonObject:
        """Convert a tool to OpenAI's format. `mcp_tool` is a dict from MCP, or an object of any MCP SDK."""
        schema = member(mcp_tool, "inputSchema") or member(mcp_tool, "input_schema")
        definition = m.ToolDefinition(
            server=m.ServerName(server_name),
            tool=str(member(mcp_tool, "name")),
            description=member(mcp_tool, "description") or "",
            input_schema=schema or {},
        )
        return openai_tool(definition)

    def _parse_tool_name(self, tool_name: str) -> tuple[str, str]:
        """Split `server.tool` at its first dot; raises `ValueError` if there is none."""
        return split_name(tool_name)

    def _open_session(self) -> OwnedSession | None:
        session = self._session
        if session is None or session.alive:
            return session
        session.raise_fault()
        return None

    def _given_up(self, reason: str) -> MCPServerStartupError:
        text = f"MCP server '{self.server_name}' is disabled for the rest of the episode: {reason}"
        return MCPServerStartupError(text, server=self.server_name)

    def _not_connected(self) -> str:
        return f"no session with MCP server '{self.server_name}' is open"


TURN_METHODS = own_methods(
    MCPManager,
    (
        "connect_session",
        "disconnect_session",
        "get_tool_schemas",
        "call_tool",
        "_translate_schema",
        "_parse_tool_name",
    ),
)
"""If a program has overridden one of these, a turn calls the manager (`manager_connection.py`). Otherwise the
turn takes only the settings from the manager, and opens sessions of its own."""
