"""Arguments from the command line, read by the tool's schema."""

import json
from shlex import quote
from typing import Any

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from grue.cli.call import read_arguments, require_all
from grue.cli.tools import described, example_of, kind_of, properties_of
from grue.errors import MCPConfigError
from grue.messages import ServerName, SessionOpened, ToolDefinition


def tool(closed: bool = False, **properties: Any) -> ToolDefinition:
    schema = {"type": "object", "properties": properties}
    if closed:
        schema["additionalProperties"] = False
    return ToolDefinition(server=ServerName("s"), tool="t", description="", input_schema=schema)


NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@each_case(
    "schema, written, value",
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "string"}, '"x"', '"x"'),
        ({"type": "string"}, "", ""),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, "7.0", 7.0),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "object"}, '{"a": null}', {"a": None}),
        ({"type": ["integer", "string"]}, "7", 7),
        ({"type": ["integer", "string"]}, "seven", "seven"),
        (NULLABLE, "null", None),
        (NULLABLE, "7", "7"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({}, "7", 7),
        ({}, "seven", "seven"),
        ({}, "1e999", "1e999"),
        ({"anyOf": [{"type": "string"}, {}]}, "7", 7),
        (True, "x", "x"),
    ],
)
def test_a_value_is_read_as_the_schema_wants_it(schema: Any, written: str, value: object) -> None:
    read = read_arguments(tool(x=schema), None, [f"x={written}"])
    assert read == {"x": value}
    assert type(read["x"]) is type(value)


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "integer"}, "seven"),
        ({"type": "integer"}, "7.5"),
        ({"type": "integer"}, "NaN"),
        ({"type": "integer"}, "true"),
        ({"type": "boolean"}, "1"),
        ({"type": "object"}, "[1]"),
        ({"type": ["integer", "null"]}, "x"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(schema: Any, written: str) -> None:
    with pytest.raises(MCPConfigError, match=r"should be of type .*(integer|boolean|object)"):
        read_arguments(tool(x=schema), None, [f"x={written}"])


def test_a_number_that_is_not_json_is_refused() -> None:
    with pytest.raises(MCPConfigError, match="The arguments are not JSON: Out of range float"):
        read_arguments(tool(), '{"x": NaN}', [])


def test_the_example_of_a_tool_passes_over_a_wrong_list_of_values() -> None:
    wrong = {"type": "object", "properties": {"a": {"enum": 5}}, "required": ["a"]}
    assert example_of(replace(tool(), input_schema=wrong)).endswith("--arg a=TEXT")


def test_a_pair_goes_over_the_object() -> None:
    assert read_arguments(tool(), '{"a": 1, "b": 2}', ["b=3", "c=d=e"]) == {"a": 1, "b": 3, "c": "d=e"}


def test_an_argument_that_cannot_be_is_refused_with_the_nearest() -> None:
    closed = tool(closed=True, thought={"type": "string"})
    with pytest.raises(
        MCPConfigError, match=r"no argument 'thougt'\. Did you mean 'thought'\? It takes thought\.$"
    ):
        read_arguments(closed, None, ["thougt=x"])
    with pytest.raises(MCPConfigError, match=r"no argument 'foo'\. It takes thought\.$"):
        read_arguments(closed, None, ["foo=x"])
    assert read_arguments(tool(thought={}), None, ["thougt=x"]) == {"thougt": "x"}


def test_an_argument_that_the_schema_does_not_name_is_named_if_a_required_one_is_missing() -> None:
    schema = {"type": "object", "properties": {"article": {}}, "required": ["article"]}
    with pytest.raises(MCPConfigError, match=r"needs article\. It has no argument articel\. It takes:"):
        require_all(replace(tool(), input_schema=schema), {"articel": "x"})


@given(st.dictionaries(st.text(min_size=1).filter(lambda name: "=" not in name), st.text()))
@pytest.mark.slow
def test_any_text_survives_for_a_string_argument(texts: dict[str, str]) -> None:
    properties = {name: {"type": "string"} for name in texts}
    pairs = [f"{name}={value}" for name, value in texts.items()]
    assert read_arguments(tool(**properties), None, pairs) == texts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1).filter(lambda name: "=" not in name), JSON))
