"""Arguments are held to the tool's own input schema, and a schema that cannot be used lets calls through."""

from typing import Any

import pytest

from grue.messages import ServerName, ToolDefinition
from grue.protocol.tools.json_schema import MAX_VALUE_BYTES
from grue.transports.mcp.session_parts import InputSchemas

READ = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "a file"},
        "lines": {"type": ["integer", "null"]},
        "mode": {"type": "string", "enum": ["text", "bytes"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "scale": {"type": "number", "minimum": 0},
    },
    "required": ["path"],
    "additionalProperties": False,
}


def fault_of(schema: Any, arguments: Any) -> tuple[str | None, list[str]]:
    said: list[str] = []
    schemas = InputSchemas(lambda kind, text: said.append(f"{kind} {text}"))
    schemas.declare([ToolDefinition(server=ServerName("s"), tool="t", input_schema=schema)])
    return schemas.fault("t", arguments), said


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"path": "a", "lines": 3, "mode": "text", "tags": ["x"]}, None),
        ({"path": "a", "lines": None, "tags": []}, None),
        ({"path": "a", "lines": 3.0}, None),  # JSON knows one kind of number
        ({"path": "a", "scale": 0.5}, None),
        ({"path": 5}, '$.path: 5 is not of type "string"'),
        ({}, '"path" is a required property'),
        ({"path": "a", "lines": True}, '$.lines: true is not of types "null", "integer"'),
        ({"path": "a", "mode": "x"}, '$.mode: "x" is not one of "text" or "bytes"'),
        ({"path": "a", "tags": ["x", 1]}, '$.tags[1]: 1 is not of type "string"'),
        ({"path": "a", "scale": -1}, "$.scale: -1 is less than the minimum of 0"),
        ({"path": "a", "deep": {}}, "Additional properties are not allowed ('deep' was unexpected)"),
    ],
)
def test_the_first_fault_is_named_with_its_place(arguments: Any, fault: str | None) -> None:
    assert fault_of(READ, arguments) == (fault, [])


SCREENSHOT = {
    "type": "object",
    "properties": {
        "scale": {"type": "string", "enum": ["css", "device"], "default": "css"},
        "of": {"$ref": "#/$defs/of", "default": {}},
        "file": {"type": "string"},
    },
    "required": ["scale", "of", "file"],
    "$defs": {"of": {"type": "object", "properties": {"n": {"default": 1}}, "required": ["n"]}},
}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"file": "a"}, None),
        ({"file": "a", "scale": "css", "of": {}}, None),
        ({"scale": "css", "of": {}}, '"file" is a required property'),
        ({"file": "a", "scale": "x"}, '$.scale: "x" is not one of "css" or "device"'),
        ({"file": "a", "of": 1}, '$.of: 1 is not of type "object"'),
    ],
)
def test_a_property_with_a_default_may_be_left_out_although_it_is_required(
    arguments: Any, fault: str | None
) -> None:
    assert fault_of(SCREENSHOT, arguments) == (fault, [])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "#/$defs/none"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"properties": {"n": {"$ref": "http://127.0.0.1:9/schema"}}},
        {"properties": 5},
        {"required": "n"},
        {"items": 5, "enum": 5},
    ],
)
def test_a_call_is_sent_if_the_schema_is_broken_or_refers_elsewhere(schema: Any) -> None:
    fault, said = fault_of(schema, {"n": 1})
    assert fault is None
    assert [text.partition(": its ")[0] for text in said] == ["bad_schema t"]
    assert "input schema is not used" in said[0]


def test_arguments_that_are_too_large_are_sent_unchecked() -> None:
    fault, said = fault_of({"maxProperties": 0}, {"n": "x" * MAX_VALUE_BYTES})
    assert fault is None
    assert said == [f"bad_schema t: arguments of more than {MAX_VALUE_BYTES} bytes: not checked"]


def test_large_arguments_that_fit_are_accepted_and_wrong_ones_found() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}}}}
    assert fault_of(schema, {"n": list(range(2_000))}) == (None, [])
    assert fault_of(schema, {"n": [*range(2_000), "x"]})[0] == '$.n[2000]: "x" is not of type "integer"'


def test_a_tool_that_is_not_listed_takes_anything() -> None:
    schemas = InputSchemas(lambda *_: None)
    schemas.declare([])
    assert schemas.fault("t", {"n": 1}) is None
