"""The tools that grue itself offers to a model, beside those of the servers.

Calls of these tools go to one server, `SERVER`, an actor of the turn (`actors/built_in.py`). They have no
effect outside the turn, so no policy judges them. With many tools (`ToolSearch.above`), the model is offered
`find_tools` and `call_tool` in place of most of the servers' tools. A call of `call_tool` is replaced by a
call of the named tool, which the policy then judges. The conversation keeps the call as the model wrote it.

To add a tool, put its definition here, offer it in `turn/states.py`, and put the code that answers its calls
into `tool_sessions/`. `_built_in` in `engine/turn_actors.py` connects the two.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from grue import messages as m
from grue.policies import ToolAnnotations
from grue.protocol.tools.names import SERVER, is_built_in, read_arguments

_MOST_SERVERS = 100


def _defined(name: str, description: str, properties: m.JsonObject, **keywords: object) -> m.ToolDefinition:
    return m.ToolDefinition(
        server=SERVER,
        tool=name,
        full_name=name,
        description=description,
        input_schema={"type": "object", "properties": properties, **keywords},
        annotations=ToolAnnotations(read_only=True),
        trusted=True,
    )


READ_RESULT = _defined(
    "read_result",
    "Read parts of an earlier tool result that you were shown cut or cleared, by the handle that was"
    " named there. Give one of: first_line and last_line; a pattern, to find lines; a json_path, to"
    " select values of a JSON result. Without any of them you get the beginning. This does not call the"
    " tool again.",
    {
        "handle": {"type": "string", "description": "The handle of the result."},
        "first_line": {"type": "integer", "minimum": 1},
        "last_line": {"type": "integer", "minimum": 1},
        "pattern": {
            "type": "string",
            "description": "Regular expression without look-around and back references; (?i) ignores case.",
        },
        "json_path": {
            "type": "string",
            "description": "Such as $.items[0].name, $.items[0:10], $.items[*].id or $['a key'].",
        },
        "skip": {
            "type": "integer",
            "minimum": 0,
            "description": "To go on: how many characters, matches or values to leave out first.",
        },
    },
    required=["handle"],
    additionalProperties=False,
)

CALL_TOOL = _defined(
    "call_tool",
    "Call a tool that find_tools has found. Give its name as it was listed, and its arguments as its"
    " input_schema says.",
    {
        "name": {"type": "string", "description": "The tool's name, such as files.read."},
        "arguments": {"type": "object", "description": "The arguments of that tool."},
    },
    required=["name"],
)

_FIND_TOOLS = _defined(
    "find_tools",
    "Find tools for a task. There are many tools, and only these few are listed here. Returns the names,"
    " descriptions and input schemas of the tools that fit best; call_tool calls them.",
    {
        "query": {
            "type": "string",
            "description": "What the tool should do, in a few words: read a file, list open issues.",
        }
    },
    required=["query"],
)


def find_tools(servers: Iterable[m.ServerName]) -> m.ToolDefinition:
    """Return the definition of `find_tools`. It names at most 100 of the servers, started or not."""
    names = list(servers)
    named = ", ".join(names[:_MOST_SERVERS])
    more = f" and {len(names) - _MOST_SERVERS} more" if len(names) > _MOST_SERVERS else ""
    return replace(_FIND_TOOLS, description=f"{_FIND_TOOLS.description} The servers: {named}{more}.")


def offers(tools: Iterable[m.ToolDefinition], tool: m.ToolDefinition) -> bool:
    """Return whether the built-in `tool` is among `tools`."""
    return any(is_built_in(each) and each.tool == tool.tool for each in tools)


def named_call(call: m.ToolCall, *, bind: bool = True) -> m.ToolCall:
    """Return the call that `call` makes through `call_tool`; `call` itself if it makes none.

    `call` makes none if its JSON has members beside `name`, but no member `arguments`: the tool would run
    without these members. With `bind=False` it does run without them, as in old traces.
    """
    if call.name != CALL_TOOL.name:
        return call
    wrapped = read_arguments(call.arguments)
    name = wrapped.get("name") if isinstance(wrapped, dict) else None
    if not isinstance(wrapped, dict) or not isinstance(name, str) or not name:
        return call
    if bind and "arguments" not in wrapped and len(wrapped) > 1:
        return call
    arguments = wrapped.get("arguments", {})
    # Small models write `arguments` as a string that contains JSON.
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return replace(call, name=name, arguments=text)
