"""`AgentLoop`: sends inputs to a model with tools and returns its answers, all in one conversation.

`list_mcp_tools` and `invoke_mcp_tool` use one MCP server for the whole program. Their client is made at the
first call and closed by `reset_mcp_client`, by `configure_mcp_client`, or when the interpreter exits. For
several servers, use a `ToolClient`.
"""

import asyncio
import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypedDict, TypeVar, Unpack, cast, get_args

import anyio
from msgspec.structs import replace

import grue
from grue import messages as m
from grue.engine.tool_servers import settings_or_default
from grue.errors import ConversationBusy, MCPConfigError
from grue.hosting import ToolServer
from grue.hosts.agent_loop.events import EventFeed
from grue.hosts.agent_loop.injected import MCP, InjectedTools, InvokeMcpTool, McpCall, McpTool
from grue.policies import StartAhead, StartWhen
from grue.protocol.tools.lock import ToolLock
from grue.protocol.tools.names import MCP_PREFIX

if TYPE_CHECKING:
    from grue.config.settings import GameConfiguration
    from grue.hosting import LlmEndpoint


T = TypeVar("T")

FUNCTIONS = "tools"
SHELL = "shell"

Tools: TypeAlias = Mapping[str, ToolServer] | Iterable[Callable[..., Any] | grue.ShellTool]
"""The tools of a loop other than its MCP tools: functions and one shell tool, or tool servers by name."""


Image: TypeAlias = str | PathLike[str] | bytes
"""An image: the path of a file, or its bytes."""


def prefixed(servers: Mapping[str, ToolServer]) -> dict[str, ToolServer]:
    """Return MCP servers under the names that an agent loop gives them, such as `mcp.files` for `files`."""
    if not isinstance(servers, Mapping):
        raise MCPConfigError(
            f'servers= wants the servers by name, servers={{"files": StdioServer(...)}}, not a'
            f" {type(servers).__name__}."
        )
    taken = next((name for name in servers if _is_mcp(name)), None)
    if taken is not None:
        raise MCPConfigError(
            f"The MCP server '{taken}' needs another name: the loop puts '{MCP_PREFIX}' before each one."
        )
    return {f"{MCP_PREFIX}{name}": server for name, server in servers.items()}


def beside(tools: Tools) -> dict[str, ToolServer]:
    """Convert the argument `tools` of an `AgentLoop` to tool servers by name."""
    if isinstance(tools, Mapping):
        taken = next((name for name in tools if _is_mcp(name)), None)
        if taken is not None:
            raise MCPConfigError(f"The tools '{taken}' need another name: this one belongs to MCP tools.")
        return dict(tools)
    if not isinstance(tools, Iterable):
        raise MCPConfigError(f"tools= wants a list of functions, not {tools!r:.80}: write tools=[...].")
    functions: list[Callable[..., Any]] = []
    servers: dict[str, ToolServer] = {}
    for tool in tools:
        if isinstance(tool, grue.ShellTool) and SHELL not in servers:
            servers[SHELL] = tool
        elif isinstance(tool, grue.ShellTool | grue.FunctionTools) or not callable(tool):
            raise MCPConfigError(
                f"tools: {tool!r:.80} needs a name. Pass a dictionary: tools={{'mine': FunctionTools(...)}}."
            )
        else:
            functions.append(tool)
    return {**({FUNCTIONS: grue.FunctionTools(functions)} if functions else {}), **servers}


def _is_mcp(name: str) -> bool:
    if not isinstance(name, str):
        raise MCPConfigError(f"The name of a tool server is a text, not {name!r:.60}.")
    return name == MCP or name.startswith(MCP_PREFIX)


def _without_mcp(settings: Mapping[str, T]) -> dict[str, T]:
    return {name: each for name, each in settings.items() if not _is_mcp(name)}


def prefixed_lock(lock: ToolLock) -> ToolLock:
    """Return a tool lock in which every server's name has the prefix `mcp.`."""
    return replace(
        lock,
        servers={f"{MCP_PREFIX}{name}": pins for name, pins in lock.servers.items()},
        listings={f"{MCP_PREFIX}{name}": tools for name, tools in lock.listings.items()},
    )


