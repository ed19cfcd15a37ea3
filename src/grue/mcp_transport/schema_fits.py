"""Tell quickly whether a JSON value certainly fits a JSON Schema, without a validator.

Most schemas of tools use few keywords, and importing the validator takes longer than a whole turn of a
quick server. So `fits` handles those keywords. It is `False` also where it is not certain: then the
validator has to decide (`schema_checks.py`).

Schema and value are untrusted. No keyword looks through a long list of the schema for each part of the value,
so the time depends on the value's size only.
"""

import operator
from collections.abc import Callable, Mapping
from types import NoneType

from grue.messages import JsonObject

_DESCRIBING = frozenset(
    ("$comment", "title", "description", "default", "examples", "format", "readOnly", "writeOnly")
)
"""Keywords that refuse nothing. The validator does not check a `format` either."""

NOT_CHECKED = frozenset(("pattern", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"))
"""Keywords that `schema_checks.py` does not check either, because a check of them can take too long."""

_MAX_DEPTH = 20
_MOST_CHOICES = 100


def fits(schema: object, value: object, depth: int = 0) -> bool:
    """Return whether a value certainly fits a schema. `False` means that the validator has to decide."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema is True
    return all(
        _KEYWORDS[keyword](schema, value, depth)
        if keyword in _KEYWORDS
        else keyword in _DESCRIBING or keyword in NOT_CHECKED
        for keyword in schema
    )


def _dialect(schema: JsonObject, _: object, depth: int) -> bool:
    return depth == 0 and isinstance(schema["$schema"], str)


def _type(schema: JsonObject, value: object, _: int) -> bool:
    wanted = schema["type"]
    names = _TYPE_NAMES.get(type(value), frozenset())
    if isinstance(wanted, str):
        return wanted in names
    if not isinstance(wanted, list) or len(wanted) > len(_TYPE_NAMES):
        return False
    return any(isinstance(name, str) and name in names for name in wanted)


def _properties(schema: JsonObject, value: object, depth: int) -> bool:
    named = schema["properties"]
    if not isinstance(named, dict) or not isinstance(value, dict):
        return False
    return all(fits(named[name], member, depth + 1) for name, member in value.items() if name in named)


def _additional(schema: JsonObject, value: object, depth: int) -> bool:
    named, others = schema.get("properties", {}), schema["additionalProperties"]
    if not isinstance(named, dict) or not isinstance(value, dict):
        return False
    return all(fits(others, member, depth + 1) for name, member in value.items() if name not in named)


def _required(schema: JsonObject, value: object, _: int) -> bool:
    names = schema["required"]
    if not isinstance(names, list) or not isinstance(value, dict) or len(names) > len(value):
        return False
    return all(isinstance(name, str) and name in value for name in names)


def _items(schema: JsonObject, value: object, depth: int) -> bool:
    return isinstance(value, list) and all(fits(schema["items"], item, depth + 1) for item in value)


def _enum(schema: JsonObject, value: object, _: int) -> bool:
    choices = schema["enum"]
    if not isinstance(choices, list) or len(choices) > _MOST_CHOICES:
        return False
    return isinstance(value, str) and value in choices


def _bound(keyword: str, holds: Callable[[float, float], bool]) -> Callable[[JsonObject, object, int], bool]:
    """Return the check of a keyword that limits a number, and says nothing of any other value."""

    def check(schema: JsonObject, value: object, _: int) -> bool:
        limit = schema[keyword]
        if type(value) not in _NUMBERS:
            return True
        return type(limit) in _NUMBERS and holds(value, limit)  # type: ignore[arg-type]  # both are numbers

    return check


def _length(
    keyword: str, of: type[str] | type[list[object]], holds: Callable[[int, int], bool]
) -> Callable[[JsonObject, object, int], bool]:
    """Return the check of a keyword that limits a length, and says nothing of values of another type."""

    def check(schema: JsonObject, value: object, _: int) -> bool:
        limit = schema[keyword]
        return not isinstance(value, of) or (type(limit) is int and holds(len(value), limit))

    return check


_NUMBERS = (int, float)
_TYPE_NAMES: Mapping[type, frozenset[str]] = {
    NoneType: frozenset({"null"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    str: frozenset({"string"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
}

_KEYWORDS: Mapping[str, Callable[[JsonObject, object, int], bool]] = {
    "$schema": _dialect,
    "type": _type,
    "properties": _properties,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "enum": _enum,
    "minimum": _bound("minimum", operator.ge),
    "maximum": _bound("maximum", operator.le),
    "exclusiveMinimum": _bound("exclusiveMinimum", operator.gt),
    "exclusiveMaximum": _bound("exclusiveMaximum", operator.lt),
    "minLength": _length("minLength", str, operator.ge),
    "maxLength": _length("maxLength", str, operator.le),
    "minItems": _length("minItems", list, operator.ge),
    "maxItems": _length("maxItems", list, operator.le),
}
