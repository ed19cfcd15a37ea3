"""Tools in OpenAI's format."""

from hypothesis import given
from hypothesis import strategies as st

from grue.messages import JsonObject, ServerName, ToolDefinition
from grue.protocol.tools.names import openai_tool, split_name

THINK = ToolDefinition(
    server=ServerName("thoughtbox"),
    tool="think",
    description="Think step by step.",
    input_schema={
        "type": "object",
        "properties": {"thought": {"type": "string"}},
        "required": ["thought"],
    },
    output_schema={"type": "object"},
)


def test_p33_a_tool_in_openai_format() -> None:
    assert openai_tool(THINK) == {
        "type": "function",
        "function": {
            "name": "thoughtbox.think",
            "description": "Think step by step.",
            "parameters": {
                "type": "object",
                "properties": {"thought": {"type": "string"}},
                "required": ["thought"],
            },
        },
    }


@given(
    server=st.text(min_size=1).filter(lambda text: "." not in text),
    tool=st.text(min_size=1),
    properties=st.dictionaries(st.text(), st.fixed_dictionaries({"type": st.just("string")})),
)
def test_p34_p36_the_name_is_canonical_and_the_schema_becomes_the_parameters(
    server: str, tool: str, properties: JsonObject
) -> None:
    schema: JsonObject = {"type": "object", "properties": properties}
    function = openai_tool(ToolDefinition(server=ServerName(server), tool=tool, input_schema=schema))[
        "function"
    ]
    assert isinstance(function, dict)
    assert split_name(function["name"]) == (server, tool)
    assert function["parameters"] == schema


def test_p38_a_listing_keeps_its_order_and_canonical_names() -> None:
    other = ToolDefinition(server=ServerName("files"), tool="read.text", input_schema={"type": "object"})
    names = [openai_tool(tool)["function"]["name"] for tool in (THINK, other)]  # type: ignore[index]
    assert names == ["thoughtbox.think", "files.read.text"]


def test_a_wire_name_can_be_given() -> None:
    function = openai_tool(THINK, name="thoughtbox__think")["function"]
    assert isinstance(function, dict)
    assert function["name"] == "thoughtbox__think"


def test_a_tool_without_arguments_still_has_an_object_schema() -> None:
    tool = ToolDefinition(server=ServerName("s"), tool="t", input_schema={"additionalProperties": False})
    function = openai_tool(tool)["function"]
    assert isinstance(function, dict)
    assert function["parameters"] == {"type": "object", "properties": {}, "additionalProperties": False}
