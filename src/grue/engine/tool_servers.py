"""The tool servers of a runner: checks of their settings, their connections, and the servers of a turn."""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from grue import messages as m
from grue import policies
from grue.errors import MCPConfigError
from grue.field_checks import fault_of, shown
from grue.policies import FailurePolicy, OnToolDrift, StartWhen, ToolPolicy, TurnLimits
from grue.protocol.tools.lock import ToolLock, screen
from grue.protocol.tools.names import MCP_PREFIX
from grue.protocol.tools.policy import check_policy
from grue.protocol.turn.connection import Settled, Untried, is_given_up
from grue.runtime.actor import Note
from grue.runtime.loading import load
from grue.runtime.processes.guard import guard
from grue.runtime.processes.limits import ProcessLimits
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.safe_text import well_formed
from grue.runtime.secrets.secret_forms import secrets_in
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.connection import Connect, HostsConnection, SeenListing, ToolConnection
from grue.tool_sessions.failures import DOWNLOAD_TIMEOUT_S, downloads
from grue.tool_sessions.host_tools import HostTools, ToolServer
from grue.tool_sessions.server_specs import HttpServer, McpServer, StdioServer, in_its_box
from grue.transports.mcp.client_options import ClientOptions
from grue.transports.mcp.sdk_version import require_mcp


def connect_to(
    name: str, server: ToolServer, registry: ProcessRegistry, options: ClientOptions | None = None
) -> Connect:
    """Return a factory of connections to a tool server of any kind. `options` are for MCP servers only."""
    match server:
        case StdioServer() | HttpServer():
            return lambda note: _mcp_client(server, registry, options or ClientOptions(), note)
        case HostTools():
            return lambda note: server.connect(m.ServerName(name), registry, note=note)
        case _:
            return lambda note: HostsConnection(server, m.ServerName(name), note)


def _mcp_client(
    server: McpServer, registry: ProcessRegistry, options: ClientOptions, note: Note
) -> ToolConnection:
    def noted(kind: policies.NoticeKind, text: str) -> None:
        note(m.ServerNoted(server=m.ServerName(server.name), kind=kind, text=text), sender=server.name)

    def became_task(tool: str, task: m.ToolTask) -> None:
        note(m.TaskCreated(server=m.ServerName(server.name), tool=tool, task=task), sender=server.name)

    from grue.transports.mcp.client import McpClient  # a runner with only function tools does not need it

    def drifted(body: m.ToolDrifted) -> None:
        note(body, sender=server.name)

    options = replace(options, on_notice=noted, on_task=became_task, on_drift=drifted)
    return McpClient(server, registry, options)


def hide_secrets(recorder: Recorder, servers: Iterable[ToolServer]) -> None:
    """Register the secrets of the environment and of the servers' settings with the recorder."""
    kinds = McpServer | HostTools
    configured = [server.named_values() for server in servers if isinstance(server, kinds)]
    for name, value in secrets_in(os.environ, *configured).items():
        recorder.hide(name, value)


def usable_servers(servers: Mapping[str, ToolServer]) -> dict[m.ServerName, ToolServer]:
    """Return the servers by name; raise `MCPConfigError` or `MissingDependencyError` if one is unusable."""
    if not isinstance(servers, Mapping):
        raise MCPConfigError(
            f'servers= wants the servers by name, servers={{"files": StdioServer(...)}}, not a'
            f" {type(servers).__name__}."
        )
    named = {_server_name(name): _under(name, server) for name, server in servers.items()}
    prefixed = next((name for name in named if name.startswith(MCP_PREFIX)), None)
    if "mcp" in named and prefixed is not None:  # both could serve a tool such as `mcp.files.read`
        raise MCPConfigError(
            f"The tools of the servers 'mcp' and '{prefixed}' could have the same names. Rename one of them."
        )
    if any(isinstance(server, McpServer) for server in named.values()):
        require_mcp()
        load("grue.transports.mcp.client")
    return named


