"""`grue tools`: list the tools of the configured servers, and compare them with the tool lock or write it."""

import json
import shlex
import shutil
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from grue import messages as m
from grue.cli.project import BUNDLED_SERVER, KnownServers, known_servers
from grue.cli.saying import GRUE, shown_path
from grue.cli.saying import say_if_read as say
from grue.config import tool_lock_file
from grue.config.mcp_servers import MCPConfig, one_at_a_time
from grue.config.settings import GameConfiguration
from grue.config.tool_lock_file import listing_path, write_listings
from grue.config.wiring import on_tool_drift, turn_limits
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPConfigError
from grue.protocol.tools.json_schema import NotCheckedError, target
from grue.protocol.tools.lock import ToolPin, drift_text, lock_of, screen
from grue.runtime.safe_text import plain_text, printable
from grue.runtime.trace.recorder import Envelope, Recorder
from grue.testing.offline.schema_instances import UnsatisfiableError, minimal
from grue.tool_sessions.failures import failure_text
from grue.tracing.facts import counted

Listings = Mapping[str, tuple[m.ToolDefinition, ...]]

_MOST_NOTICE = 300
_MARKS = {"added": "+", "removed": "-", "changed": "~"}
_WORDS = {"added": "new", "removed": "removed", "changed": "changed"}


def listing_notices(recorder: Recorder) -> defaultdict[str, list[str]]:
    """Return a dict that gets the notices about malformed tools and schemas, by server."""
    notices: defaultdict[str, list[str]] = defaultdict(list)

    def keep(envelope: Envelope[Any], _line: bytes) -> None:
        note = envelope.body
        if isinstance(note, m.ServerNoted) and note.kind in ("bad_tool", "bad_schema"):
            effect = "" if note.kind == "bad_tool" else " (its results are not checked)"
            notices[note.server].append(printable(note.text, _MOST_NOTICE) + effect)

    recorder.add(keep)
    return notices


def drifts(known: KnownServers, listings: Listings, config: GameConfiguration) -> Iterator[m.ToolDrifted]:
    """Yield a `ToolDrifted` for each tool that differs from the tool lock, if a lock is used."""
    if known.source == BUNDLED_SERVER or config.mcp_tool_lock == "off":
        return
    lock = tool_lock_file.read_tool_lock(tool_lock_file.lock_path(Path(known.source)))
    if lock is None:
        return
    for name, tools in listings.items():
        _, notes = screen(lock.pins(name), m.ServerName(name), tools, on_tool_drift(config))
        yield from notes


def approve(known: KnownServers, listings: Listings, shown: Listings) -> Iterator[str]:
    """Write the tools in `listings` into the tool lock. Yield a line for each change, then one with counts.

    The lock keeps the tools of the configuration file's other servers. `shown` has the same tools without
    secrets. A server whose tool definitions contain a secret is left out of `mcp_tools.listing.json`.
    """
    if known.source == BUNDLED_SERVER:
        fault = "There is nothing to lock: no file of MCP servers is configured. Name one with --mcp-config."
        raise MCPConfigError(fault)
    path = tool_lock_file.lock_path(Path(known.source))
    secret = [name for name, tools in listings.items() if shown[name] != tools]
    plain = {name: tools for name, tools in listings.items() if name not in secret}
    with one_at_a_time(path.parent):
        # Another `grue add` may have added and approved a server since `known` was read.
        every = tuple(MCPConfig.from_file(Path(known.source)).mcpServers)
        # Write the lock last: if the listing cannot be written, no tool is approved. A listing that does not
        # fit the lock is not used.
        write_listings(listing_path(path), plain, keep=[name for name in every if name not in secret])
        changes = tool_lock_file.write(path, listings, shown=shown, keep=every)
    approved = {name: lock_of(tools, shown[name]) for name, tools in listings.items()}
    for change in changes:
        yield _line(change, approved.get(change.server, {}).get(change.tool))
    count = sum(map(len, approved.values()))
    numbers: Counter[str] = Counter(change.change for change in changes)
    told = [f"{numbers[kind]} {word}" for kind, word in _WORDS.items() if numbers[kind]]
    state = ", ".join(told) or "nothing has changed"
    yield f"{shown_path(path)}: {counted(count, 'tool')} approved, {state}"


