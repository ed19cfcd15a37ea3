"""A value is compared with a schema as another validator does it, and no hostile pair of them takes long."""

import sys
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from promises import within

from grue.protocol.tools.json_schema import (
    MAX_SCHEMA_BYTES,
    MAX_VALUE_BYTES,
    NotCheckedError,
    _fits_plainly,
    _is_plain,
    check_of,
    fault_of,
    reason,
    target,
)


def nested(levels: int, end: Any = 1, *, name: str = "a") -> Any:
    for _ in range(levels):
        end = {name: end}
    return end


def chain(length: int, link: Any, end: Any) -> Any:
    """A chain of definitions: `link` makes one of the reference to the next."""
    links = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": end}}


AGAIN = {"properties": {"a": {"$ref": "#"}}}
LIST = {"type": "array", "items": {"$ref": "#"}}
CROWDED = {
    "allOf": [{"$ref": "#/$defs/x"}] * 600,
    "$defs": {
        "x": {"properties": {f"p{n}": {} for n in range(400)}, "additionalProperties": {"type": "null"}}
    },
}
"""Each of its 400 members, and each other one, is compared with what 600 parts say of further members."""
HOSTILE = {
    "itself": ({"$ref": "#"}, 1),
    "itself in a branch": ({"anyOf": [{"$ref": "#"}]}, 1),
    "2**60 references": (chain(60, lambda next_: {"allOf": [next_] * 2}, {}), 1),
    "2**60 branches that fail": (chain(60, lambda next_: {"anyOf": [next_] * 2}, {"type": "null"}), 1),
    "doubled at each level of the value": ({"allOf": [AGAIN, AGAIN]}, nested(90)),
    "a chain that exhausts the stack": (chain(600, lambda next_: {"not": next_}, AGAIN), nested(90)),
    "a nested schema": (nested(5_000, {}, name="not"), 1),
    "2,000 values for each item": (
        {"items": {"anyOf": [{"const": n} for n in range(2_000)]}},
        [-1] * 300_000,
    ),
    "a huge enum": ({"items": {"enum": [{"a": n} for n in range(2_500)]}}, [{"a": -1}] * 80_000),
    "a too large enum": ({"enum": list(range(MAX_SCHEMA_BYTES))}, 1),
    "1,000 properties": ({"items": {"properties": {f"p{n}": {} for n in range(1_000)}}}, [{}] * 300_000),
    "errors of errors": (
        {"anyOf": [{"type": "string"}, LIST, {"additionalProperties": {"$ref": "#"}, "type": "object"}]},
        nested(90, [1] * 300_000),
    ),
    "branches that copy the value": ({"anyOf": [{"type": "null"}] * 25}, list(range(150_000))),
    "unevaluated": (chain(30, lambda next_: {"unevaluatedItems": next_, "allOf": [next_]}, {}), [1]),
    "a pattern": ({"pattern": "^(a+)+$"}, "a" * 50_000 + "!"),
    "a pattern that looks back": ({"pattern": r"^(a+)+\1$"}, "a" * 50_000 + "!"),
    "a pattern that looks ahead": ({"pattern": "(?=.*x).*y"}, "x" * 900_000),
    "a pattern with a large machine": ({"pattern": r"(\w{1,900}){900}$"}, "a" * 900_000),
    "a name of a pattern": ({"patternProperties": {"(a+)+$": False}}, {"a" * 50_000 + "!": 1}),
    "equal items": ({"uniqueItems": True}, [{"a": n, "b": [n]} for n in range(20_000)]),
}


@pytest.mark.parametrize(("schema", "value"), HOSTILE.values(), ids=HOSTILE)
def test_no_schema_and_no_value_takes_long(schema: Any, value: Any) -> None:
    with within(10, "some of them end the process, most take minutes or for ever otherwise"):
        fault_of(schema, value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "http://127.0.0.1:9/schema"}, "something outside"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "something outside"),
        ({"$ref": "#/const", "const": {"$ref": "file:///etc/passwd"}}, "something outside"),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "refers to nothing"),
        ({"$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}}, "one name"),
        ({"$ref": "#"}, "nested too deeply"),
        ({"pattern": "("}, "regex"),
        ({"type": "x" * 5_000}, "a text of 5000 characters"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "too old"),
        ({"$ref": "#/allOf/7", "allOf": [{}]}, "refers to nothing"),
        (CROWDED, "too many of its parts"),
    ],
)
def test_a_schema_that_is_not_used_has_a_reason(schema: Any, words: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the validator chooses the type
        check_of(schema)
    assert words in reason(caught.value)
    assert len(reason(caught.value)) <= 300


RECURSIVE = {
    "anyOf": [
        {"type": ["string", "number"]},
        {"type": "array", "prefixItems": [{"$ref": "#"}, {"$ref": "#"}], "items": {"$ref": "#"}},
        {
            "type": "object",
            "properties": {"left": {"$ref": "#"}, "right": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "additionalProperties": {"$ref": "#"},
        },
    ]
}


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        (RECURSIVE, nested(90, ["a", {"left": 1, "right": None}]), None),
        (RECURSIVE, {"left": None}, '{"left":null} is not valid under any of the schemas'),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, 1, '1 is not of type "null"'),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}}, 1, "1 is not of type"),
        ({"additionalProperties": False}, {"x": 1}, '{"x":1} has more than 0 properties'),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"x": 1},
            "Additional properties are not allowed",
        ),
        (
            {"properties": {"a": {"type": "null"}}},
            {"a": "s" * 200},
            "$.a: a text of 200 characters is not of type",
        ),
        ({"items": {"type": "null"}}, [[0] * 100], "$[0]: a list of 100 is not of type"),
        ({"type": "null"}, {"n": "s" * 200}, "an object with 1 members is not of type"),
        ({"type": "null"}, 10**100, "a number of 101 digits is not of type"),
        ({"pattern": "^(?!x)a", "maxLength": 1}, "xx", '"xx" is longer than 1 character'),
        ({"patternProperties": {"^(?!x)": {}}, "additionalProperties": False}, {"x": 1}, None),
        ({"unevaluatedProperties": False}, {"x": 1}, None),
        ({"format": "email"}, "x", None),
        ({"properties": {"a": {"default": 1}}, "required": ["a", "b"]}, {}, '"b" is a required'),
        ({"properties": {"a": {"anyOf": [{"default": 1}, {}]}}, "required": ["a"]}, {}, None),
        (
            {"properties": {"a": {"default": 1}, "b": {"$ref": "#/properties/a"}}, "required": ["b"]},
            {},
            None,
        ),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {}}, "required": ["a"]}, {}, '"a" is a'),
        ({"$ref": "#/allOf/0", "allOf": [{"type": "null"}]}, 1, '1 is not of type "null"'),
        ({"$ref": "#/properties/a", "properties": {"a": True}}, 1, None),
        ({"items": {"maximum": 150_000}}, list(range(150_000)), None),
    ],
)
def test_what_is_checked(schema: Any, value: Any, fault: str | None) -> None:
    found = check_of(schema)(value)
    assert found == fault if fault is None else (found or "").startswith(fault)