def load_sessions(servers: Collection[ToolServer]) -> None:
    """Import the modules for sessions with these servers; for a stdio server, start the guard process too."""
    if any(isinstance(server, McpServer) for server in servers):
        load("grue.transports.mcp.session_parts")
    if any(isinstance(server, HttpServer) for server in servers):
        load("grue.transports.mcp.http_wire")
        load("grue.transports.mcp.sdk_http")
    if any(isinstance(server, StdioServer) for server in servers):
        load("grue.transports.mcp.process_wire")
        load("grue.transports.mcp.line_stream")
        guard.start()


def startup_limits(limits: TurnLimits, servers: Mapping[m.ServerName, ToolServer]) -> TurnLimits:
    """Return `limits` with the servers' own start-up limits, and the default limit, filled in.

    The first of these counts for a server: its entry in `limits.startup_timeouts_s`, its own option,
    `limits.server_startup_timeout_s`, `DOWNLOAD_TIMEOUT_S` (if it may have to be downloaded), the default.
    """
    common_s, own = limits.server_startup_timeout_s, {}
    for name, server in servers.items():
        if isinstance(server, McpServer) and server.options.startup_timeout_s is not None:
            own[name] = server.options.startup_timeout_s
        elif common_s is None and isinstance(server, StdioServer) and downloads(server.command, server.args):
            own[name] = DOWNLOAD_TIMEOUT_S
    return replace(
        limits,
        server_startup_timeout_s=policies.STARTUP_TIMEOUT_S if common_s is None else common_s,
        startup_timeouts_s={**own, **limits.startup_timeouts_s},
    )


def with_settings(
    servers: Mapping[m.ServerName, ToolServer],
    limits: TurnLimits,
    policy: FailurePolicy | None = None,
    start: StartWhen | None = None,
) -> dict[m.ServerName, ToolServer]:
    """Return the servers. Where a server's own option `start` is `None`, it gets the argument `start`.

    Raises `MCPConfigError` if `servers` is not empty, and `limits` or `policy` names another server.
    """
    named = (
        ("FailurePolicy", "first_connects", policy.first_connects if policy else {}),
        ("TurnLimits", "startup_timeouts_s", limits.startup_timeouts_s),
    )
    for kind, field, names in named:
        for name in names:
            if servers and name not in servers:
                known = ", ".join(map(repr, servers))
                text = f"{field} has {name!r:.60}, and servers= has {known}."
                raise MCPConfigError.of_value(kind, (field, name), text)
    changed = dict(servers)
    for server_name, server in servers.items():
        if isinstance(server, McpServer):
            options = replace(server.options, start=server.options.start or start)
            if server_name in limits.startup_timeouts_s:  # the error about a start's timeout names this place
                options = replace(options, startup_timeout_place="startup_timeouts_s in these TurnLimits")
            changed[server_name] = replace(server, options=options)
    return changed


def starts_when_called(server: object) -> bool:
    """Return whether a tool server starts at the first call of one of its tools."""
    return isinstance(server, McpServer) and server.options.start == "when_called"


def first_connects(servers: Mapping[m.ServerName, ToolServer]) -> dict[str, policies.OnFirstConnect]:
    """Return what follows a failed first connect, for servers with `required` or `start="when_called"`."""
    chosen: dict[str, policies.OnFirstConnect] = {}
    for name, server in servers.items():
        if isinstance(server, McpServer) and server.options.required is not None:
            chosen[name] = "raise" if server.options.required else "disable"
        elif starts_when_called(server):
            chosen[name] = "disable"  # the model can go on without the server
    return chosen


def _under(name: str, server: ToolServer) -> ToolServer:
    """Return the server; an MCP server gets the name `name`. Raises `MCPConfigError` if it is no server."""
    if isinstance(server, McpServer):
        return server if server.name == name else replace(server, name=name)
    form = _right_form(server)
    if form:
        found = type(server).__name__
        raise MCPConfigError(f"servers= has no server under '{name}', but {found}. Write {form}.")
    return server


