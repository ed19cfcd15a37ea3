"""`grue call`: call one tool and print its result."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

from grue import messages as m
from grue.cli.project import known_servers
from grue.cli.saying import GRUE, say, shown_argument
from grue.cli.tools import arguments_of, example_of, properties_of, required_of
from grue.config.documents import did_you_mean, nearest
from grue.config.settings import GameConfiguration
from grue.config.wiring import turn_limits
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPConfigError
from grue.protocol.tools.names import split_name
from grue.runtime.safe_text import plain_text, printable
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.tool_sessions.server_specs import StdioServer, is_boxed


def read_arguments(tool: m.ToolDefinition, text: str | None, pairs: Sequence[str]) -> m.JsonObject:
    """Return the arguments of a call: the JSON object `text`, changed and extended by `pairs` (`NAME=VALUE`).

    VALUE is read as JSON, unless the schema allows only a string. A VALUE that is not JSON of an allowed type
    is text if the schema allows a string or gives no type; otherwise it is an error.
    """
    arguments = {} if text is None else _object(text)
    known = properties_of(tool)
    for pair in pairs:
        name, equals, written = pair.partition("=")
        if not equals or not name:
            raise MCPConfigError(f"--arg {pair}: write NAME=VALUE.")
        if name not in known and tool.input_schema.get("additionalProperties") is False:
            meant, takes = did_you_mean(name, known), printable(f"It takes {', '.join(known) or 'none'}.")
            raise MCPConfigError(f"--arg {pair}: {tool.name} takes no argument {name!r}.{meant} {takes}")
        arguments[name] = _value(pair, written, _kinds(known.get(name)))
    return arguments


def _object(text: str) -> m.JsonObject:
    try:
        value = json_value(text)
    except (ValueError, RecursionError) as error:
        fault = f"""The arguments are not JSON: {error}. Write '{{"name": value}}', or --arg name=value."""
        raise MCPConfigError(fault) from error
    if not isinstance(value, dict):
        raise MCPConfigError("""The arguments are not a JSON object: write '{"name": value}'.""")
    return value


def json_value(text: str) -> object:
    """Parse the user's JSON. May raise `ValueError` (also for NaN and Infinity) or `RecursionError`."""
    value: object = json.loads(text)
    json.dumps(value, allow_nan=False)
    return value


def _value(pair: str, written: str, kinds: frozenset[str]) -> object:
    if kinds == {"string"}:
        return written
    value: object = written
    with suppress(ValueError, RecursionError):
        value = json_value(written)
    if not kinds or kinds & _kinds_of(value):
        return value
    if "string" in kinds:
        return written
    raise MCPConfigError(f"--arg {pair}: the value should be of type {' or '.join(sorted(kinds))}.")


def _kinds(schema: object) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    if isinstance(schema.get("enum"), list):
        return frozenset[str]().union(*map(_kinds_of, schema["enum"]))
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset([kinds])
    if isinstance(kinds, list):
        return frozenset(map(str, kinds))
    options = schema.get("anyOf") or schema.get("oneOf")
    each = list(map(_kinds, options)) if isinstance(options, list) else []
    return frozenset[str]().union(*each) if all(each) else frozenset()


_KINDS = {NoneType: ["null"], bool: ["boolean"], int: ["integer", "number"]}
_KINDS |= {str: ["string"], list: ["array"], dict: ["object"]}


def _kinds_of(value: object) -> frozenset[str]:
    if isinstance(value, float):
        return frozenset(["number", "integer"] if value.is_integer() else ["number"])
    return frozenset(_KINDS[type(value)])


_NOTE_CHARS = 300
_WIDTH, _MOST_CHARS = 80, 4_000


def call_tool(
    name: str,
    arguments: str | None,
    pairs: Sequence[str],
    mcp_config: Path | None,
    *,
    timeout_s: float | None,
    as_json: bool,
) -> bool:
    """Call a tool, print its result, and return whether the call succeeded."""
    config = GameConfiguration.of_project()
    known = known_servers(config, mcp_config)
    try:
        server, bare = split_name(name)
    except ValueError as error:
        fault = f"{name!r} is not a tool's full name. Write SERVER.TOOL; {GRUE} tools lists them."
        raise MCPConfigError(fault) from error
    servers = {server: known.usable(server)}
    recorder = Recorder()
    recorder.add(_show_notes)
    recorded: set[type] = set()
    recorder.add(lambda envelope, _: recorded.add(type(envelope.body)))
    with ToolClient(servers, limits=turn_limits(config), recorder=recorder) as client:
        tool = client.tool(name)
        if tool is None:
            listed = {each.tool: each.name for each in client.tools()}
            near = nearest(bare, listed)  # whole names of one server are all alike
            meant = f" Did you mean {listed[near]!r}?" if near is not None else ""
            fault = f"There is no tool {name!r}.{meant} Listed: {', '.join(listed.values()) or 'none'}."
            raise MCPConfigError(printable(fault))
        given = read_arguments(tool, arguments, pairs)
        require_all(client.recorder.redacted_body(tool), given)
        result = client.call(name, given, timeout_s)
        # A result may contain secrets from grue's environment or from the server's configuration.
        shown = client.recorder.redacted_body(result)
    recorder.settle()
    if as_json:
        say(json.dumps(shown.to_dict()))
    else:
        _print(name, shown)
    configured, was_sent = servers[server], m.ToolCalled in recorded
    if result.is_error and was_sent and isinstance(configured, StdioServer) and is_boxed(configured.sandbox):
        learn = f"{GRUE} sandbox learn {shown_argument(Path(known.source))} {server}"
        say(f"It runs in a sandbox. To see whether that refused it something: {learn}", err=True)
    return not result.is_error


def require_all(tool: m.ToolDefinition, arguments: m.JsonObject) -> None:
    """Raise `MCPConfigError` if a required argument is missing."""
    missing = [printable(name) for name in required_of(tool) if name not in arguments]
    if missing:
        taken = "\n".join(arguments_of(tool, _WIDTH))[:_MOST_CHARS]
        needs = f"{printable(tool.name)} needs {', '.join(missing)}."
        unknown = printable(", ".join(arguments.keys() - properties_of(tool)))
        needs += f" It has no argument {unknown}." if unknown else ""
        raise MCPConfigError(f"{needs} It takes:\n{taken}\nFor example: {example_of(tool)}")


def _show_notes(envelope: Envelope[Any], _line: bytes) -> None:
    if isinstance(envelope.body, m.ServerNoted):
        say(printable(f"{envelope.body.kind}: {envelope.body.text}", _NOTE_CHARS), err=True)
    elif isinstance(envelope.body, m.ServerDied) and envelope.body.failure.last_words:
        say(f"Its last line on stderr: {printable(envelope.body.failure.last_words, _NOTE_CHARS)}", err=True)


def _print(name: str, result: m.ToolCallResult) -> None:
    content = result.content
    if content is not None and content != result.error_message:
        text = content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)
        say(plain_text(text))
    if result.is_error:
        say(f"grue: {name}: {plain_text(result.error_message or '')}", err=True)