@pytest.mark.slow
def test_any_json_survives_where_the_schema_says_nothing(values: dict[str, Any]) -> None:
    pairs = [f"{name}={json.dumps(value)}" for name, value in values.items()]
    assert read_arguments(tool(), None, pairs) == values
    assert read_arguments(tool(), json.dumps(values), ()) == values


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": "array", "items": {"type": "string"}}, "list of string"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"enum": ["a", 1]}, 'one of "a", 1'),
        ({"enum": list(range(20))}, "one of 0, 1, 2, 3, 4, 5, 6, 7, ..."),
        ({}, "anything"),
        ({"type": "array"}, "list of anything"),
        (True, "anything"),
    ],
)
def test_a_schema_is_told_in_a_few_words(schema: Any, words: str) -> None:
    assert kind_of(schema) == words


ITEM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@each_case(
    "schema, words, example",
    [
        ({"$ref": "#/$defs/Item"}, "object", 'item={"name": "TEXT"}'),
        ({"$ref": "#/$defs/Alias"}, "object", 'item={"name": "TEXT"}'),
        ({"anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}]}, "object or null", 'item={"name": "TEXT"}'),
        ({"type": "array", "items": {"$ref": "#/$defs/Item"}}, "list of object", "item=[]"),
        ({"$ref": "#/$defs/Order"}, "object", 'item={"item": {"name": "TEXT"}}'),
        ({"$ref": "#/$defs/Endless"}, "object", "item={}"),
        ({"$ref": "#/$defs/Size"}, 'one of "S", "L"', "item=S"),
        ({"allOf": [{"$ref": "#/$defs/Size"}], "default": "L"}, 'one of "S", "L"', "item=L"),
        ({"allOf": [{"$ref": "#/$defs/Item"}], "title": "It"}, "object", 'item={"name": "TEXT"}'),
        ({"allOf": [ITEM, {"type": "object"}]}, "anything", "item=TEXT"),
        ({"$ref": "#/$defs/Tree"}, "string or list of anything", "item=TEXT"),
        ({"$ref": "#/$defs/Circle"}, "anything", "item=TEXT"),
        ({"$ref": "#/$defs/Missing"}, "anything", "item=TEXT"),
        ({"$ref": "https://example.org/item.json"}, "anything", "item=TEXT"),
    ],
)
def test_a_reference_inside_the_schema_is_followed(schema: dict[str, Any], words: str, example: str) -> None:
    definitions = {
        "Item": ITEM,
        "Alias": {"$ref": "#/$defs/Item"},
        "Order": ITEM | {"properties": {"item": {"$ref": "#/$defs/Item"}}, "required": ["item"]},
        "Endless": ITEM | {"properties": {"inner": {"$ref": "#/$defs/Endless"}}, "required": ["inner"]},
        "Size": {"enum": ["S", "L"]},
        "Tree": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/Tree"}}]},
        "Circle": {"$ref": "#/$defs/Circle"},
    }
    whole = {"type": "object", "properties": {"item": schema}, "required": ["item"], "$defs": definitions}
    listed = replace(tool(), input_schema=whole)
    assert kind_of(properties_of(listed)["item"]) == words
    assert example_of(listed).endswith(f" call s.t --arg {quote(example)}")
    if words.startswith("object"):
        with pytest.raises(MCPConfigError, match="--arg item=two: the value should be of type"):
            read_arguments(listed, None, ["item=two"])


def test_an_argument_is_told_with_its_default() -> None:
    listed = tool(pages={"type": "integer", "default": 3, "description": "How\nmany \x1b[31m"})
    lines = list(described(SessionOpened(server=ServerName("s"), tools=(listed,)), "here", 80))
    assert lines[-2:] == ["    pages: integer, optional, default 3", "        How many \\u001b[31m"]
