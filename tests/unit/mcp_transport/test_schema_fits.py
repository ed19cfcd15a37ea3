"""The quick check of a value agrees with the validator wherever it is certain, and is quick."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from promises import within

from grue.mcp_transport.schema_checks import MAX_CHECK_S, check_of
from grue.mcp_transport.schema_fits import fits

pytest.importorskip("jsonschema", reason="it comes with the extra: pip install 'grue[mcp]'")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 1}, 1),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"minimum": 5, "minLength": 5, "minItems": 5}, True),  # no keyword says anything of a boolean
        ({"type": "string", "minLength": 2, "maxLength": 2, "pattern": "^x"}, "ab"),
        ({"type": "array", "minItems": 1, "maxItems": 2, "uniqueItems": True}, ["a", "a"]),
        ({"type": ["string", "null"], "enum": ["a"], "format": "date"}, "a"),
        (
            {"properties": {"n": {"type": "null"}}, "required": ["n"], "additionalProperties": True},
            {"n": None},
        ),
    ],
)
def test_what_fits_is_seen_without_the_validator(schema: Any, value: Any) -> None:
    assert fits(schema, value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": [1]}, True),  # Python takes these for equal, JSON does not
        ({"type": "integer"}, True),
        ({"anyOf": [{"type": "string"}]}, "a"),
        ({"type": {}}, "a"),
        ({"properties": {}}, "a"),
        ({"properties": [], "additionalProperties": False}, {}),
        ({"minimum": 1}, 0),
        ({"exclusiveMinimum": 1}, 1),
        ({"minimum": 1, "exclusiveMinimum": True}, 1),  # as draft 4 has it
        ({"minimum": "1"}, 1),
        ({"maxLength": 1}, "ab"),
        ({"minItems": 1}, []),
        ({"maxItems": 1.5}, []),
        (False, 1),
        ("x", 1),
    ],
)
def test_the_quick_check_is_certain_or_asks_the_validator(schema: Any, value: Any) -> None:
    assert not fits(schema, value)


MANY = 200_000
LONG_LISTS = {
    "enum": ({"enum": [*map(str, range(MANY)), "x"]}, "x"),
    "type": ({"type": ["string"] * MANY}, 5),
    "required": ({"required": ["x"] * MANY}, {"x": 1}),
}


@pytest.mark.parametrize(("schema", "value"), LONG_LISTS.values(), ids=LONG_LISTS)
def test_no_long_list_of_a_schema_is_looked_through_for_each_value(schema: Any, value: Any) -> None:
    with within(5, "10,000 times 200,000 steps otherwise"):
        assert not fits({"items": schema}, [value] * 10_000)


NUMBERS = st.integers(-3, 3) | st.sampled_from([0.5, -1.5, 2.0])
NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "ab", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "object", "array"])
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=repr),
            **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
            **{f"{end}{of}": st.integers(0, 3) for end in ("min", "max") for of in ("Length", "Items")},
            "required": st.lists(NAMES, max_size=3, unique=True),
            "pattern": st.just("^b"),
            "format": st.just("date"),
            "uniqueItems": st.booleans(),
            "unevaluatedProperties": st.booleans(),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "additionalProperties": inner | st.booleans(),
            "items": inner,
        },
    ),
    max_leaves=4,
)


@given(schema=SCHEMAS, value=VALUES)
def test_where_the_quick_check_is_certain_the_validator_agrees(schema: Any, value: Any) -> None:
    if fits(schema, value):
        assert check_of(schema)(value, MAX_CHECK_S) is None