def test_a_required_property_whose_reference_leads_nowhere_has_no_default() -> None:
    with pytest.raises(NotCheckedError, match="refers to nothing: #/nowhere"):
        check_of({"properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a"]})({})


def test_too_many_levels_have_a_reason() -> None:
    assert reason(RecursionError()) == "it is nested too deeply"


def test_a_value_of_too_many_bytes_is_not_checked() -> None:
    with pytest.raises(NotCheckedError, match=f"of more than {MAX_VALUE_BYTES} bytes"):
        check_of({"type": "string"})("x" * MAX_VALUE_BYTES)


def test_a_value_that_is_too_large_for_its_schema_is_not_checked() -> None:
    check = check_of({"items": {"anyOf": [{"type": "null"}] * 500}})
    assert check([1]) is not None
    with pytest.raises(NotCheckedError, match="with very many values for its schema"):
        check([1] * 100_000)


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
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "patternProperties": st.dictionaries(NAMES, inner, max_size=2),
            "additionalProperties": inner | st.booleans(),
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=4,
)


@given(schema=SCHEMAS, value=VALUES)
def test_another_validator_agrees(schema: Any, value: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="it comes with the extra: pip install 'grue[mcp]'")
    agreed = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (check_of(schema)(value) is None) == agreed


PLAIN = st.recursive(
    st.fixed_dictionaries(
        {"type": TYPES},
        optional={"title": NAMES, "description": NAMES, "additionalProperties": st.booleans()},
    ),
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={"required": st.lists(NAMES, max_size=3, unique=True)},
    ),
    max_leaves=4,
)


@given(schema=PLAIN, value=VALUES)
def test_what_is_let_through_without_the_validator_fits(schema: Any, value: Any) -> None:
    if _is_plain(schema) and _fits_plainly(schema, value):
        assert jsonschema_rs.Draft202012Validator(schema).is_valid(value)


TITLE = "The validator is not loaded"
ARGUMENTS = {
    "text": {"type": "string", "title": "Text"},
    "times": {"type": "integer", "description": "How often"},
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object"}, {}),
        ({"type": "object", "properties": {}, "additionalProperties": False}, {}),
        ({"type": "object", "properties": ARGUMENTS, "required": ["text"]}, {"text": "a", "times": 2}),
        ({"type": "object", "properties": {"in": {"type": "object", "properties": ARGUMENTS}}}, {"in": {}}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "number"}, 0.5),
        ({"type": "array"}, [1]),
    ],
)
def test_what_fits_a_plain_schema_does_not_load_the_validator(
    schema: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    assert check_of({**schema, "title": TITLE})(value) is None


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"text": 1},
        {"text": "a", "times": True},
        {"text": "a", "more": 1},
        {"text": "a", "times": 1.5},
        [],
        None,
    ],
)
def test_what_does_not_fit_plainly_is_left_to_the_validator(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    check = check_of({"type": "object", "properties": ARGUMENTS, "required": ["text"], "title": TITLE})
    with pytest.raises(ImportError):
        check(value)


@pytest.mark.parametrize(
    "fault",
    [
        {"type": "strin"},
        {"required": "text"},
        {"required": ["text", "text"]},
        {"required": [1]},
        {"properties": {"text": {"type": "strin"}}},
        {"title": 1},
        {"additionalProperties": 1},
    ],
)
def test_a_schema_that_is_not_valid_is_refused_before_it_is_used(fault: Any) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        check_of({"type": "object", **fault})


@pytest.mark.parametrize("step", ["1", "²", "9" * 5_000, "x"])
def test_a_reference_into_a_list_without_such_an_item_refers_to_nothing(step: str) -> None:
    with pytest.raises(NotCheckedError, match="it refers to nothing"):
        target(f"#/required/{step}", {"required": ["a"]}, {})
