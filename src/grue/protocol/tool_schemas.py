"""From a tool as its server lists it to a function as OpenAI-style endpoints take it."""

from collections.abc import Iterable

from grue.messages import JsonObject, ToolDefinition

_NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}


def openai_tool(tool: ToolDefinition, *, name: str | None = None) -> JsonObject:
    """Return the tool in OpenAI's format (R8.1, R8.4, P33, P36).

    Args:
        tool: The tool as listed.
        name: A wire name; default: the canonical name (P34).
    """
    return {
        "type": "function",
        "function": {
            "name": tool.name if name is None else name,
            "description": tool.description,
            "parameters": _parameters(tool.input_schema),
        },
    }


def openai_tools(tools: Iterable[ToolDefinition]) -> list[JsonObject]:
    """Return the tools with their canonical names, as hosts get to see them (R8.6, P10, P38)."""
    return [openai_tool(tool) for tool in tools]


def _parameters(schema: JsonObject) -> JsonObject:
    # MCP lets a tool without arguments leave `properties` out; OpenAI refuses an object schema without it.
    if "type" in schema and "properties" in schema:
        return schema
    return {**_NO_ARGUMENTS, **schema}