def _right_form(server: object) -> str:
    """Return what to write instead of `server`; empty: `server` has a valid form."""
    if isinstance(server, str):
        return "HttpServer(url=...)" if "://" in server else "StdioServer(command=...)"
    if isinstance(server, list | tuple | Mapping | None):
        return "StdioServer(command=..., args=(...))"
    if isinstance(server, FunctionType | MethodType | BuiltinFunctionType) and not _may_connect(server):
        return f"FunctionTools([{server.__name__}])"
    # A class may be a `Connect` itself, if its instances are connections.
    connects = callable(server) and (not isinstance(server, type) or hasattr(server, "refresh_tools"))
    known = connects or isinstance(server, HostTools)
    return "" if known else "StdioServer(command=...), HttpServer(url=...) or FunctionTools([...])"


def _may_connect(function: Callable[..., object]) -> bool:
    """Return whether, by its signature, a function may take a `Note` and return a connection (`Connect`)."""
    if isinstance(function, BuiltinFunctionType):
        return False
    try:
        signature = inspect.signature(function)
        parameter = next(iter(signature.bind(None).signature.parameters.values()))
    except (TypeError, ValueError):
        return False
    plain = {str, int, float, bool, list, dict, None, "str", "int", "float", "bool", "list", "dict", "None"}
    return parameter.annotation not in plain and signature.return_annotation not in plain


def _server_name(name: str) -> m.ServerName:
    bare = name.removeprefix(MCP_PREFIX) if isinstance(name, str) else ""
    if not bare or "." in bare:
        raise MCPConfigError(
            f"'{name}' cannot be the name of a tool server: names may not be empty and may not contain "
            "a dot, because a tool's full name is SERVER.TOOL."
        )
    return m.ServerName(well_formed(name))


_GLOB = re.compile(r"[*?[]")


def usable_policy(policy: ToolPolicy | None, servers: Mapping[m.ServerName, ToolServer]) -> ToolPolicy:
    """Return the policy to use. One that is not the default also trusts the host's functions and commands."""
    policy = settings_or_default("tool_policy", policy, ToolPolicy())
    if policy == ToolPolicy():
        return policy
    own = (name for name, server in servers.items() if isinstance(server, HostTools))
    return replace(check_policy(policy), trusted=(*policy.trusted, *own))


def servers_for(
    tools: bool | Sequence[str], servers: Mapping[m.ServerName, ToolServer]
) -> tuple[m.ServerName, ...]:
    """Return the names of a turn's servers; `tools` is as in `TurnRequest`."""
    if isinstance(tools, bool):
        return tuple(servers) if tools else ()
    starts = tuple(_GLOB.split(pattern, maxsplit=1)[0] for pattern in tools)
    return tuple(
        name
        for name, server in servers.items()
        if not isinstance(server, McpServer)  # tools of other kinds of servers may have any names
        or any(f"{name}.".startswith(start) or start.startswith(f"{name}.") for start in starts)
    )


_Tools: TypeAlias = tuple[m.ToolDefinition, ...]


