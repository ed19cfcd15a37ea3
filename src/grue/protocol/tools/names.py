"""Tools as a model sees them: their names, their definitions, and the arguments that the model writes.

The canonical name is `{server}.{tool}`, or `ToolDefinition.full_name` if that is set. MCP allows dots and 128
characters in a tool's name. Most endpoints allow only letters, digits, `_` and `-`, at most 64 of them.
So `WireNames` with the style `encoded` gives each tool a wire name, which these endpoints accept.

Source: R8.1, R8.2, R8.3, R8.4, P33, P34, P35, P36
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.protocol.json_text import MAX_CHARS, MAX_DEPTH, MAX_VALUES, is_crowded, is_deep, json_object
from grue.runtime.large_data import count_of
from grue.runtime.safe_text import plain_text

NameStyle = Literal["canonical", "encoded"]
Tools: TypeAlias = tuple[m.ToolDefinition, ...]
Servers: TypeAlias = tuple[m.ServerName, ...]

SERVER = m.ServerName("grue.tools")
"""The server of the built-in tools. Users cannot give this name, because of its dot (see `MCP_PREFIX`)."""

MCP_PREFIX = "mcp."
"""Except in `SERVER`, a server's name may have a dot only at the end of this prefix. The agent loop puts it
before the names of its MCP servers, so that the tools of the server `files` are named `mcp.files.TOOL`."""

MAX_WIRE_NAME = 64
_WIRE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")


def is_built_in(tool: m.ToolDefinition) -> bool:
    """Return whether a tool is one of grue's own."""
    return tool.server == SERVER


def split_name(name: str) -> tuple[str, str]:
    """Split a canonical name at its first dot into server and tool; without a dot, raise `ValueError`."""
    server, dot, tool = name.partition(".")
    if not dot:
        raise ValueError(f"Invalid tool name format: {name}. Expected format: {{server_name}}.{{tool_name}}")
    return server, tool


def split_known(name: str, servers: Iterable[str]) -> tuple[str, str] | None:
    """Split a canonical name into server (the longest of `servers` that fits) and tool; `None`: none fits."""
    server = max((each for each in servers if name.startswith(f"{each}.")), key=len, default=None)
    return None if server is None else (server, name[len(server) + 1 :])


def split_unlisted(name: str, servers: Collection[str]) -> tuple[str, str] | None:
    """Split `server.tool` or `server__tool` (as on the wire); `None` if it names none of `servers`."""
    for server in servers:
        for separator in (".", "__"):
            tool = name.removeprefix(f"{server}{separator}")
            if tool and tool != name:
                # `_readable` turns `mcp.files.read` into `mcp__files__read`: undo that.
                in_mcp = server == "mcp" and separator == "__"
                return server, tool.replace("__", ".", 1) if in_mcp else tool
    return None


def is_wire_name(name: str) -> bool:
    """Return whether every endpoint accepts `name` unchanged."""
    return _WIRE_NAME.fullmatch(name) is not None


class WireNames:
    """A two-way table of canonical names and valid, unique wire names. An entry never changes.

    With the style `canonical` the table is empty: each canonical name is its own wire name.
    """

    def __init__(self, style: NameStyle, names: Iterable[str] = ()) -> None:
        self.style: NameStyle = style
        self._wire: dict[str, str] = {}
        self._canonical: dict[str, str] = {}
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Add canonical names, in any order."""
        for name in sorted(names, key=lambda name: (not is_wire_name(name), name)):
            self.to_wire(name)

    def to_wire(self, name: str) -> str:
        """Return the wire name. A new name is added: a call in the history may name an unlisted tool."""
        if self.style == "canonical":
            return name
        if name not in self._wire:
            wire = self._free_name(name)
            self._wire[name] = wire
            self._canonical[wire] = name
        return self._wire[name]

    def to_canonical(self, wire: str) -> str:
        """Return the canonical name; an unknown name is returned unchanged."""
        return self._canonical.get(wire, wire)

    @property
    def known(self) -> dict[str, str]:
        """The wire names so far, by canonical name; empty with the style `canonical`."""
        return {**self._wire}

    @classmethod
    def restored(cls, style: NameStyle, known: Mapping[str, str]) -> WireNames:
        """Return a table with the entries of `known`."""
        names = cls(style)
        names._wire = {**known}
        names._canonical = {wire: name for name, wire in known.items()}
        return names

    def _free_name(self, name: str) -> str:
        readable = name if is_wire_name(name) else _readable(name)
        wire, attempt = readable[:MAX_WIRE_NAME], 0
        while wire in self._canonical or (attempt == 0 and len(readable) > MAX_WIRE_NAME):
            # The number of the attempt changes the hash, if the name with the last hash is taken too.
            digest = hashlib.sha256(f"{attempt}:{name}".encode("utf-8", "surrogatepass")).hexdigest()[:10]
            wire = f"{readable[: MAX_WIRE_NAME - len(digest) - 1]}_{digest}"
            attempt += 1
        return wire


def _readable(name: str) -> str:
    # `mcp.files.read` becomes `mcp__files__read`, as other MCP hosts write it.
    text = _REFUSED.sub("_", name.replace(".", "__", 2 if name.startswith(MCP_PREFIX) else 1))
    return text if text[:1].isalpha() else f"t_{text}"


_NO_ARGUMENTS: m.JsonObject = {"type": "object", "properties": {}}


def openai_call(call: m.ToolCall) -> m.JsonObject:
    """Return a tool call in OpenAI's format."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def openai_tool(tool: m.ToolDefinition, *, name: str | None = None) -> m.JsonObject:
    """Return the tool in OpenAI's format; `name`: the name on the wire, by default the canonical one."""
    schema = tool.input_schema
    return {
        "type": "function",
        "function": {
            "name": tool.name if name is None else name,
            "description": tool.description,
            # OpenAI refuses an object schema without `properties`, which MCP allows.
            "parameters": schema if "type" in schema and "properties" in schema else _NO_ARGUMENTS | schema,
        },
    }


