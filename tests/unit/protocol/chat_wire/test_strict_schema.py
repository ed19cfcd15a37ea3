"""The strict dialect of JSON Schema."""

from typing import Literal

import pytest
from case_tables import each_case
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from grue.protocol.chat_wire.strict_schema import strict_schema
from grue.testing.providers.chat_rules import ProviderRules, refusal_of


class Item(BaseModel):
    name: str
    weight: int | None = None


class Lamp(BaseModel):
    kind: Literal["lamp"]
    lit: bool = False


class Sword(BaseModel):
    kind: Literal["sword"]


class Answer(BaseModel):
    action: str = Field(description="What to do.")
    objective: str | None = None
    mood: Literal["bold", "shy"] = "bold"
    best: Item = Field(default_factory=lambda: Item(name="lamp"), description="The best one.")
    items: list[Item] = []
    tool: Lamp | Sword = Field(discriminator="kind", default_factory=lambda: Sword(kind="sword"))


def refused(schema: dict[str, object]) -> str | None:
    shape = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": shape}
    return refusal_of(body, ProviderRules())


def test_a_pydantic_model_in_the_strict_dialect() -> None:
    schema = strict_schema(Answer.model_json_schema())
    assert refused(Answer.model_json_schema()) is not None
    assert refused(schema) is None
    properties = schema["properties"]
    assert isinstance(properties, dict)
    assert schema["required"] == ["action", "objective", "mood", "best", "items", "tool"]
    assert properties["action"] == {"description": "What to do.", "title": "Action", "type": "string"}
    assert properties["objective"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert properties["mood"] == {
        "anyOf": [{"enum": ["bold", "shy"], "title": "Mood", "type": "string"}, {"type": "null"}]
    }
    assert properties["best"] == {
        "description": "The best one.",
        "anyOf": [{"$ref": "#/$defs/Item"}, {"type": "null"}],
    }
    assert properties["items"]["type"] == ["array", "null"]
    assert properties["tool"] == {
        "title": "Tool",
        "anyOf": [{"$ref": "#/$defs/Lamp"}, {"$ref": "#/$defs/Sword"}, {"type": "null"}],
    }


@pytest.mark.parametrize(
    ("optional", "expected"),
    [
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "null"}, {"type": "null"}),
        ({"const": 1}, {"anyOf": [{"const": 1}, {"type": "null"}]}),
        ({"type": "string", "const": "a"}, {"anyOf": [{"type": "string", "const": "a"}, {"type": "null"}]}),
        (
            {"type": ["string", "null"], "enum": ["a"]},
            {"anyOf": [{"type": ["string", "null"], "enum": ["a"]}, {"type": "null"}]},
        ),
        ({"$ref": "#/$defs/X"}, {"anyOf": [{"$ref": "#/$defs/X"}, {"type": "null"}]}),
        (
            {"type": ["object", "null"], "properties": {"a": {"type": "null"}}, "required": ["a"]},
            {
                "type": ["object", "null"],
                "properties": {"a": {"type": "null"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_an_optional_property_becomes_nullable(
    optional: dict[str, object], expected: dict[str, object]
) -> None:
    schema = strict_schema({"type": "object", "properties": {"p": optional}})
    assert schema["properties"] == {"p": expected}


@each_case(
    "schema",
    [
        {"type": "array", "items": {"type": "string"}},
        {"$ref": "#/$defs/X", "$defs": {}},
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "additionalProperties": {"type": "string"},
        },
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [], "items": False}}},
        {"type": "object", "properties": {"a": {"type": "string", "not": {}}}},
        {"type": "object", "properties": ["a"]},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": "a"},
    ],
)
def test_what_the_dialect_cannot_say_is_refused(schema: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"strict|Schema"):
        strict_schema(schema)


def test_an_object_without_any_property_is_closed() -> None:
    assert strict_schema({"type": "object", "additionalProperties": False}) == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


@given(
    st.recursive(
        st.sampled_from(
            [{"type": "string"}, {"type": "integer", "default": 3}, {"enum": ["a", 1]}, {"type": "null"}]
        ),
        lambda inner: (
            st.builds(
                lambda properties, required: {
                    "type": "object",
                    "properties": properties,
                    "required": [name for name in properties if name in required],
                },
                st.dictionaries(st.sampled_from("abcd"), inner, min_size=1),
                st.sets(st.sampled_from("abcd")),
            )
            | st.builds(lambda items: {"type": "array", "items": items}, inner)
            | st.builds(lambda choices: {"oneOf": choices}, st.lists(inner, min_size=1, max_size=3))
        ),
    )
)
def test_whatever_comes_out_is_accepted(schema: dict[str, object]) -> None:
    whole = {"type": "object", "properties": {"root": schema}, "required": ["root"]}
    assert refused(strict_schema(whole)) is None
