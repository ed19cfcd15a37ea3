"""Construct a small value that a JSON Schema accepts, with preferred values for some properties."""
# A schema with a keyword that does not say how to build a value (`_BEYOND`) counts as unsatisfiable.

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from grue import messages as m
from grue.protocol.tools.json_schema import check_of

T = TypeVar("T")

_MAX_DEPTH: Final = 16
_MOST_ATTEMPTS: Final = 20_000
_MAX_SIZE: Final = 1000  # largest `minLength`, `minItems` and `minProperties` that are supported
_BEYOND: Final = frozenset(
    [
        *("not", "if", "then", "else", "allOf", "pattern", "contains", "propertyNames", "patternProperties"),
        *("dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef"),
        *("unevaluatedProperties", "unevaluatedItems"),
    ]
)
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SCALAR_KEYWORDS: Final = frozenset(["type", "const", "enum", "minLength", "maxLength", *_LIMITS])
_ANNOTATIONS: Final = frozenset(["title", "description", "default", "examples", "$comment"])
_FORMATS: Final = {
    "date": "1980-11-01",
    "date-time": "1980-11-01T12:00:00Z",
    "time": "12:00:00Z",
    "email": "hesper@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


class UnsatisfiableError(ValueError):
    """No value can be constructed for a schema: it accepts none, or this module does not find one."""


def minimal(schema: object, *, wishes: Mapping[str, object] | None = None, text: str = "scripted") -> object:
    """Return a small value that `schema` accepts, or raise `UnsatisfiableError`.

    `wishes` has preferred scalars for properties at any depth, by name. They are used where the schema
    accepts them, even for optional properties. `text` is the value of all other strings that may have any
    content, cut or padded to the allowed length.
    """
    return _Maker(schema, wishes or {}, text).make(schema, 0)


class _Maker:
    def __init__(self, root: object, wishes: Mapping[str, object], text: str) -> None:
        self._root = root
        self._wishes = wishes
        self._text = text
        self._attempts = 0

    def make(self, schema: object, depth: int) -> object:
        for plain in self._alternatives(schema, depth):
            # A malformed schema may have a huge number (`OverflowError`), or a list in place of a name.
            with suppress(UnsatisfiableError, OverflowError, TypeError):
                return self._make_plain(plain, depth)
        raise UnsatisfiableError("no alternative can be satisfied")

    def _alternatives(self, schema: object, depth: int) -> Iterator[m.JsonObject]:
        """Split `schema` into schemas of at most one type each, without unions and `$ref`, and yield them."""
        plain = {} if schema is True else schema
        self._attempts += 1
        if self._attempts > _MOST_ATTEMPTS or depth > _MAX_DEPTH:
            return
        if not isinstance(plain, dict) or _BEYOND & plain.keys():
            return
        for union in ("anyOf", "oneOf"):
            # Treat `oneOf` like `anyOf`: in practice its alternatives exclude each other by a type or a tag.
            if union in plain:
                rest = {**plain}
                choices = rest.pop(union)
                for choice in choices if isinstance(choices, list) else ():
                    yield from self._alternatives(_joined(rest, choice), depth + 1)
                return
        if "$ref" in plain:
            rest = {**plain}
            reference = rest.pop("$ref")
            yield from self._alternatives(_joined(rest, self._resolve(reference)), depth + 1)
        elif isinstance(plain.get("type"), list):
            yield from ({**plain, "type": kind} for kind in plain["type"])
        else:
            yield plain

    def _resolve(self, reference: object) -> object:
        start, *steps = reference.split("/") if isinstance(reference, str) else [""]
        found = self._root if start == "#" else None
        for step in steps:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def _make_plain(self, schema: m.JsonObject, depth: int) -> object:
        if "const" in schema or "enum" in schema:
            listed = [schema["const"]] if "const" in schema else _of(list, schema["enum"])
            return _first_accepted(listed, schema)
        match schema.get("type", _kind_of(schema)):
            case "object":
                return self._make_object(schema, depth)
            case "array":
                return self._make_array(schema, depth)
            case "string":
                return _first_accepted(self._texts(schema), schema)
            case "integer" | "number" as kind:
                return _first_accepted(_numbers(schema, whole=kind == "integer"), schema)
            case "boolean":
                return False
            case "null":
                return None
        raise UnsatisfiableError("an unknown type")

    def _make_object(self, schema: m.JsonObject, depth: int) -> m.JsonObject:
        properties = _of(dict, schema.get("properties", {}))
        required = [str(name) for name in _of(list, schema.get("required", []))]
        least = _size(schema, "minProperties", 0)
        made: m.JsonObject = {}
        for name in dict.fromkeys([*required, *properties]):
            inner = properties.get(name, schema.get("additionalProperties", True))
            if name in self._wishes and any(
                _is_accepted(self._wishes[name], plain) for plain in self._alternatives(inner, depth + 1)
            ):
                made[name] = self._wishes[name]
            elif name in required or len(made) < least:
                made[name] = self.make(inner, depth + 1)
        if not least <= len(made) <= _size(schema, "maxProperties", len(made)):
            raise UnsatisfiableError("the number of properties")
        return made

    def _make_array(self, schema: m.JsonObject, depth: int) -> list[object]:
        length = _size(schema, "minItems", 0)
        first = _of(list, schema.get("prefixItems", []))[:length]
        inner = [*first, *[schema.get("items", True)] * (length - len(first))]
        made = [self.make(item, depth + 1) for item in inner]
        repeated = any(item in made[:index] for index, item in enumerate(made))
        if length > _size(schema, "maxItems", length) or (repeated and schema.get("uniqueItems")):
            raise UnsatisfiableError("the items of an array")
        return made

    def _texts(self, schema: m.JsonObject) -> list[str]:
        if "format" in schema:
            return [_FORMATS[name] for name in [schema["format"]] if name in _FORMATS]
        shortest = _size(schema, "minLength", 0)
        longest = _size(schema, "maxLength", max(shortest, len(self._text)))
        return [self._text[:longest].ljust(shortest, ".")]


def _numbers(schema: m.JsonObject, *, whole: bool) -> Iterator[float]:
    limits = _limits(schema)
    step = limits.pop("multipleOf", 1)
    yield from (1, 0)
    for limit in limits.values():
        if step > 0 and math.isfinite(limit / step):
            nearest = math.floor(limit / step)
            yield from ((nearest + offset) * step for offset in (0, 1, -1))
    if not whole:
        yield from limits.values()
        yield sum(limits.values()) / max(1, len(limits))
    yield step


def _is_accepted(value: object, schema: m.JsonObject) -> bool:
    if isinstance(value, str) and "format" in schema and value not in _FORMATS.values():
        return False
    try:
        return check_of({name: schema[name] for name in _SCALAR_KEYWORDS & schema.keys()})(value) is None
    except Exception:  # noqa: BLE001 - a malformed schema may make the validator raise anything
        return False


def _first_accepted(values: Iterable[object], schema: m.JsonObject) -> object:
    for value in values:
        if _is_accepted(value, schema):
            return value
    raise UnsatisfiableError("no value found")


def _kind_of(schema: m.JsonObject) -> str:
    if schema.keys() & {"properties", "required", "minProperties"}:
        return "object"
    if schema.keys() & {"items", "prefixItems", "minItems"}:
        return "array"
    return "number" if _limits(schema) else "string"


def _limits(schema: m.JsonObject) -> dict[str, float]:
    found = ((name, schema.get(name)) for name in _LIMITS)
    return {
        name: each for name, each in found if isinstance(each, int | float) and not isinstance(each, bool)
    }


def _size(schema: m.JsonObject, name: str, default: int) -> int:
    size = schema.get(name, default)
    if not isinstance(size, int) or size < 0 or (name.startswith("min") and size > _MAX_SIZE):
        raise UnsatisfiableError(f"{name} is out of bounds")
    return size


def _joined(schema: m.JsonObject, other: object) -> m.JsonObject | None:
    """Return a schema with the keywords of both; `None`: they conflict, or `other` is `False` or invalid."""
    added = {} if other is True else other
    if not isinstance(added, dict):
        return None
    shared = (schema.keys() & added.keys()) - _ANNOTATIONS
    return {**schema, **added} if all(schema[key] == added[key] for key in shared) else None


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise UnsatisfiableError("not a schema")
    return value
