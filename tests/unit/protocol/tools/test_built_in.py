import pytest
from msgspec.structs import replace

from grue.engine.tool_servers import usable_servers
from grue.errors import MCPConfigError
from grue.messages import CallId, RunTurn, ServerName, ToolCall, ToolDefinition
from grue.protocol.tools.built_in import CALL_TOOL, READ_RESULT, find_tools, named_call, offers
from grue.protocol.tools.names import SERVER, is_built_in, read_arguments
from grue.protocol.turn.states import Turn
from grue.tool_sessions.function_tools import FunctionTools
from grue.tool_sessions.result_reading import Wanted

LOOK = ToolDefinition(server=ServerName("house"), tool="look", input_schema={"type": "object"})


def test_a_built_in_tool_is_added_once_behind_the_others() -> None:
    turn = Turn(run=RunTurn(turn=1, system="s", user="u"), tools=(LOOK,)).referring()
    tools = turn.tools
    assert tools == (LOOK, READ_RESULT)
    assert turn.referring() is turn
    assert [is_built_in(tool) for tool in tools] == [False, True]
    assert offers(tools, READ_RESULT)
    assert not offers((LOOK, replace(READ_RESULT, server=ServerName("house"))), READ_RESULT)


def test_no_server_of_a_user_has_the_name_of_the_built_in_tools() -> None:
    with pytest.raises(MCPConfigError, match="may not contain"):
        usable_servers({SERVER: FunctionTools({"look": lambda: "seen"})})


def test_the_definition_names_what_is_read() -> None:
    properties = READ_RESULT.input_schema["properties"]
    assert isinstance(properties, dict)
    assert (*properties,) == Wanted.__struct_fields__
    assert read_arguments('{"handle": "c", "skip": 3}') == {"handle": "c", "skip": 3}
    assert READ_RESULT.name == "read_result"


def called(arguments: str, name: str = "call_tool") -> ToolCall:
    return ToolCall(call_id=CallId("c"), name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("arguments", "name", "meant"),
    [
        ('{"name": "a.x", "arguments": {"at": 1}}', "a.x", '{"at":1}'),
        ('{"name": "a.x", "arguments": "{\\"at\\": 1}"}', "a.x", '{"at": 1}'),
        ('{"name": "a.x", "arguments": [1]}', "a.x", "[1]"),
        ('{"name": "a.x", "arguments": null}', "a.x", "null"),
        ('{"name": "a.x"}', "a.x", "{}"),
        ('{"name": "call_tool", "arguments": {}}', "call_tool", "{}"),
    ],
)
def test_a_call_that_names_a_tool_becomes_a_call_of_it(arguments: str, name: str, meant: str) -> None:
    call = named_call(called(arguments))
    assert (call.call_id, call.name, call.arguments) == ("c", name, meant)


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "{}", '{"name": 7}', '{"name": ""}', '["a.x"]', '{"name": "a', "\ud800"),
        '{"name": "a.x", "at": 1}',
    ],
)
def test_a_call_without_a_name_or_with_its_arguments_elsewhere_stays_as_it_is(arguments: str) -> None:
    call = called(arguments)
    assert named_call(call) is call


def test_a_call_of_another_tool_stays_as_it_is() -> None:
    call = called('{"name": "a.x"}', name="a.y")
    assert named_call(call) is call


def test_the_definition_names_the_servers_of_the_turn_and_not_more_than_a_hundred() -> None:
    assert find_tools([ServerName("a"), ServerName("b")]).description.endswith("The servers: a, b.")
    many = find_tools([ServerName(f"s{number}") for number in range(130)])
    assert many.description.endswith("s99 and 30 more.")
    assert is_built_in(many)
    assert is_built_in(CALL_TOOL)
    assert (many.name, CALL_TOOL.name) == ("find_tools", "call_tool")