class ToolRoutes(Struct, frozen=True):
    """Tools by the name to show (`listed`), and by each name that calls them (`called`)."""

    listed: dict[str, m.ToolDefinition]
    called: dict[str, m.ToolDefinition]  # a bare name of several tools calls the last one
    shadowed: tuple[tuple[m.ToolDefinition, m.ToolDefinition], ...]  # a tool, and the one that it shadows


def tool_routes(tools: Iterable[m.ToolDefinition]) -> ToolRoutes:
    """Return the `ToolRoutes` of tools."""
    tools = tuple(tools)
    bare: dict[str, m.ToolDefinition] = {}
    shadowed = []
    for tool in tools:
        if tool.tool in bare:
            shadowed.append((tool, bare[tool.tool]))
        bare[tool.tool] = tool
    # `a.b` is the tool `b` of the server `a`, even if another server has a tool that is itself called `a.b`.
    called = bare | {f"{tool.server}.{tool.tool}": tool for tool in tools}
    listed = {
        tool.tool if called[tool.tool] is tool else f"{tool.server}.{tool.tool}": tool for tool in tools
    }
    return ToolRoutes(listed, called, tuple(shadowed))


CUT_MARK = " [cut at the length limit]"  # ends arguments that may be incomplete: the reply was cut
_MAX_ODD_VALUES = 10_000  # in arguments that are not strict JSON, which take longer to parse
_WORDS = 300
_DEEP = f"the arguments are nested more than {MAX_DEPTH} deep: make a flatter call"
_DIGITS = 40


def read_arguments(text: str, room: int = MAX_CHARS) -> m.JsonObject | str:
    """Return the arguments in `text`, or an error. `room`: how many characters `text` may have, at most."""
    if text.endswith(CUT_MARK):
        return "the reply was cut at its length limit before its arguments were whole: make the call again"
    if not text.strip():
        return {}
    if len(text) > MAX_CHARS:
        return f"the arguments are longer than {MAX_CHARS} characters: make a smaller call"
    if len(text) > room:
        return f"the arguments of this reply's calls are longer than {MAX_CHARS} characters: make fewer calls"
    if is_crowded(text):
        return f"the arguments hold more than {MAX_VALUES} values: make a smaller call"
    try:
        value = _strict(text)
    except RecursionError:
        # Do not use the error's text: it depends on how deep the stack is, which differs in a replay.
        return _DEEP
    except ValueError as error:
        if str(error).startswith("Extra data") and text.lstrip().startswith("{"):
            return "the arguments are more than one JSON object: make one call for each"
        return f"the arguments are not valid JSON: {plain_text(str(error))[:_WORDS]}"
    if not isinstance(value, dict):
        return f"the arguments must be a JSON object, not {type(value).__name__}"
    # Count the brackets first, which is fast: a value with few of them cannot be nested too deeply.
    deep = count_of(text, "{[") > MAX_DEPTH and is_deep(value)
    return _DEEP if deep else value


def _strict(text: str) -> object:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
        return msgspec.json.decode(text)
    if is_crowded(text, _MAX_ODD_VALUES):
        raise ValueError("it cannot be read, and is too long to say why")
    value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    return json_object(value) if isinstance(value, dict) and not is_deep(value) else value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:_DIGITS]} is out of range")
    return number
