"""A result is held to the schema that its tool declares; a schema from a server is held to our limits."""

import functools
from typing import Any

import jsonschema_rs
import pytest
from promises import within

from grue.messages import ServerName, ToolCallResult, ToolDefinition
from grue.protocol.json_text import MAX_DEPTH, json_value
from grue.protocol.tools.json_schema import MAX_SCHEMA_BYTES, MAX_VALUE_BYTES
from grue.protocol.tools.results import from_mcp
from grue.transports.mcp.session_parts import OutputSchemas

COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
BROKEN = "The tool's result is not what its output schema says: "


class Outputs:
    """One session's schemas, of the one tool `t`; `said` are its notices."""

    def __init__(self, schema: Any) -> None:
        self.said: list[str] = []
        self.schemas = OutputSchemas(self.hear)
        self.declare(schema)

    def hear(self, kind: str, text: str) -> None:
        assert kind == "bad_schema"
        self.said.append(text)

    def declare(self, schema: Any) -> None:
        tool = ToolDefinition(server=ServerName("s"), tool="t", input_schema={}, output_schema=schema)
        self.schemas.declare([tool])

    def checked(self, structured: object, **members: Any) -> ToolCallResult:
        answer = {"content": [{"type": "text", "text": "x"}], "structuredContent": structured, **members}
        return self.schemas.checked("t", answer, from_mcp(answer))


def test_what_fits_comes_back_as_it_is() -> None:
    outputs = Outputs(COUNT)
    assert outputs.checked({"n": 1}) == ToolCallResult({"n": 1})
    assert outputs.said == []


@pytest.mark.parametrize(
    ("schema", "structured", "fault"),
    [
        (COUNT, {"n": "one"}, '$.n: "one" is not of type "integer"'),
        (COUNT, {}, '"n" is a required property'),
        ({"$schema": "http://json-schema.org/draft-07/schema#", **COUNT}, {}, '"n" is a required property'),
        ({"$schema": ["x"], **COUNT}, {}, '"n" is a required property'),
        ({"$schema": "http://nowhere.invalid/", **COUNT}, {}, '"n" is a required property'),
        ({"$id": "http://nowhere.invalid/", **COUNT}, {}, '"n" is a required property'),
        ({"$ref": "#/$defs/count", "$defs": {"count": COUNT}}, {}, '"n" is a required property'),
        ({"additionalProperties": False, "properties": {"$id": {}}}, {"$id": 1, "x": 1}, "Additional"),
    ],
)
def test_what_does_not_fit_is_an_error_with_the_content(schema: Any, structured: Any, fault: str) -> None:
    result = Outputs(schema).checked(structured)
    assert result.is_error
    assert result.content == structured
    assert (result.error_message or "").startswith(BROKEN + fault)


def test_a_schema_is_compiled_once_for_all_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"title": "compiled once", **COUNT}
    assert Outputs(schema).checked({"n": "one"}).is_error
    monkeypatch.setattr(jsonschema_rs, "Draft202012Validator", None)  # compiling again fails
    assert Outputs(schema).checked({"n": "one"}).is_error


def test_structured_content_that_is_missing_is_an_error_with_the_text() -> None:
    result = Outputs(COUNT).checked(None)
    assert result == ToolCallResult("x", is_error=True, error_message=f"{BROKEN}it has no structured content")


def test_an_error_of_the_tool_and_a_tool_without_a_schema_promise_nothing() -> None:
    assert Outputs(COUNT).checked(None, isError=True).error_message == "x"
    assert Outputs(None).checked({"n": "one"}) == ToolCallResult({"n": "one"})


def test_a_long_fault_is_cut() -> None:
    assert len(Outputs(COUNT).checked({"n": "x" * 10_000}).error_message or "") < 400


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "nonsense"}, '"nonsense" is not valid'),
        ({"$ref": "#/$defs/none"}, "refers to nothing: #/$defs/none"),
        ({"$ref": "#"}, "nested too deeply"),
        ({"$ref": "http://127.0.0.1:9/schema"}, "something outside"),
        ({"items": [{"$dynamicRef": "https://json-schema.org/draft/2020-12/schema"}]}, "something outside"),
        (
            {"properties": {"n": {"$schema": "http://json-schema.org/draft-07/schema#"}}},
            "several schemas",
        ),
        ({"properties": {"n": {"$id": "urn:x"}}}, "several schemas"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", **COUNT}, "too old"),
        ({"const": "x" * MAX_SCHEMA_BYTES}, "larger than"),
    ],
)
def test_a_schema_that_cannot_be_used_is_said_once_and_lets_results_through(schema: Any, reason: str) -> None:
    outputs = Outputs(schema)
    for structured in ({"n": "one"}, {"n": "one"}, {"n": 2}):
        assert outputs.checked(structured) == ToolCallResult(structured)
    (said,) = outputs.said
    assert said.startswith("t: its output schema is not used: ")
    assert reason in said


def test_patterns_are_checked() -> None:
    outputs = Outputs({"properties": {"n": {"pattern": "^x"}}, "patternProperties": {"^y": {"type": "null"}}})
    assert not outputs.checked({"n": "x", "y1": None, "z": 1}).is_error
    assert outputs.checked({"n": "y"}).error_message == f'{BROKEN}$.n: "y" does not match "^x"'
    assert outputs.checked({"y1": 1}).error_message == f'{BROKEN}$.y1: 1 is not of type "null"'
    assert outputs.said == []


def test_a_check_that_would_take_too_long_is_not_begun() -> None:
    steps = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    outputs = Outputs({"$ref": "#/$defs/d0", "$defs": {**steps, "d60": {}}})
    with within(5, "2**60 steps otherwise"):
        for _ in range(3):
            assert not outputs.checked({"n": 1}).is_error
    assert [text.partition(" nested ")[0] for text in outputs.said] == [
        "t: its output schema is not used: it is"
    ]


def test_a_result_that_is_too_large_is_not_checked_and_the_next_one_is() -> None:
    outputs = Outputs(COUNT)
    assert not outputs.checked({"x": "y" * MAX_VALUE_BYTES}).is_error
    assert outputs.said == [f"t: a result of more than {MAX_VALUE_BYTES} bytes: not checked"]
    assert outputs.checked({}).is_error


def test_a_result_whose_deepest_parts_are_replaced_is_not_checked() -> None:
    outputs = Outputs({"type": "object", "properties": {"a": {"$ref": "#"}}})
    deep = functools.reduce(lambda inner, _: {"a": inner}, range(150), dict[str, object]())
    assert not outputs.checked(json_value(deep)).is_error
    assert outputs.said == [f"t: a result of {MAX_DEPTH} levels or more: not checked"]
    assert outputs.checked({"a": {"a": 1}}).is_error


def test_a_new_listing_brings_new_schemas() -> None:
    outputs = Outputs(COUNT)
    assert outputs.checked({}).is_error
    outputs.declare({"type": "object"})
    assert not outputs.checked({}).is_error
    outputs.declare(None)
    assert not outputs.checked(None).is_error
    outputs.declare({"type": "nonsense"})
    outputs.checked({})
    outputs.declare({"type": "nonsense"})
    outputs.checked({})
    assert len(outputs.said) == 1, "the same schema is not compiled again"
