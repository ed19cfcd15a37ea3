"""From a raw page of `tools/list` to tool definitions; pure. One malformed tool spoils no other (P37)."""

from collections.abc import Iterator, Mapping
from typing import Any

from grue.mcp_transport.notices import Notify
from grue.messages import ServerName, ToolDefinition
from grue.protocol.tool_results import json_object


def read_tools(page: Mapping[str, Any], server: ServerName, notify: Notify) -> Iterator[ToolDefinition]:
    """Yield the well-formed tools of a page; report each other one to `notify` as `bad_tool` with the reason.

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
            notify("bad_tool", f"{name or f'tool {number}'}: {fault}")
            continue
        output_schema = tool.get("outputSchema")
        yield ToolDefinition(
            server=server,
            tool=tool["name"],
            description=tool.get("description") or "",
            input_schema=json_object(tool["inputSchema"]),
            output_schema=json_object(output_schema) if isinstance(output_schema, dict) else None,
        )


def _fault(tool: Any) -> str | None:
    if not isinstance(tool, dict):
        return "not an object"
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        return "no name"
    if not isinstance(tool.get("description") or "", str):
        return "description is not text"
    schema = tool.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "inputSchema is not the schema of an object"
    if not isinstance(tool.get("outputSchema") or {}, dict):
        return "outputSchema is not a schema"
    execution = tool.get("execution")
    if isinstance(execution, dict) and execution.get("taskSupport") == "required":
        return "it can only be called as a task, and grue calls tools"
    return None