class PresumedListings:
    """Earlier tool lists, which turns may use before the servers have started (decision 035). Thread-safe."""

    def __init__(self, servers: Mapping[m.ServerName, ToolServer], lock: ToolLock | None) -> None:
        self._servers = servers
        self._lock = lock
        self._last: dict[m.ServerName, _Tools] = {}
        self._recalled: dict[m.ServerName, _Tools] = {}
        self._cached: dict[m.ServerName, SeenListing | None] = {}
        self._unsaved: dict[m.ServerName, SeenListing] = {}
        self._screenings: dict[tuple[m.ServerName, OnToolDrift], tuple[_Tools, _Tools]] = {}
        approved = {} if lock is None else {name: lock.listing(name) for name in lock.listings}
        self._locked = {name: tools for name, tools in approved.items() if tools is not None}

    def for_turn(
        self,
        command: m.RunTurn,
        connections: Mapping[m.ServerName, Settled],
        registry: ProcessRegistry,
        at_s: float,
    ) -> m.ToolsPresumed | None:
        """Return the tools to offer before a turn's servers have started; `None`: wait for the servers."""
        if all(isinstance(self._servers[name], HostTools) for name in command.servers):
            return None
        waiting = {listing.server for listing in command.when_called}
        on = [
            name
            for name in command.servers
            if name not in waiting and not is_given_up(connections.get(name, Untried()), command.policy, at_s)
        ]
        starting = [name for name in on if not isinstance(self._servers[name], HostTools)]
        # Check the servers first: most turns return here, without listing the host's functions and commands.
        if not starting or not all(self._may_presume(name) and self._found(name) for name in starting):
            return None
        listings = [self._of(name, command.policy, registry) for name in on]
        known = tuple(listing for listing in listings if listing is not None)
        return m.ToolsPresumed(listings=known) if len(known) == len(on) else None

    def when_called(
        self, command: m.RunTurn, connections: Mapping[m.ServerName, Settled], at_s: float
    ) -> tuple[m.PresumedListing, ...]:
        """Return the known, not outdated listings of servers that start when called and are not given up."""
        found = (
            self._approved(name, command.policy) or self._listing(name, command.policy)
            for name in command.servers
            if starts_when_called(self._servers[name])
            and not self._is_stale(name)
            and not is_given_up(connections.get(name, Untried()), command.policy, at_s)
        )
        return tuple(listing for listing in found if listing is not None)

    def learn(self, name: m.ServerName, tools: _Tools) -> None:
        """Store the tools that a server's session offered in a turn, if later turns may presume them."""
        if self._may_presume(name):
            self._last[name] = tools

    def recall(self, listings: Mapping[m.ServerName, _Tools]) -> None:
        """Store listings from an earlier run. A listing that this runner has seen itself takes precedence."""
        self._recalled.update((name, tools) for name, tools in listings.items() if tools)

    def take_spoken(self, name: m.ServerName) -> str:
        """Return the MCP revision that a server spoke last, and forget it; empty: unknown."""
        seen = self._unsaved.get(name) or self._from_cache(name)
        if seen is None or not seen.protocol_version:
            return ""
        # A server may exit at a request of that revision: its next start must not try the revision again.
        self._unsaved[name] = replace(seen, protocol_version="")
        return seen.protocol_version

    def on_listed(self, name: m.ServerName) -> Callable[[SeenListing], None] | None:
        """Return a function that saves a server's listing for the cache; `None`: no turn would use it."""
        if not self._may_remember(name):
            return None
        return lambda seen: self._unsaved.update({name: seen})

    def unsaved(self) -> list[tuple[McpServer, SeenListing]]:
        """Return the listings that the user's cache does not hold yet, each once."""
        new, self._unsaved = self._unsaved, {}
        changed = {name: seen for name, seen in new.items() if self._cached.get(name) != seen}
        self._cached |= changed
        servers = ((self._servers[name], seen) for name, seen in changed.items())
        return [(server, seen) for server, seen in servers if isinstance(server, McpServer)]

    def _is_stale(self, name: m.ServerName) -> bool:
        seen = self._unsaved.get(name) or self._from_cache(name)
        return seen is not None and seen.expires_at is not None and seen.expires_at < time.time()

    def _found(self, name: m.ServerName) -> tuple[m.ListingSource, _Tools] | None:
        if name in self._last:
            return "runner", self._last[name]
        if name in self._recalled:
            return "trace", self._recalled[name]
        cached = self._from_cache(name)
        if cached is not None:
            return "cache", cached.tools
        return ("locked", self._locked[name]) if name in self._locked else None

    def _from_cache(self, name: m.ServerName) -> SeenListing | None:
        server = self._servers[name]
        if not self._may_remember(name) or not isinstance(server, McpServer):
            return None
        if name not in self._cached:
            from grue.transports.mcp.listing import ListingCache  # few programs need it

            self._cached[name] = ListingCache().load(name, server)
        return self._cached[name]

    def _of(
        self, name: m.ServerName, policy: FailurePolicy, registry: ProcessRegistry
    ) -> m.PresumedListing | None:
        server = self._servers[name]
        if not isinstance(server, HostTools):
            return self._listing(name, policy)
        listing = server.connect(name, registry).listing
        if listing.serves_unlisted:
            return None
        return m.PresumedListing(server=name, tools=listing.tools, source="known")

    def _listing(self, name: m.ServerName, policy: FailurePolicy) -> m.PresumedListing | None:
        found = self._found(name)
        if found is None:
            return None
        source, tools = found
        if source != "runner":
            tools = self._screened(name, tools, policy)
        return m.PresumedListing(server=name, tools=tools, source=source)

    def _approved(self, name: m.ServerName, policy: FailurePolicy) -> m.PresumedListing | None:
        # Tools that differ from the lock are not offered. If an outdated listing had only such tools, no call
        # would start a server that starts when called, and the server would never list its tools anew.
        if policy.on_tool_drift != "refuse" or name in self._last or name not in self._locked:
            return None
        tools = self._screened(name, self._locked[name], policy)
        return m.PresumedListing(server=name, tools=tools, source="locked")

    def _may_presume(self, name: m.ServerName) -> bool:
        locked = self._start_of(name) == "beside_if_locked" and name in self._locked
        return locked or self._may_remember(name)

    def _may_remember(self, name: m.ServerName) -> bool:
        """Return whether turns may use listings of the server that are not from the tool lock."""
        return self._start_of(name) in ("beside", "when_called")

    def _start_of(self, name: m.ServerName) -> StartWhen:
        server = self._servers.get(name)
        own = server.options.start if isinstance(server, McpServer) else None
        return own or "beside_if_locked"

    def _screened(self, name: m.ServerName, tools: _Tools, policy: FailurePolicy) -> _Tools:
        """Return the tools that a session would offer if the server listed `tools`."""
        before = self._screenings.get((name, policy.on_tool_drift))
        if before is not None and before[0] is tools:
            return before[1]
        server = self._servers[name]
        screened = tuple(replace(tool, server=name, trusted=False) for tool in tools)
        if isinstance(server, McpServer):
            screened = in_its_box(server, server.options.select(screened, lambda _kind, _text: None))
        if self._lock is not None:
            screened, _ = screen(self._lock.pins(name), name, screened, policy.on_tool_drift)
        self._screenings[name, policy.on_tool_drift] = tools, screened
        return screened


