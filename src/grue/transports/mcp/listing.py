"""Read the tool definitions of a raw `tools/list`, page by page. A malformed tool is left out.

Source: P37
"""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.policies import ToolAnnotations
from grue.protocol.json_text import json_object
from grue.runtime.safe_text import well_formed
from grue.tool_sessions.notices import Notify

MAX_TOOL_BYTES = 256 * 1024
"""Longest definition of a tool. Each request to the model carries all definitions."""

_NAME_CHARS = 1000
_LONGEST_TTL_MS = 10 * 365 * 86_400_000

_HINTS = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}


class ListedTools(Struct, frozen=True):
    """The tools of a whole listing.

    Attributes:
        tools: The well-formed ones, in the server's order.
        as_tasks: The bare names of those that have to be called as tasks (2025-11-25).
        ttl_s: How long the server says that it holds, in seconds; `None`: it does not say.
        private: Whether the server says so, and says how long it holds.
    """

    tools: tuple[m.ToolDefinition, ...] = ()
    as_tasks: frozenset[str] = frozenset()
    ttl_s: float | None = None
    private: bool = False


async def read_pages(
    ask: Callable[[m.JsonObject], Awaitable[m.JsonObject]],
    server: m.ServerName,
    max_pages: int,
    notify: Notify,
) -> ListedTools:
    """Read all pages of a listing. A repeated cursor or too many pages end it; what was read counts.

    Args:
        ask: Sends `tools/list` with these parameters; its errors pass through.
        server: The server's name in the configuration.
        max_pages: Most pages that are read.
        notify: Receives a `bad_tool` notice for what is left out.

    Raises:
        ValueError: A page has no list of tools at all.
    """
    tools: dict[str, m.ToolDefinition] = {}
    as_tasks: set[str] = set()
    cursors: set[str] = set()
    cursor: str | None = None
    ttl_s: float | None = None
    private = False
    for _ in range(max_pages):
        page = await ask({} if cursor is None else {"cursor": cursor})
        for tool in read_tools(page, server, notify):
            if tools.setdefault(tool.tool, tool) is not tool:
                notify("bad_tool", f"{tool.tool}: listed twice, the first one counts")
        as_tasks.update(_only_as_tasks(page))
        stated = _ttl_s(page)
        if stated is not None:
            ttl_s = stated if ttl_s is None else min(ttl_s, stated)
            private = private or page.get("cacheScope") == "private"
        following = page.get("nextCursor")
        if not isinstance(following, str):
            break
        if following in cursors:
            notify("bad_tool", f"the listing repeats the cursor {following!r}")
            break
        cursors.add(following)
        cursor = following
    else:
        notify("bad_tool", f"the listing has more than {max_pages} pages, the rest is left")
    return ListedTools(tuple(tools.values()), frozenset(as_tasks), ttl_s, private)


def _ttl_s(page: m.JsonObject) -> float | None:
    """Return how long a page holds; `None`: not stated.

    Zero is what the SDK's servers send if their author has not thought of it, so it says nothing.
    """
    stated = page.get("ttlMs")
    if not isinstance(stated, int | float) or isinstance(stated, bool) or not 0 < stated < math.inf:
        return None
    return min(stated, _LONGEST_TTL_MS) / 1000


def _only_as_tasks(page: m.JsonObject) -> Iterator[str]:
    tools = page.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        execution = tool.get("execution") if isinstance(tool, dict) else None
        if isinstance(execution, dict) and execution.get("taskSupport") == "required":
            yield str(tool.get("name"))


def read_tools(page: Mapping[str, Any], server: m.ServerName, notify: Notify) -> Iterator[m.ToolDefinition]:
    """Yield the well-formed tools of a page. Report each other one as a `bad_tool` notice with the reason.

    Raises:
        ValueError: The page has no list of tools at all.
    """
    tools = page.get("tools")
    if not isinstance(tools, list):
        raise ValueError("tools is not a list")
    for number, tool in enumerate(tools, start=1):
        fault = _fault(tool)
        if fault is not None:
            name = tool.get("name") if isinstance(tool, dict) else None
            name = name[:_NAME_CHARS] if isinstance(name, str) else None
            notify("bad_tool", f"{name or f'tool {number}'}: {fault}")
            continue
        output_schema = tool.get("outputSchema")
        definition = m.ToolDefinition(
            server=server,
            tool=tool["name"],
            description=well_formed(tool.get("description") or ""),
            input_schema=json_object(tool["inputSchema"]),
            output_schema=json_object(output_schema) if isinstance(output_schema, dict) else None,
            annotations=_annotations(tool.get("annotations")),
        )
        if len(msgspec.json.encode(definition)) > MAX_TOOL_BYTES:
            notify("bad_tool", f"{tool['name']}: its definition is longer than {MAX_TOOL_BYTES} bytes")
            continue
        yield definition


def as_listed(tool: m.ToolDefinition) -> m.JsonObject:
    """Return a tool as a `tools/list` page has it; `read_tools` reads it back."""
    listed: m.JsonObject = {
        "name": tool.tool,
        "description": tool.description,
        "inputSchema": tool.input_schema,
    }
    if tool.output_schema is not None:
        listed["outputSchema"] = tool.output_schema
    if tool.annotations is not None:
        stated = {key: getattr(tool.annotations, field) for field, key in _HINTS.items()}
        listed["annotations"] = {key: value for key, value in stated.items() if value is not None}
    return listed


def _annotations(stated: Any) -> ToolAnnotations | None:
    """Return the hints that are stated as booleans. Anything else counts as not stated."""
    if not isinstance(stated, dict):
        return None
    hints = {field: stated.get(key) for field, key in _HINTS.items() if isinstance(stated.get(key), bool)}
    return ToolAnnotations(**hints) if hints else None


def _fault(tool: Any) -> str | None:
    if not isinstance(tool, dict):
        return "not an object"
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        return "no name"
    if len(tool["name"]) > _NAME_CHARS or well_formed(tool["name"]) != tool["name"]:
        return f"its name is longer than {_NAME_CHARS} characters, or no Unicode text"
    if not isinstance(tool.get("description") or "", str):
        return "description is not text"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "inputSchema is not the schema of an object"
    if not isinstance(tool.get("outputSchema") or {}, dict):
        return "outputSchema is not a schema"
    return None