def prefixed_policy(policy: grue.ToolPolicy) -> grue.ToolPolicy:
    """Return a policy in which patterns and trusted servers match names with the prefix `mcp.`, too."""
    rules = tuple(replace(rule, tools=_prefixed_patterns(rule.tools)) for rule in policy.rules)
    trusted = (*policy.trusted, *(f"{MCP_PREFIX}{name}" for name in policy.trusted))
    return replace(policy, rules=rules, trusted=trusted)


def _prefixed_patterns(tools: tuple[str, ...]) -> tuple[str, ...]:
    patterns = [(each, f"{MCP_PREFIX}{each}") for each in tools if not each.startswith(MCP_PREFIX)]
    return tuple(dict.fromkeys((*sum(patterns, ()), *tools)))


VARIABLE = "GRUE_MCP_SERVER"

Server: TypeAlias = ToolServer | str | Sequence[str]
"""A tool server, a URL, or a command with its arguments, as one text or as a list of texts."""


class _SharedClient:
    """Holds the `ToolClient` that this module's functions share. `get` creates it if none is open."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may call a tool in the thread that holds the lock.
        self._lock = threading.RLock()
        self._client: grue.ToolClient | None = None
        self._server: Server | None = None

    def configure(self, server: Server | None) -> None:
        with self._lock:
            self._server = None if server is None else _tool_server(server)
            client, self._client = self._client, None
            if client is not None:
                client.close()

    def get(self) -> grue.ToolClient:
        with self._lock:
            if self._client is None:
                client = grue.ToolClient({MCP: self._configured()}, max_reconnects=None)
                self._client = client.__enter__()
            return self._client

    def forget(self) -> None:
        """Drop the client in a forked process: the client's event loop exists only in the parent."""
        self._lock, self._client = threading.RLock(), None  # a parent's thread may have held the old lock

    def _configured(self) -> ToolServer:
        named = os.environ.get(VARIABLE, "").strip()
        if self._server is None and not named:
            raise MCPConfigError(
                "No MCP server is configured. Call configure_mcp_client with a URL or a command, or set the"
                f" environment variable {VARIABLE} to one."
            )
        return _tool_server(named if self._server is None else self._server)


def _tool_server(server: Server) -> ToolServer:
    if not isinstance(server, str | Sequence):
        return server
    server = server.strip() if isinstance(server, str) else server
    if isinstance(server, str) and "://" in server and not any(map(str.isspace, server)):
        return grue.HttpServer(name=MCP, url=server)
    try:
        words = shlex.split(server) if isinstance(server, str) else list(server)
    except ValueError as error:  # such as an unclosed quotation mark
        raise MCPConfigError(f"The command of the MCP server cannot be split into words: {error}.") from error
    if not words:
        raise MCPConfigError("The MCP server is empty: give a URL, or a command with its arguments.")
    return grue.StdioServer(name=MCP, command=words[0], args=tuple(words[1:]))


_shared = _SharedClient()
os.register_at_fork(after_in_child=_shared.forget)


def configure_mcp_client(server: Server) -> None:
    """Set the server that `list_mcp_tools` and `invoke_mcp_tool` use; disconnect the server used before.

    Args:
        server: A URL (streamable HTTP), a command with its arguments, or any tool server that a `ToolClient`
            takes, such as `HttpServer(name="mcp", url=..., transport="sse")`. While no server is set, the URL
            or command in the environment variable `GRUE_MCP_SERVER` is used.

    Raises:
        MCPConfigError: `server` is empty, is a URL that cannot be used, or has an unclosed quotation mark.
    """
    _shared.configure(server)


def list_mcp_tools() -> tuple[m.ToolDefinition, ...]:
    """Return the server's tools; blocking. Connect to the server if no session is open.

    The `name` of each is `mcp.TOOL`.

    Raises:
        MCPConfigError: No server is configured, or `GRUE_MCP_SERVER` cannot be used.
        MCPServerStartupError: The server could not be started.
        MissingDependencyError: The package `mcp` is absent or too old.

    Source: L12
    """
    return _shared.get().tools()


