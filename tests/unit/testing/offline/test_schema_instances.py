"""Minimal values: what is made is accepted by the schema it was made for."""

import contextlib
from typing import Any

import pytest
from case_tables import each_case
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grue.testing.offline.schema_instances import UnsatisfiableError, minimal

BOUNDS = st.integers(-50, 50)
NAMES = st.sampled_from(["thought", "number", "flag", "a", "b"])


def optional(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=strategies)


def typed(kind: str, **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return optional(**strategies).map(lambda extra: {"type": kind, **extra})


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(BOUNDS)
    kind = draw(st.sampled_from(["integer", "number"]))
    schema: dict[str, Any] = {"type": kind}
    schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + 10 + draw(st.integers(0, 9))
    if draw(st.booleans()):
        schema["multipleOf"] = draw(st.integers(1, 5))
    return schema


SCALARS = st.one_of(
    typed("string", minLength=st.integers(0, 30), title=st.just("x")),
    typed("string", maxLength=st.integers(0, 30)),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        *[st.integers(0, 9)] * 2,
    ),
    st.sampled_from(["date", "date-time", "email", "uri", "uuid"]).map(
        lambda name: {"type": "string", "format": name}
    ),
    numbers(),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, {"type": ["null", "integer"]}]),
    st.lists(st.one_of(st.text(max_size=5), BOUNDS, st.none()), min_size=1, max_size=3).map(
        lambda each: {"enum": each}
    ),
    st.one_of(st.text(max_size=5), st.booleans()).map(lambda each: {"const": each}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    if draw(st.booleans()):
        schema["minProperties"] = draw(st.integers(0, len(properties)))
    return schema


def composed(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        objects(inner),
        st.builds(
            lambda item, least: {"type": "array", "items": item, "minItems": least}, inner, st.integers(0, 3)
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each}),
        st.lists(inner, max_size=2).map(lambda each: {"prefixItems": each, "minItems": len(each)}),
    )


SCHEMAS = st.recursive(SCALARS, composed, max_leaves=8)
WISHES = st.dictionaries(NAMES, st.one_of(BOUNDS, st.booleans(), st.text(max_size=9), st.none()), max_size=4)


@settings(max_examples=examples(500))
@given(SCHEMAS, WISHES)
@pytest.mark.slow
def test_what_is_made_is_accepted(schema, wishes):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install mcp")

    jsonschema.Draft202012Validator(schema).validate(minimal(schema, wishes=wishes, text="A thought."))


KEYWORDS = st.sampled_from(
    [
        *(
            "type",
            "properties",
            "required",
            "items",
            "prefixItems",
            "anyOf",
            "oneOf",
            "$ref",
            "const",
            "enum",
        ),
        *("enum", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "multipleOf"),
        *("minItems", "maxItems", "minProperties", "additionalProperties"),
    ]
)
ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from(
            [10**400, -(10**400), 1e308, 5e-324, "string", "integer", "object", "#", "#/anyOf/0"]
        ),
        st.text(max_size=3),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYWORDS, inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=examples(500))
@given(st.dictionaries(KEYWORDS, ANYTHING, max_size=5), WISHES)
@example({"type": "integer", "minimum": 10**400}, {})
@example({"format": ["date"]}, {})
@pytest.mark.slow
def test_a_schema_of_a_hostile_server_raises_nothing_else(schema, wishes):
    with contextlib.suppress(UnsatisfiableError):
        minimal(schema, wishes=wishes)


TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "left": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["name", "left"],
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, "scripted"),
        ({"properties": {"a": {"minimum": 3}}, "required": ["a", "b"]}, {"a": 3, "b": "scripted"}),
        ({"items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"type": "array", "minItems": 1, "uniqueItems": True, "maxItems": 1, "items": {"const": 1}}, [1]),
        ({"anyOf": [{"type": "string", "pattern": "^x"}, {"type": "null"}], "title": "T"}, None),
        ({"oneOf": [{"required": ["kind"], "properties": {"kind": {"const": "echo"}}}]}, {"kind": "echo"}),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, 0.25),
        ({"type": "integer", "multipleOf": 7, "minimum": 50}, 56),
        ({"type": "string", "enum": [3, "x"]}, "x"),
        ({"$ref": "#/$defs/a~1b", "description": "d", "$defs": {"a/b": {"const": 5}}}, 5),
    ],
)
def test_small_values(schema, expected):
    assert minimal(schema) == expected


@each_case(
    "wish, inner, used",
    [
        (5, {"type": "integer", "minimum": 5}, True),
        (5, {"type": "integer", "maximum": 4}, False),
        (5.0, {"type": "integer"}, True),
        (True, {"type": "integer"}, False),
        (None, {"type": ["string", "null"]}, True),
        (None, {"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ("look", {"enum": ["look", "wait"]}, True),
        ("jump", {"enum": ["look", "wait"]}, False),
        ("look", {"type": "string", "maxLength": 3}, False),
        ("look", {"type": "string", "format": "date"}, False),
        ("look", {"type": "string", "pattern": "o"}, False),
        ("look", True, True),
        ("look", {"$ref": "#/nowhere"}, False),
        ("look", {"anyOf": "nothing"}, False),
        ("look", {"type": "object", "properties": {}}, False),
    ],
)
def test_wishes_are_granted_where_they_fit_even_in_optional_properties(wish, inner, used):
    made = minimal({"type": "object", "properties": {"it": inner}}, wishes={"it": wish, "other": 1})

    assert made == ({"it": wish} if used else {})


@each_case(
    "schema",
    [
        False,
        None,
        "string",
        {"type": "tuple"},
        {"type": 5},
        {"type": "string", "pattern": "^a$"},
        {"type": "string", "format": "ipv6"},
        {"type": "string", "minLength": 10**9},
        {"type": "string", "minLength": "3"},
        {"type": "string", "minLength": 5, "maxLength": 3},
        {"not": {}},
        {"allOf": [{"type": "string"}]},
        {"enum": "x"},
        {"properties": []},
        {"type": "integer", "enum": ["x"]},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "integer", "multipleOf": 0, "minimum": 5},
        {"type": "array", "minItems": 2, "uniqueItems": True, "items": {"type": "integer"}},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "array", "minItems": 1, "items": False},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "minProperties": 1},
        {"type": "object", "properties": {"a": {}}, "required": ["a"], "maxProperties": 0},
        {"type": "string", "anyOf": [{"type": "integer"}]},
        {"anyOf": []},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {
            "$ref": "#/$defs/endless",
            "$defs": {
                "endless": {
                    "type": "object",
                    "properties": {"more": {"$ref": "#/$defs/endless"}},
                    "required": ["more"],
                }
            },
        },
    ],
)
def test_what_cannot_be_made_is_said_to_be_so(schema):
    with pytest.raises(UnsatisfiableError):
        minimal(schema)


@pytest.mark.slow
def test_a_schema_that_multiplies_without_end_is_given_up_soon():
    doubling = {
        "$ref": "#/$defs/x",
        "$defs": {
            "x": {
                "type": "object",
                "properties": {
                    name: {"anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}]} for name in "abcdefgh"
                },
                "required": list("abcdefgh"),
            }
        },
    }
    with pytest.raises(UnsatisfiableError):
        minimal(doubling)


def test_alternatives_that_lead_only_to_one_another_are_given_up_soon():
    circle = {"anyOf": [{"$ref": "#/$defs/x"}] * 10}
    with pytest.raises(UnsatisfiableError):
        minimal(circle | {"$defs": {"x": circle}})


def test_recursion_ends_where_the_schema_lets_it():
    made = minimal(TREE)

    for _ in range(30):
        if made is None:
            return
        assert isinstance(made, dict)
        made = made["left"]
    pytest.fail("it does not end")
