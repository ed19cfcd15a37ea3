"""The tool servers of a runner: which there are, how a session connects to each, which ones a turn opens."""

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType

from msgspec.structs import replace

from grue import messages as m
from grue.engine.argument_checks import settings_or_default
from grue.errors import MCPConfigError
from grue.policies import STARTUP_TIMEOUT_S, OnFirstConnect, OnToolDrift, StartWhen, ToolPolicy, TurnLimits
from grue.protocol.tools.lock import ToolLock
from grue.protocol.tools.policy import check_policy
from grue.runtime.actor import Note
from grue.runtime.loading import load
from grue.runtime.processes.guard import guard
from grue.runtime.processes.process_group import ProcessRegistry
from grue.runtime.secrets.secret_forms import secrets_in
from grue.runtime.trace.recorder import Recorder
from grue.tool_sessions.connection import Connect, ToolConnection
from grue.tool_sessions.failures import DOWNLOAD_TIMEOUT_S, downloads
from grue.tool_sessions.host_tools import HostCommands, HostFunctions, ToolServer
from grue.tool_sessions.notices import ServerNotice
from grue.tool_sessions.server_specs import HttpServer, McpServer, StdioServer, starts_when_called
from grue.transports.mcp.client_options import ClientOptions, Pinning
from grue.transports.mcp.sdk_version import require_mcp

_MCP = "mcp."
"""A prefix that a server's name may have: an agent loop names all its MCP tools `mcp.SERVER.TOOL`."""


def connect_to(
    name: str, server: ToolServer, registry: ProcessRegistry, options: ClientOptions | None = None
) -> Connect:
    """Return a factory of connections to a tool server of any kind.

    Args:
        name: The server's name in the configuration.
        server: The server.
        registry: Lists the server's process, if it has one, so that it can be killed from outside.
        options: For MCP servers only. Their notices and changed definitions are recorded in any case.
    """
    match server:
        case StdioServer() | HttpServer():
            return lambda note: _mcp_client(server, registry, options or ClientOptions(), note)
        case HostCommands():
            return lambda _note: server.connect(m.ServerName(name), registry)
        case HostFunctions():
            return lambda note: server.connect(m.ServerName(name), note=note)
        case _:
            return server


def pinning(lock: ToolLock | None, server: m.ServerName, policy: OnToolDrift) -> Pinning | None:
    """Return the entries of one server in a tool lock; `None` if there is no lock."""
    return None if lock is None else Pinning(pins=lock.pins(server), policy=policy)


def _mcp_client(
    server: McpServer, registry: ProcessRegistry, options: ClientOptions, note: Note
) -> ToolConnection:
    def noted(notice: ServerNotice) -> None:
        body = m.ServerNoted(server=m.ServerName(server.name), kind=notice.kind, text=notice.text)
        note(body, sender=server.name)

    def became_task(tool: str, task: m.ToolTask) -> None:
        note(m.TaskCreated(server=m.ServerName(server.name), tool=tool, task=task), sender=server.name)

    # `usable_servers` has imported it if there is an MCP server; a runner with function tools does without.
    from grue.transports.mcp.client import McpClient

    pins = options.pinning
    if pins is not None:
        pins = replace(pins, on_drift=lambda drifted: note(drifted, sender=server.name))
    options = replace(options, on_notice=noted, on_task=became_task, pinning=pins)
    return McpClient(server, registry, options)


def hide_secrets(recorder: Recorder, servers: Iterable[ToolServer]) -> None:
    """Register the secrets of the environment and of the servers' settings with the recorder."""
    kinds = McpServer | HostCommands
    configured = [server.named_values() for server in servers if isinstance(server, kinds)]
    for name, value in secrets_in(os.environ, *configured).items():
        recorder.hide(name, value)


def usable_servers(servers: Mapping[str, ToolServer]) -> dict[m.ServerName, ToolServer]:
    """Return the servers by name, after checking the names.

    Raises:
        MCPConfigError: A name is invalid.
        MissingDependencyError: There is an MCP server to talk to, and `mcp` is absent or too old.

    Source: R14.4
    """
    if not isinstance(servers, Mapping):
        raise MCPConfigError(
            f'servers= wants the servers by name, servers={{"files": StdioServer(...)}}, not a'
            f" {type(servers).__name__}."
        )
    named = {_server_name(name): _under(name, server) for name, server in servers.items()}
    _refuse_ambiguous(named.keys())
    if any(isinstance(server, StdioServer | HttpServer) for server in named.values()):
        require_mcp()
        load("grue.transports.mcp.client")
    return named


def load_sessions(servers: Collection[ToolServer]) -> None:
    """Import what sessions with these servers need, and start the guard of processes."""
    if any(isinstance(server, McpServer) for server in servers):
        load("grue.transports.mcp.session_parts")
    if any(isinstance(server, HttpServer) for server in servers):
        load("grue.transports.mcp.http_wire")
        load("grue.transports.mcp.sdk_http")
    if any(isinstance(server, StdioServer) for server in servers):
        load("grue.transports.mcp.line_stream")
        guard.start()


