"""Convert a tool as its server lists it to a function in the format of OpenAI-style endpoints."""

from collections.abc import Iterable

from grue import messages as m

_NO_ARGUMENTS: m.JsonObject = {"type": "object", "properties": {}}


def openai_tool(tool: m.ToolDefinition, *, name: str | None = None) -> m.JsonObject:
    """Return the tool in OpenAI's format.

    Args:
        tool: The tool as its server lists it.
        name: The name on the wire; default: the canonical name.

    Source: R8.1, R8.4, P33, P34, P36
    """
    return {
        "type": "function",
        "function": {
            "name": tool.name if name is None else name,
            "description": tool.description,
            "parameters": _parameters(tool.input_schema),
        },
    }


def openai_tools(tools: Iterable[m.ToolDefinition]) -> list[m.JsonObject]:
    """Return the tools in OpenAI's format with their canonical names, for hosts.

    Source: R8.6, P10, P38
    """
    return [openai_tool(tool) for tool in tools]


def _parameters(schema: m.JsonObject) -> m.JsonObject:
    # In MCP a tool without arguments may leave `properties` out. OpenAI refuses an object schema without it.
    if "type" in schema and "properties" in schema:
        return schema
    return {**_NO_ARGUMENTS, **schema}
