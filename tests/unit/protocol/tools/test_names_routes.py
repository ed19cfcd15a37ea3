"""The names by which tools of several servers can be called."""

from grue.messages import ServerName, ToolDefinition
from grue.protocol.tools.names import tool_routes


def tool(server: str, name: str) -> ToolDefinition:
    return ToolDefinition(server=ServerName(server), tool=name, input_schema={"type": "object"})


def test_a_tool_is_called_by_its_bare_and_by_its_full_name() -> None:
    look, dig = tool("cave", "look"), tool("cave", "dig")
    routes = tool_routes([look, dig])
    assert routes.listed == {"look": look, "dig": dig}
    assert routes.called == {"look": look, "cave.look": look, "dig": dig, "cave.dig": dig}
    assert routes.shadowed == ()


def test_of_tools_with_one_bare_name_the_last_has_it() -> None:
    first, second, third = (tool(server, "look") for server in "abc")
    routes = tool_routes([first, second, third])
    assert routes.listed == {"a.look": first, "b.look": second, "look": third}
    assert routes.called == {**routes.listed, "c.look": third}
    assert routes.shadowed == ((second, first), (third, second))


def test_a_full_name_is_not_taken_by_a_bare_name_with_a_dot() -> None:
    own, dotted = tool("a", "b"), tool("other", "a.b")
    routes = tool_routes([own, dotted])
    assert routes.called["a.b"] is own
    assert routes.listed == {"b": own, "other.a.b": dotted}