S = TypeVar("S", bound=Struct)

_FORMS: dict[str, tuple[Any, str]] = {  # the type of each argument, and how to write it; `None` is allowed
    "recorder": (Recorder, 'recorder=Recorder(); to write a trace, trace="runs"'),
    "trace": (str | os.PathLike, 'trace="runs" or trace="bot.jsonl"'),
    "approve": (Callable, "approve=function, which is called with the questions"),
    "elicit": (Callable, "elicit=function, an async def, which is called with the server's question"),
    "process_limits": (ProcessLimits, "process_limits=ProcessLimits(...)"),
    "tool_lock": (ToolLock, "tool_lock=ToolLock(...)"),
}


def refuse_other_kinds(**given: object) -> None:
    """Raise `MCPConfigError`, which says what to write, if an argument has a value of a wrong type."""
    for argument, value in given.items():
        kind, form = _FORMS[argument]
        if value is not None and not isinstance(value, kind):
            raise MCPConfigError(f"{argument}= wants {form}, not {type(value).__name__} {shown(value)}.")


def settings_or_default(argument: str, given: S | None, default: S) -> S:
    """Return `given` after a check of its class and its fields' types, or `default` if `given` is `None`."""
    if given is None:
        return default
    kind = type(default)
    if not isinstance(given, kind):
        found = f"{type(given).__name__} {shown(given)}"
        raise MCPConfigError(f"{argument}= wants {kind.__name__}(...), not {found}.")
    check_fields(argument, given)
    return given


def check_fields(argument: str, given: Struct) -> None:
    """Raise `MCPConfigError` if a field of `given` has another type than it is declared with."""
    kind = type(given)
    try:
        # Without `builtin_types`, bytes would become base64 text.
        msgspec.convert(msgspec.to_builtins(given, builtin_types=(bytes, bytearray, memoryview)), kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise MCPConfigError(f"{argument}={kind.__name__}(...): {fault_of(error)}.") from error
    except RecursionError as error:
        raise MCPConfigError(f"{argument}={kind.__name__}(...) is nested too deeply.") from error