def startup_limits(limits: TurnLimits, servers: Mapping[m.ServerName, ToolServer]) -> TurnLimits:
    """Return the limits with a number of seconds for the start of each server.

    What is set for a server in `limits` comes first, then the server's own limit, also if it is longer, and
    then the common one. If none is set, a command that may have to download the server has a minute.

    Source: R13.3
    """
    common_s, own = limits.server_startup_timeout_s, {}
    for name, server in servers.items():
        if isinstance(server, McpServer) and server.options.startup_timeout_s is not None:
            own[name] = server.options.startup_timeout_s
        elif common_s is None and isinstance(server, StdioServer) and downloads(server.command, server.args):
            own[name] = DOWNLOAD_TIMEOUT_S
    return replace(
        limits,
        server_startup_timeout_s=STARTUP_TIMEOUT_S if common_s is None else common_s,
        startup_timeouts_s={**own, **limits.startup_timeouts_s},
    )


def starting(servers: Mapping[m.ServerName, ToolServer], when: StartWhen) -> dict[m.ServerName, ToolServer]:
    """Return the servers, of which those that do not say when they start do so as `when` says."""
    return {
        name: replace(server, options=replace(server.options, start=when))
        if isinstance(server, StdioServer | HttpServer) and server.options.start is None
        else server
        for name, server in servers.items()
    }


def first_connects(servers: Mapping[m.ServerName, ToolServer]) -> dict[str, OnFirstConnect]:
    """Return the policy for a failed first connect, for the servers that are configured with `required`.

    A server that starts when it is called is not required unless that is set: the turn has work behind it by
    then, and the model can go on without the call.
    """
    chosen: dict[str, bool] = {}
    for name, server in servers.items():
        if isinstance(server, McpServer) and server.options.required is not None:
            chosen[name] = server.options.required
        elif starts_when_called(server):
            chosen[name] = False
    return {name: "raise" if required else "disable" for name, required in chosen.items()}


def _under(name: str, server: ToolServer) -> ToolServer:
    """Return the server with this name, which is the first part of its tools' full names."""
    if isinstance(server, StdioServer | HttpServer):
        return server if server.name == name else replace(server, name=name)
    form = _right_form(name, server)
    if form:
        raise MCPConfigError(f"The server '{name}' cannot be a {type(server).__name__}. Write {form}.")
    return server


def _right_form(name: str, server: object) -> str:
    """Return the advice for a value that is no server; empty if it may be one."""
    if isinstance(server, str):
        kind = "HttpServer(name={!r}, url=...)" if "://" in server else "StdioServer(name={!r}, command=...)"
        return kind.format(name)
    if isinstance(server, list | tuple | Mapping) or server is None:
        return f"StdioServer(name={name!r}, command=..., args=(...))"
    if isinstance(server, FunctionType | MethodType | BuiltinFunctionType) and not _may_connect(server):
        return f"FunctionTools([{server.__name__}])"
    return ""


def _may_connect(function: Callable[..., object]) -> bool:
    """Return whether a function may be a factory of connections: it is called with one argument, a `Note`."""
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
    bare = name.removeprefix(_MCP) if isinstance(name, str) else ""
    if not bare or "." in bare:
        raise MCPConfigError(
            f"'{name}' cannot be the name of a tool server: names may not be empty and may not contain "
            "a dot, because a tool's full name is SERVER.TOOL."
        )
    return m.ServerName(name)


def _refuse_ambiguous(names: Collection[m.ServerName]) -> None:
    """Refuse a server `mcp` beside a server `mcp.files`: both could serve the tool `mcp.files.read`."""
    prefixed = next((name for name in names if name.startswith(_MCP)), None)
    if "mcp" in names and prefixed is not None:
        raise MCPConfigError(
            f"The tools of the servers 'mcp' and '{prefixed}' could have the same names. Rename one of them."
        )


_GLOB = re.compile(r"[*?[]")


def usable_policy(policy: ToolPolicy | None, servers: Mapping[m.ServerName, ToolServer]) -> ToolPolicy:
    """Return the policy, with the host's functions and commands trusted; `None`: all is allowed.

    Raises:
        MCPConfigError: A value in it cannot be used; the error names the rule and the field.
    """
    policy = settings_or_default("tool_policy", policy, ToolPolicy())
    if policy == ToolPolicy():
        return policy
    own = (name for name, server in servers.items() if isinstance(server, HostFunctions | HostCommands))
    return replace(check_policy(policy), trusted=(*policy.trusted, *own))


def servers_for(
    tools: bool | Sequence[str], servers: Mapping[m.ServerName, ToolServer]
) -> tuple[m.ServerName, ...]:
    """Return the servers that a turn has to open.

    Args:
        tools: All tools, none, or patterns of their names.
        servers: The servers. One whose tools cannot match is left out; only an MCP server's tools are certain
            to be named after it.
    """
    if isinstance(tools, bool):
        return tuple(servers) if tools else ()
    starts = tuple(_GLOB.split(pattern, maxsplit=1)[0] for pattern in tools)
    return tuple(
        name
        for name, server in servers.items()
        if not isinstance(server, StdioServer | HttpServer)
        or any(f"{name}.".startswith(start) or start.startswith(f"{name}.") for start in starts)
    )
