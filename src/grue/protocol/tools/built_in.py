"""The tools that grue itself offers to a model, beside those of the servers.

They are served under one name, `SERVER`, by an actor of the turn (`actors/built_in.py`). That server needs no
session: it is never opened, listed or closed, so the machine only adds its tools to those that it offers.
A built-in tool has no effect outside the turn. So no policy judges it, and no person is asked about it.

To add one: its definition here, its answer in `tool_sessions/`, a branch in the actor.
"""

from collections.abc import Iterable

from grue import messages as m
from grue.policies import ToolAnnotations

SERVER = m.ServerName("grue.tools")
"""The server of the built-in tools. A user's server cannot have this name, because it has a dot."""

READ_RESULT = m.ToolDefinition(
    server=SERVER,
    tool="read_result",
    full_name="read_result",
    description=(
        "Read parts of an earlier tool result that you were shown cut or cleared, by the handle that was"
        " named there. Give one of: first_line and last_line; a pattern, to find lines; a json_path, to"
        " select values of a JSON result. Without any of them you get the beginning. This does not call the"
        " tool again."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "handle": {"type": "string", "description": "The handle of the result."},
            "first_line": {"type": "integer", "minimum": 1},
            "last_line": {"type": "integer", "minimum": 1},
            "pattern": {
                "type": "string",
                "description": "Regular expression without look-around and back references; (?i) ignores"
                " case.",
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
        "required": ["handle"],
        "additionalProperties": False,
    },
    annotations=ToolAnnotations(read_only=True),
    trusted=True,
)
"""Reads on in a result that is too long for the conversation, or that was cleared from it."""


def is_built_in(tool: m.ToolDefinition) -> bool:
    """Return whether grue serves a tool itself."""
    return tool.server == SERVER


def with_tool(tools: tuple[m.ToolDefinition, ...], tool: m.ToolDefinition) -> tuple[m.ToolDefinition, ...]:
    """Return the tools with a built-in one behind them; one that is among them stays where it is."""
    return tools if tool in tools else (*tools, tool)


def offers(tools: Iterable[m.ToolDefinition], tool: m.ToolDefinition) -> bool:
    """Return whether a built-in tool is among these."""
    return any(is_built_in(each) and each.tool == tool.tool for each in tools)