def _line(change: m.ToolDrifted, pin: ToolPin | None) -> str:
    what = pin.summary if pin is not None and change.change == "added" else ""
    if change.change == "changed":
        what = ", ".join(part.replace("_", " ") for part in change.parts)
    return printable(f"{_MARKS[change.change]} {change.server}.{change.tool}  {what}").rstrip()


_SAMPLES = {"integer": "1", "number": "1.5", "boolean": "true", "object": "{}", "list": "[]", "null": "null"}
_IN_A_PIPE = 80
_WIDEST = 96
_VALUES_SHOWN = 8
_MOST_STEPS, _INNER = 100, ("allOf", "anyOf", "oneOf", "items")

Outcome = m.SessionOpened | m.ServerFailure | str  # a text says why the server's configuration is unusable


def list_tools(server: str | None, mcp_config: Path | None, *, as_json: bool, lock: bool) -> bool:
    """Print the tools of one server or all; with `lock`, approve them. Return whether all servers started."""
    config = GameConfiguration.of_project()
    everything = known_servers(config, mcp_config)
    known = _chosen(everything, server)
    with ToolClient(known.servers, limits=turn_limits(config)) as client:
        notices = listing_notices(client.recorder)
        outcomes: dict[str, Outcome] = {**client.connect(), **known.unusable}
    client.recorder.settle()
    shown = {name: _shown(outcome, client.recorder) for name, outcome in outcomes.items()}
    if as_json:
        say(json.dumps({"servers": [_as_json(name, each) for name, each in shown.items()]}))
    else:
        _print(shown, known)
    for name, said in notices.items():
        for notice in said:
            say(f"grue: {name}: {notice}", err=True)
    listed = _listings(outcomes)
    if lock:
        say("\n".join(approve(everything, listed, _listings(shown))), err=as_json)
    else:
        for note in drifts(everything, listed, config):
            say(f"grue: {printable(drift_text(note))}", err=True)
    return all(isinstance(outcome, m.SessionOpened) for outcome in outcomes.values())


def _listings(outcomes: Mapping[str, Outcome]) -> Listings:
    return {name: each.tools for name, each in outcomes.items() if isinstance(each, m.SessionOpened)}


def _shown(outcome: Outcome, recorder: Recorder) -> Outcome:
    # A server's tools or errors may show API keys that the server was given.
    return recorder.redacted_text(outcome) if isinstance(outcome, str) else recorder.redacted_body(outcome)


def _chosen(known: KnownServers, server: str | None) -> KnownServers:
    if not known.servers and not known.unusable:
        raise MCPConfigError(f"No MCP servers configured in {known.source}. Name one under 'mcpServers'.")
    if server is None:
        return known
    if server in known.unusable:
        return replace(known, servers={}, unusable={server: known.unusable[server]})
    return replace(known, servers={server: known.usable(server)}, unusable={})


def _as_json(name: str, outcome: Outcome) -> m.JsonObject:
    match outcome:
        case m.SessionOpened(protocol_version=version, tools=tools):
            fields = ("name", "description", "input_schema", "output_schema")
            listed = [{field: getattr(tool, field) for field in fields} for tool in tools]
            return {"server": name, "protocol_version": version, "tools": listed}
        case m.ServerFailure():
            return {"server": name, "error": failure_text(outcome), "phase": outcome.phase}
        case _:
            return {"server": name, "error": outcome}


def _print(outcomes: Mapping[str, Outcome], known: KnownServers) -> None:
    width = _IN_A_PIPE
    if sys.stdout.isatty():
        width = max(40, min(shutil.get_terminal_size((_IN_A_PIPE, 24)).columns, _WIDEST))
    for number, (name, outcome) in enumerate(outcomes.items()):
        if isinstance(outcome, m.SessionOpened):
            for line in described(outcome, known.source, width):
                say(line)
            if number + 1 < len(outcomes):
                say()
        else:
            text = failure_text(outcome) if isinstance(outcome, m.ServerFailure) else outcome
            say(f"grue: {name}: {plain_text(text)}", err=True)


def described(opened: m.SessionOpened, source: str, width: int) -> Iterator[str]:
    """Yield printable lines that describe a server and its tools."""
    tools = counted(len(opened.tools), "tool")
    yield from _wrapped(f"{opened.server} · {tools} · MCP {opened.protocol_version} · {source}", width)
    for tool in opened.tools:
        yield ""
        yield from _wrapped(f"  {tool.name}", width)
        yield from _wrapped(" ".join(tool.description.split()), width, "    ")
        yield from arguments_of(tool, width)