def invoke_mcp_tool(name: str, arguments: Mapping[str, object] | None = None) -> m.ToolCallResult:
    """Call a tool of the server and return its result; blocking, thread-safe.

    The result is an error result if the tool is unknown, reports an error or takes too long, or if the server
    dies. After the server has died, the next call starts it again. Ctrl-C cancels the call.

    Args:
        name: The tool's name, with or without `mcp.`.
        arguments: A JSON object; `None`: no arguments.

    Raises:
        MCPError: An error of `list_mcp_tools`, or `arguments` is not a dictionary.

    Source: L12
    """
    return _shared.get().call(f"{MCP_PREFIX}{name.removeprefix(MCP_PREFIX)}", arguments)


def reset_mcp_client() -> None:
    """Close the client, and forget the server that `configure_mcp_client` has set; for tests."""
    _shared.configure(None)


_DONE = object()
_NOTICE_S = 0.05
_CANCELLED_WITHIN_S = 3.0  # how many seconds an interrupted input waits at most for the clean-up of its turn


class RunnerOptions(TypedDict, total=False):
    """Arguments of a `Runner` that an `AgentLoop` takes too. `AgentLoop` says how they name MCP tools."""

    limits: grue.TurnLimits
    policy: grue.FailurePolicy
    recorder: grue.Recorder
    trace: str | PathLike[str] | None
    process_limits: grue.ProcessLimits
    elicit: Callable[..., Any] | None
    tool_lock: ToolLock | None
    tool_policy: grue.ToolPolicy
    approve: Callable[..., Any] | None
    context: grue.ContextPolicy | None
    tool_search: grue.ToolSearch | None
    budget: grue.Budget
    start: StartWhen


def configured_options(config: "GameConfiguration", lock: ToolLock | None) -> RunnerOptions:
    """Return the options that a project's settings and its tool lock determine."""
    from grue.config import wiring  # imported here, because it loads pydantic

    return cast("RunnerOptions", wiring.runner_options(config, lock))


def _add_prefix(options: RunnerOptions) -> None:
    """Add `mcp.` to the tool lock's names. Let patterns without `mcp.` match names with this prefix, too."""
    lock, policy = options.get("tool_lock"), options.get("tool_policy")
    search, context = options.get("tool_search"), options.get("context")
    if isinstance(lock, ToolLock):
        options["tool_lock"] = prefixed_lock(lock)
    if policy is not None:
        options["tool_policy"] = prefixed_policy(
            settings_or_default("tool_policy", policy, grue.ToolPolicy())
        )
    if search is not None:
        search = settings_or_default("tool_search", search, grue.ToolSearch())
        options["tool_search"] = replace(search, always=_prefixed_patterns(search.always))
    if context is not None:
        context = settings_or_default("context", context, grue.ContextPolicy())
        options["context"] = replace(context, read_only=_prefixed_patterns(context.read_only))


class LoopOptions(RunnerOptions, total=False):
    """Further arguments of `AgentLoop.from_toml`, with the meaning that they have for an `AgentLoop`."""

    system: str
    invoke_mcp_tool: InvokeMcpTool | None
    mcp_tools: Iterable[McpTool]
    servers: Mapping[str, ToolServer] | None
    tools: Tools
    on_event: Callable[[Any], object] | None


