"""`grue call`: call one tool and print its result."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from grue import messages as m
from grue.cli.arguments import read_arguments
from grue.cli.project import known_servers, no_such_server
from grue.cli.saying import say
from grue.config.settings import GameConfiguration
from grue.config.wiring import turn_limits
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPConfigError
from grue.protocol.tools.names import split_name
from grue.runtime.safe_text import plain_text, printable
from grue.runtime.trace.recorder import Envelope, Recorder

_NOTE_CHARS = 300


class CallOptions(Struct, frozen=True, kw_only=True):
    """The options of `grue call`; see its help."""

    name: str
    arguments: str | None = None
    pairs: Sequence[str] = ()
    mcp_config: Path | None = None
    timeout_s: float | None = None
    as_json: bool = False


def call_tool(options: CallOptions) -> bool:
    """Call the tool, print its result, and return whether the call succeeded.

    Raises:
        MCPConfigError: The configuration, the tool's name or an argument cannot be used.
        MCPServerStartupError: The server could not be started.
    """
    config = GameConfiguration.of_project()
    known = known_servers(config, options.mcp_config, unasked=True)
    server = _server_of(options.name)
    if server in known.unusable:
        raise MCPConfigError(known.unusable[server])
    if server not in known.servers:
        raise MCPConfigError(no_such_server(server, known))
    recorder = Recorder()
    recorder.add(_show_notes)
    servers = {server: known.servers[server]}
    with ToolClient(servers, limits=turn_limits(config), recorder=recorder) as client:
        tool = client.tool(options.name)
        if tool is None:
            listed = ", ".join(each.name for each in client.tools()) or "none"
            raise MCPConfigError(printable(f"There is no tool {options.name!r}. Listed: {listed}."))
        arguments = read_arguments(tool, options.arguments, options.pairs)
        result = client.call(options.name, arguments, options.timeout_s)
        # Replace secrets of the host's environment and of the server's configuration.
        shown = client.recorder.redacted_body(result)
    _print(options, shown)
    return not result.is_error


def _server_of(name: str) -> str:
    try:
        return split_name(name)[0]
    except ValueError as error:
        raise MCPConfigError(f"{name!r} is not a tool's full name. Write SERVER.TOOL.") from error


def _show_notes(envelope: Envelope[Any], line: bytes) -> None:
    del line
    if isinstance(envelope.body, m.ServerNoted):
        say(printable(f"{envelope.body.kind}: {envelope.body.text}", _NOTE_CHARS), err=True)


def _print(options: CallOptions, result: m.ToolCallResult) -> None:
    if options.as_json:
        say(json.dumps(result.to_dict()))
        return
    content = result.content
    if content is not None and content != result.error_message:
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)
        say(plain_text(text))
    if result.is_error:
        say(f"grue: {options.name}: {plain_text(result.error_message or '')}", err=True)