def arguments_of(tool: m.ToolDefinition, width: int) -> Iterator[str]:
    """Yield printable lines that describe the arguments of a tool."""
    required = required_of(tool)
    for name, schema in properties_of(tool).items():
        yield from _argument(name, schema, required=name in required, width=width)


def example_of(tool: m.ToolDefinition) -> str:
    """Return an example command that calls the tool with its required arguments."""
    properties = properties_of(tool)
    given = [f"{name}={_sample(properties.get(name), tool)}" for name in required_of(tool)]
    words = (f"--arg {shlex.quote(each)}" for each in given)
    return printable(" ".join([f"{GRUE} call {shlex.quote(tool.name)}", *words]))


def _sample(schema: object, tool: m.ToolDefinition) -> str:
    if isinstance(schema, dict):
        options = schema.get("enum")
        for value in (schema.get("default"), *(options if isinstance(options, list) else ())):
            if value is not None:
                return value if isinstance(value, str) else json.dumps(value)
        with suppress(UnsatisfiableError):
            if kind_of(schema).startswith("object"):
                return json.dumps(minimal({**schema, "$defs": tool.input_schema.get("$defs")}, text="TEXT"))
    return _SAMPLES.get(kind_of(schema).partition(" ")[0], "TEXT")


def _argument(name: str, schema: object, *, required: bool, width: int) -> Iterator[str]:
    needed = "required" if required else "optional"
    if isinstance(schema, dict) and "default" in schema:
        needed += f", default {json.dumps(schema['default'], ensure_ascii=False)}"
    yield from _wrapped(f"    {name}: {kind_of(schema)}, {needed}", width, hanging="        ")
    description = schema.get("description") if isinstance(schema, dict) else None
    if isinstance(description, str):
        yield from _wrapped(" ".join(description.split()), width, "        ")


def kind_of(schema: object) -> str:
    """Return in words the type that a JSON Schema asks for, such as "list of string"."""
    if not isinstance(schema, dict):
        return "anything"
    if isinstance(values := schema.get("enum"), list):
        shown = ", ".join(json.dumps(value, ensure_ascii=False) for value in values[:_VALUES_SHOWN])
        return f"one of {shown}{', ...' if len(values) > _VALUES_SHOWN else ''}"
    kinds: Any = schema.get("type")
    names = kinds if isinstance(kinds, list) else [kinds] if kinds else []
    if not names:
        options = schema.get("anyOf") or schema.get("oneOf")
        return " or ".join(map(kind_of, options)) if isinstance(options, list) else "anything"
    words = [f"list of {kind_of(schema.get('items'))}" if name == "array" else str(name) for name in names]
    return " or ".join(words)


def properties_of(tool: m.ToolDefinition) -> dict[str, object]:
    """Return the schemas of the tool's arguments, by name; an argument's `$ref` is resolved if possible."""
    whole = tool.input_schema
    known: Any = whole.get("properties")
    known = known if isinstance(known, dict) else {}
    return {name: _resolved(each, whole, iter(range(_MOST_STEPS))) for name, each in known.items()}


def _resolved(schema: Any, whole: m.JsonObject, steps: Iterator[int], *above: object) -> Any:
    # `steps` limits the work: many references can lead to one another.
    if next(steps, None) is None or not isinstance(schema, dict | list):
        return schema
    if isinstance(schema, list):
        return [_resolved(each, whole, steps, *above) for each in schema]
    rest = {k: _resolved(v, whole, steps, *above) if k in _INNER else v for k, v in schema.items()}
    match rest.get("allOf"):
        case [dict() as only]:  # some libraries write a reference with a description like this
            rest = only | {key: value for key, value in rest.items() if key != "allOf"}
    reference = rest.pop("$ref", None)
    with suppress(NotCheckedError):
        if reference is not None and reference not in above:
            return _resolved(target(reference, whole, {}) | rest, whole, steps, *above, reference)
    return rest


def required_of(tool: m.ToolDefinition) -> list[str]:
    """Return the names of the tool's required arguments."""
    required = tool.input_schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _wrapped(text: str, width: int, indent: str = "", *, hanging: str | None = None) -> Iterator[str]:
    after = indent if hanging is None else hanging
    yield from textwrap.wrap(printable(text), width, initial_indent=indent, subsequent_indent=after)
