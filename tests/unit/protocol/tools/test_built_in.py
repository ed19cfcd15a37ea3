import pytest
from msgspec.structs import replace

from grue.engine.tool_servers import usable_servers
from grue.errors import MCPConfigError
from grue.messages import ServerName, ToolDefinition
from grue.protocol.tools.arguments import read_arguments
from grue.protocol.tools.built_in import READ_RESULT, SERVER, is_built_in, offers, with_tool
from grue.tool_sessions.function_tools import FunctionTools
from grue.tool_sessions.result_reading import Wanted

LOOK = ToolDefinition(server=ServerName("house"), tool="look", input_schema={"type": "object"})


def test_a_built_in_tool_is_added_once_behind_the_others() -> None:
    tools = with_tool((LOOK,), READ_RESULT)
    assert tools == (LOOK, READ_RESULT)
    assert with_tool(tools, READ_RESULT) is tools
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
