"""The names by which tools of several servers can be called: `server.tool`, and the tool's bare name.

Of tools with one bare name, the last one has it; the others are listed by their full names.
"""

from collections.abc import Iterable

from msgspec import Struct

from grue import messages as m


class ToolRoutes(Struct, frozen=True):
    """The names of tools.

    Attributes:
        listed: Each tool by the name to show it with: its bare name, or its full name if another tool has
            the bare one. In the order of the tools.
        called: Each tool by every name that it can be called by.
        shadowed: Pairs of tools with one bare name: the tool that has it, and the one that had it before.
    """

    listed: dict[str, m.ToolDefinition]
    called: dict[str, m.ToolDefinition]
    shadowed: tuple[tuple[m.ToolDefinition, m.ToolDefinition], ...]


def tool_routes(tools: Iterable[m.ToolDefinition]) -> ToolRoutes:
    """Return the names of tools, of which later ones take bare names from earlier ones."""
    tools = tuple(tools)
    bare: dict[str, m.ToolDefinition] = {}
    shadowed = []
    for tool in tools:
        if tool.tool in bare:
            shadowed.append((tool, bare[tool.tool]))
        bare[tool.tool] = tool
    # Full names go in last: a tool with the bare name `a.b` must not take the name of the tool `b` of `a`.
    called = bare | {f"{tool.server}.{tool.tool}": tool for tool in tools}
    listed = {
        tool.tool if called[tool.tool] is tool else f"{tool.server}.{tool.tool}": tool for tool in tools
    }
    return ToolRoutes(listed, called, tuple(shadowed))
