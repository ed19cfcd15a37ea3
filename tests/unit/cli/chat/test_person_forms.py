"""The forms that servers ask users to fill in."""

from typing import Any

import pytest

from grue.cli.chat.person import Field, fields_of, value_of


def test_fields_have_what_the_schema_says() -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Your name", "default": "Ada"},
            "age": {"type": "integer", "description": "In years"},
            "colour": {"enum": ["red", "blue"]},
            "odd": True,
            "wrong": {"enum": 5},
        },
        "required": ["name", "colour"],
    }
    name, age, colour, odd, wrong = fields_of(schema)
    assert (name.prompt, name.default) == ("Your name: ", "Ada")
    assert age.prompt == "In years, integer, may be empty: "
    assert colour.prompt == "colour (red | blue): "
    assert odd.prompt == "odd, may be empty: "
    assert wrong.prompt == "wrong, may be empty: ", "what is no list of values is passed over"


def test_each_form_of_a_choice_shows_its_values_and_takes_no_other() -> None:
    titled = [{"const": "a", "title": "First"}, {"const": "b", "title": "Second"}, "odd", {"title": "odd"}]
    schema = {
        "properties": {
            "one": {"type": "string", "oneOf": titled},
            "some": {"type": "array", "items": {"enum": ["a", "b"]}, "default": ["a", "b"]},
            "more": {"type": "array", "items": {"anyOf": titled}},
            "wrong": {"type": "array", "items": {"anyOf": 5}},
        }
    }
    one, some, more, wrong = fields_of(schema)
    assert one.prompt == "one (a: First | b: Second), may be empty: "
    assert some.prompt == "some (a | b), array, may be empty: "
    assert more.prompt == "more (a: First | b: Second), array, may be empty: "
    assert value_of(one, "b") == "b"
    assert value_of(some, some.default) == ["a", "b"]
    assert value_of(more, "b") == ["b"]
    assert value_of(wrong, '["x"]') == ["x"]
    for field, text in ((one, "First"), (some, "a, c"), (more, '["a"]')):
        with pytest.raises(ValueError, match="choose"):
            value_of(field, text)


@pytest.mark.parametrize("schema", [{}, {"properties": 3}, {"properties": {}, "required": 7}])
def test_a_form_without_fields_has_none(schema: dict[str, Any]) -> None:
    assert list(fields_of(schema)) == []


def test_what_a_server_writes_is_printable_and_bounded() -> None:
    schema = {"properties": {f"f{number}": {"title": "\x1b[2J" + "x" * 900} for number in range(1000)}}
    fields = list(fields_of(schema))
    assert len(fields) == 50
    assert fields[0].prompt.isprintable()
    assert len(fields[0].prompt) <= 200


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "7", "7"),
        ("integer", "7", 7),
        ("number", "0.5", 0.5),
        ("boolean", "Yes", True),
        ("boolean", "n", False),
        ("array", "[1]", [1]),
    ],
)
def test_a_text_becomes_a_value(kind: str, text: str, value: object) -> None:
    assert value_of(Field(name="x", label="x", kind=kind), text) == value


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (Field(name="x", label="x", kind="integer"), "many"),
        (Field(name="x", label="x", kind="number"), "nan"),
        (Field(name="x", label="x", kind="number"), "1e999"),
        (Field(name="x", label="x", kind="object"), '{"x": NaN}'),
        (Field(name="x", label="x", kind="boolean"), "maybe"),
        (Field(name="x", label="x", kind="array"), "[1"),
        (Field(name="x", label="x", options={"a": "a", "b": "b"}), "c"),
    ],
)
def test_another_text_is_refused(field: Field, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        value_of(field, text)