class AgentLoop:
    """A conversation with a model that has tools. Use it as a context manager, or call `close`.

    MCP tools have the names `mcp.SERVER.TOOL`. The sessions with the servers stay open between inputs. Any
    thread may use the loop, but only for one input at a time.

    Args:
        invoke_mcp_tool: Called as `invoke(name, arguments)` for every MCP tool, listed or not, with the name
            `SERVER.TOOL` and the parsed arguments; plain or a coroutine function. `servers` is then ignored:
            none of them is started, and the package `mcp` is not needed for MCP tools. If the function
            raises, the model reads the exception as the call's error, and the conversation goes on. `None`:
            `servers` serve the MCP tools.
        mcp_tools: With `invoke_mcp_tool`: the MCP tools that the model is offered. If there are none, the
            model can know of MCP tools only from texts such as `system`.
        servers: MCP servers by name, without the prefix `mcp.`.
        tools: Functions (`tools.NAME`) and at most one `ShellTool` (`shell.run`), or tool servers by name.
        on_event: Called with each event of an input (a `LoopEvent`, or an object passed to `report`), in the
            thread that called `run`. If it raises, the input is cancelled and `run` raises the exception.
            `None`: replies are not streamed.
        **options: `limits`, `trace`, `tool_policy`, `approve` and others (`RunnerOptions`), as for a
            `Runner`. Patterns in `tool_policy`, `tool_search` and `context` may name MCP tools with or
            without the prefix `mcp.`. A tool lock names servers as `servers` does (`files`).

    Attributes:
        runner: Runs the turns. `runner.tools()` lists all tools; `runner.spent` is what was used so far.
        conversation: The conversation so far. To continue another conversation, assign it here, for example
            `Conversation.load(path, loop.runner)`.
        last_outcome: The complete outcome of the last input that gave an answer; `None`: none has yet.

    Raises:
        MCPConfigError: A name is invalid or belongs to other tools, or an argument cannot be used.
        MissingDependencyError: There is an MCP server to talk to, and the package `mcp` is absent or too old.

    Source: L6-L8, L13-L15
    """

    def __init__(
        self,
        llm: "grue.LlmSettings | LlmEndpoint",
        *,
        system: str = "",
        invoke_mcp_tool: InvokeMcpTool | None = None,
        mcp_tools: Iterable[McpTool] = (),
        servers: Mapping[str, ToolServer] | None = None,
        tools: Tools = (),
        on_event: Callable[[Any], object] | None = None,
        **options: Unpack[RunnerOptions],
    ) -> None:
        if on_event is not None and not callable(on_event):
            raise MCPConfigError(f"on_event= wants a function of an event, not {on_event!r:.60}.")
        if "keep" in options:
            raise MCPConfigError("An AgentLoop has no keep=: its sessions stay open between inputs.")
        start: Any = options.get("start")
        if isinstance(start, tuple) or start in get_args(StartAhead):
            raise MCPConfigError(
                f"An AgentLoop keeps its sessions, so start={start!r} cannot start any ahead."
            )
        self._injected: InjectedTools | None = None
        mcp: dict[str, ToolServer]
        if invoke_mcp_tool is not None:
            self._injected = InjectedTools(invoke_mcp_tool, mcp_tools)
            mcp = {MCP: self._injected}
            # Leave out settings for single MCP servers, because this loop has no such servers.
            policy, limits = options.get("policy"), options.get("limits")
            if isinstance(policy, grue.FailurePolicy):
                options["policy"] = replace(policy, first_connects=_without_mcp(policy.first_connects))
            if isinstance(limits, grue.TurnLimits):
                others = _without_mcp(limits.startup_timeouts_s)
                options["limits"] = replace(limits, startup_timeouts_s=others)
        elif mcp_tools is None or tuple(mcp_tools):
            raise MCPConfigError("mcp_tools= lists the tools of invoke_mcp_tool=, which is missing.")
        else:
            mcp = prefixed(servers or {})
        _add_prefix(options)
        self.runner = grue.Runner(llm=llm, servers={**mcp, **beside(tools)}, keep="sessions", **options)
        self.conversation: grue.Conversation = self.runner.conversation(system)
        self.last_outcome: grue.TurnOutcome[str] | None = None
        self._on_event = on_event
        self._free = threading.Lock()
        self._put: Callable[[Any], object] = _drop
        self._feed = EventFeed(lambda event: self._put(event))
        if on_event is not None:
            self.runner.recorder.add(self._feed)

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str] = "pyproject.toml",
        *,
        llm: "grue.LlmSettings | LlmEndpoint | None" = None,
        **options: Unpack[LoopOptions],
    ) -> Self:
        """Make a loop from a TOML file, which is read as `Runner.from_toml` reads it.

        If `invoke_mcp_tool` is given, the configuration file of the MCP servers is not read.

        Args:
            path: The TOML file.
            llm: The model; `None`: the configured one.
            **options: Arguments of the loop and of a `Runner`. They take precedence over the file.

        Raises:
            MCPConfigError: A file is missing, a value in it is invalid, or an argument cannot be used.
        """
        from grue.config.wiring import from_configuration  # imported here, because it loads pydantic

        injected = options.get("invoke_mcp_tool") is not None
        configured = from_configuration(path, servers=not injected)
        settings: LoopOptions = {
            "servers": configured.servers,
            **configured_options(configured.config, configured.tool_lock),
            **options,
        }
        return cls(configured.llm if llm is None else llm, **settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sessions with the servers and close the conversation's file. A second call does nothing."""
        self.conversation.close()
        self.runner.close()

    @property
    def mcp_calls(self) -> tuple[McpCall, ...]:
        """The calls of the injected `invoke_mcp_tool` for the last input; empty without this function."""
        return tuple(self._injected.calls) if self._injected is not None else ()

    def run(self, text: str, *, images: Sequence[Image] = (), turn: int | None = None) -> str:
        """Send a text to the model, make the tool calls that it asks for, and return its answer; blocking.

        If a call fails, names an unknown tool or has arguments that are not JSON, the model gets an error
        text and goes on. Ctrl-C cancels the input within seconds; the conversation keeps what was said.

        Args:
            text: The input.
            images: Images to send with the text: paths of files, or bytes.
            turn: The number of this turn in the trace; `None`: the next number.

        Raises:
            MCPServerStartupError: The first connect to an MCP server failed, and `policy` says to raise.
            LLMError: The model gave no completion, after all retries.
            MCPError: Any other error of `Runner.run_turn`.
            ConversationBusy: Another input is running, such as the one whose `on_event` calls `run`.
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        with self._one_input(text, images, turn) as request:
            if self._on_event is None:
                outcome = self.runner.run_turn(request)
            else:
                outcome = self._run_reporting(request, self._on_event)
        self.last_outcome = outcome
        return outcome.response

    async def run_async(self, text: str, *, images: Sequence[Image] = (), turn: int | None = None) -> str:
        """Do the same as `run` without blocking the event loop, in which `on_event` is called."""
        with self._one_input(text, images, turn) as request:
            if self._on_event is None:
                outcome = await self.runner.run_turn_async(request)
            else:
                outcome = await self._run_reporting_async(request, self._on_event)
        self.last_outcome = outcome
        return outcome.response

    @contextlib.contextmanager
    def _one_input(
        self, text: str, images: Sequence[Image], turn: int | None
    ) -> Iterator[grue.TurnRequest[str]]:
        if not self._free.acquire(blocking=False):
            raise ConversationBusy("The agent loop is in the middle of an input. Wait for its end.")
        try:
            if self._injected is not None:
                self._injected.calls.clear()
            on_delta = None if self._on_event is None else self._feed.words
            yield replace(self.conversation.request(text, images=images), turn=turn, on_delta=on_delta)
        finally:
            self._put = _drop
            self._free.release()

    def report(self, event: object) -> None:
        """Have the thread that called `run` call `on_event(event)`, if an input is running. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # raised if `run_async` has just ended and its loop is closed
            self._put(event)

    def _run_reporting(
        self, request: grue.TurnRequest[str], on_event: Callable[[Any], object]
    ) -> grue.TurnOutcome[str]:
        """Run a turn in a thread of its own, and call `on_event` in the caller's thread.

        The recorder must not call `on_event` itself: it calls observers under its lock, so `on_event` could
        not add to the trace, and an exception would not reach the caller.
        """
        events: SimpleQueue[Any] = SimpleQueue()
        self._put = events.put
        handle = self.runner.start_turn(request)
        try:
            handle.when_done(lambda: events.put(_DONE))
            while (event := _next(events)) is not _DONE:
                on_event(event)
        except BaseException:
            handle.cancel()
            with contextlib.suppress(grue.MCPError, TimeoutError):
                handle.result(_CANCELLED_WITHIN_S)
            raise
        return handle.result()

    async def _run_reporting_async(
        self, request: grue.TurnRequest[str], on_event: Callable[[Any], object]
    ) -> grue.TurnOutcome[str]:
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Any]()
        self._put = lambda event: loop.call_soon_threadsafe(events.put_nowait, event)
        turn = asyncio.ensure_future(self.runner.run_turn_async(request))
        turn.add_done_callback(lambda _: events.put_nowait(_DONE))
        try:
            while (event := await events.get()) is not _DONE:
                on_event(event)
        except BaseException:
            turn.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([turn], timeout=_CANCELLED_WITHIN_S)
            raise
        return await turn


def _drop(event: object) -> None:
    del event


def _next(events: "SimpleQueue[Any]") -> Any:
    # Wait in short steps: Python runs signal handlers in the main thread, and a signal that another thread
    # receives would not interrupt a blocking `get` in the main thread.
    while True:
        try:
            return events.get(timeout=_NOTICE_S)
        except Empty:
            pass
