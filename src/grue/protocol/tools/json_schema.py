"""Compare a JSON value with a JSON Schema by the library `jsonschema-rs`. Value and schema may be hostile.

The library holds the GIL, cannot be stopped, and exhausts the stack on a long chain of references. So grue
first computes how much work a check can be. Above a limit (`_MOST_STEPS`) the value is not checked. A schema
that refers to anything outside is not used. Regular expressions that need more than linear time or much
memory are ignored. Formats, `unevaluatedItems` and `unevaluatedProperties` are not checked. Loading the
library takes 6 MB and 10 ms, so a value that fits a schema of only the commonest keywords (`_is_plain`) is
accepted without it.
"""

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec

from grue import messages as m
from grue.runtime.safe_text import printable

MAX_SCHEMA_BYTES = 30_000
MAX_VALUE_BYTES = 1_000_000

_MOST_STEPS = 10_000_000
"""The limit on the work of a check (under 1 s): `_most_parts` times the number of nested values, or times the
number of bytes if the schema has patterns."""

_MOST_PARTS = 2_000  # the most keywords and items of the schema parts that apply to one place
_DEEPEST = 60  # the deepest nesting of the parts that apply to one place; the validator's stack grows with it
# With more nested values, no fault is described if the schema has `anyOf` or the like: its error copies them.
_MOST_TOLD = 2_000
_MOST_WORK = 200_000  # the most parts and keywords that `_most_parts` looks at
_MOST_COMPILED = 64
_REGEX_BYTES = 100_000  # the most memory of a compiled regular expression, without its cache
_TOO_MUCH = "it is nested too deeply, or too many of its parts apply to one value"
_FAULT_CHARS = 300
_QUOTED_CHARS = 100
_VALUE = "\0"  # stands for the value in the validator's messages, and hardly ever occurs there otherwise
Check: TypeAlias = Callable[[object], str | None]
"""Returns why a schema refuses a value; `None`: it fits. Raises `NotCheckedError` for a too large value."""

_DIALECTS = {
    "http://json-schema.org/draft-06/schema": "Draft6Validator",
    "http://json-schema.org/draft-07/schema": "Draft7Validator",
    "https://json-schema.org/draft/2019-09/schema": "Draft201909Validator",
}
_OUTSIDE: dict[str, Any] = {}  # the schemas that a schema may refer to by a URL: none
_TOO_OLD = ("http://json-schema.org/draft-03/schema", "http://json-schema.org/draft-04/schema")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_BESIDE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")  # their schemas apply to the same value
_DEPENDENT = ("dependentSchemas", "dependencies")
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", *_DEPENDENT))
"""Keywords whose value has a schema for each name."""

_DATA = frozenset(("const", "enum", "default", "examples"))  # keywords whose value is no schema
_MOST_STEPS_TO_DEFAULT = 3  # levels of schemas searched for a property's default, its own schema first
_UNFORESEEN = frozenset(("unevaluatedItems", "unevaluatedProperties"))

_PLAIN_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}
_PLAIN_KEYWORDS: dict[str, type] = {
    "type": str,
    "properties": dict,
    "required": list,
    "additionalProperties": bool,
    "title": str,
    "description": str,
}


class NotCheckedError(Exception):
    """A schema or value cannot be checked, for example because it is too large."""


def check_of(schema: m.JsonObject) -> Check:
    """Return the check by `schema`, often from a cache. An unusable schema may raise any exception.

    A property with a default may be left out, even if it is `required`: some libraries write such schemas.
    """
    written = msgspec.json.encode(schema)
    if len(written) > MAX_SCHEMA_BYTES:
        raise NotCheckedError(f"it is larger than {MAX_SCHEMA_BYTES} bytes")
    return _check_of(written)


def fault_of(schema: m.JsonObject, value: object) -> str | None:
    """Return why `schema` refuses `value`; `None`: it accepts the value, or no check is possible."""
    try:
        return check_of(schema)(value)
    except Exception:  # noqa: BLE001 - an untrusted schema may make the validator raise anything
        return None


def reason(error: Exception) -> str:
    """Describe the error of a schema that cannot be used, in at most 300 characters."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    # `message` is the validator's sentence alone. `str(error)` would append parts of the schema.
    said = getattr(error, "message", None) or str(error)
    shown = said.replace(_VALUE, _shown(getattr(error, "instance", None)))
    return printable(shown.strip().partition("\n")[0] or type(error).__name__, _FAULT_CHARS)


@functools.lru_cache(maxsize=_MOST_COMPILED)
def _check_of(written: bytes) -> Check:
    schema: m.JsonObject = msgspec.json.decode(written)
    dialect = schema.pop("$schema", None)
    schema.pop("$id", None)
    if isinstance(dialect, str) and dialect.rstrip("#") in _TOO_OLD:
        raise NotCheckedError("its dialect of JSON Schema is too old")
    own: Any = _checkable(schema, schema)
    parts = _most_parts(own, _anchors(own))
    name = _DIALECTS.get(dialect.rstrip("#") if isinstance(dialect, str) else "", "Draft202012Validator")
    compiled = functools.cache(functools.partial(_compiled, own, name))
    is_plain = _is_plain(schema)
    if not is_plain:
        compiled()  # compile now, so that an invalid schema is refused here and not at its first use
    has_patterns, has_branches = b"attern" in written, b"Of" in written

    def check(value: object) -> str | None:
        text = msgspec.json.encode(value)
        if len(text) > MAX_VALUE_BYTES:
            raise NotCheckedError(f"of more than {MAX_VALUE_BYTES} bytes")
        if is_plain and _fits_plainly(schema, value):
            return None
        values = 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
        if parts * (len(text) if has_patterns else values) > _MOST_STEPS:
            raise NotCheckedError("with very many values for its schema")
        if has_branches and values > _MOST_TOLD:
            return None if compiled().is_valid(value) else f"{_shown(value)} does not fit"
        import jsonschema_rs

        try:
            compiled().validate(value)
        except jsonschema_rs.ValidationError as error:
            return fault_text(error)
        return None

    return check


def _compiled(schema: m.JsonObject, dialect: str) -> Any:
    import jsonschema_rs

    return getattr(jsonschema_rs, dialect)(
        schema, validate_formats=False, retriever=_OUTSIDE.__getitem__, pattern_options=_linear(), mask=_VALUE
    )


def _is_plain(schema: Any) -> bool:
    if not isinstance(schema, dict) or not schema.keys() <= _PLAIN_KEYWORDS.keys():
        return False
    if not all(isinstance(value, _PLAIN_KEYWORDS[key]) for key, value in schema.items()):
        return False
    required = schema.get("required", [])
    return (
        schema.get("type") in _PLAIN_TYPES
        and all(isinstance(name, str) for name in required)
        and len(required) == len(set(required))
        and all(map(_is_plain, schema.get("properties", {}).values()))
    )


def _fits_plainly(schema: Any, value: object) -> bool:
    """Return whether a value certainly fits a plain schema (`_is_plain`). If not, the library checks it."""
    if type(value) not in _PLAIN_TYPES[schema["type"]]:
        return False
    if not isinstance(value, dict):
        return True
    properties = schema.get("properties", {})
    return properties.keys() >= value.keys() >= set(schema.get("required", ())) and all(
        _fits_plainly(properties[name], each) for name, each in value.items()
    )


def _linear() -> Any:
    import jsonschema_rs

    return jsonschema_rs.RegexOptions(size_limit=_REGEX_BYTES, dfa_size_limit=10 * _REGEX_BYTES)


def fault_text(error: Any) -> str:
    """Describe an error of the validator in one line: the place in the value, and what is wrong there."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
    said = error.message.replace(_VALUE, _shown(error.instance))
    return printable(f"${steps}: {said}" if steps else said, _FAULT_CHARS)


def _shown(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    if len(text) <= _QUOTED_CHARS:
        return text
    match value:
        case str():
            return f"a text of {len(value)} characters"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"an object with {len(value)} members"
        case _:
            return f"a number of {len(text)} digits"


# --- Reduce a schema to the keywords that are checked ---


def _checkable(part: Any, whole_schema: m.JsonObject, *, names: bool = False) -> Any:
    """Return a `part` of a schema, reduced to what is checked. `names`: its keys are names, not keywords."""
    if isinstance(part, list):
        return [_checkable(inner, whole_schema) for inner in part]
    if not isinstance(part, dict):
        return part
    whole = {
        key: value
        if not names and key in _DATA
        else _checkable(value, whole_schema, names=not names and key in _NAMED)
        for key, value in part.items()
        if names or key not in _UNFORESEEN
    }
    if names:
        return whole
    properties, required, patterns = map(whole.get, ("properties", "required", "patternProperties"))
    if isinstance(required, list) and isinstance(properties, dict):
        whole["required"] = [
            name
            for name in required
            if not (isinstance(name, str) and _has_default(properties.get(name), whole_schema))
        ]
    if isinstance(patterns, dict) and not all(map(_is_linear, patterns)):
        del whole["patternProperties"]
        whole.pop("additionalProperties", None)
    if whole.get("additionalProperties") is False and not properties and "patternProperties" not in whole:
        # `maxProperties: 0` refuses the same values, but its error names the arguments.
        whole["maxProperties"] = 0
        del whole["additionalProperties"]
    if "pattern" in whole and not _is_linear(whole["pattern"]):
        del whole["pattern"]
    return whole


def _has_default(part: Any, whole_schema: m.JsonObject, steps: int = _MOST_STEPS_TO_DEFAULT) -> bool:
    if not isinstance(part, dict) or not steps:
        return False
    if "default" in part:
        return True
    combined = (part.get(key) for key in ("allOf", "anyOf", "oneOf"))
    inner = [each for parts in combined if isinstance(parts, list) for each in parts[:2]]
    with contextlib.suppress(NotCheckedError):
        inner += [target(part["$ref"], whole_schema, {})] if "$ref" in part else []
    return any(_has_default(each, whole_schema, steps - 1) for each in inner)


def _is_linear(pattern: object) -> bool:
    """Return whether a pattern needs linear time and little memory, or is invalid, which is refused later."""
    return _compiles(pattern, _linear()) or not _compiles(pattern, None)


def _compiles(pattern: object, options: Any) -> bool:
    import jsonschema_rs

    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


# --- How long a check can take ---


def _anchors(schema: m.JsonObject) -> dict[str, m.JsonObject]:
    found: dict[str, m.JsonObject] = {}
    for part in _objects(schema):
        outside = (str(part[key]) for key in _REFERENCES if isinstance(part.get(key), str))
        own = any(isinstance(part.get(key), str) for key in ("$schema", "$id"))
        if own or not all(reference.startswith("#") for reference in outside):
            # The validator may know the other schema, but grue cannot tell how much work a check would be.
            raise NotCheckedError("it refers to something outside, or is made of several schemas")
        for key in ("$anchor", "$dynamicAnchor"):
            name = part.get(key)
            if isinstance(name, str) and found.setdefault(name, part) is not part:
                raise NotCheckedError("two of its parts have one name")
    return found


def _objects(value: object) -> Iterator[m.JsonObject]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(inner)


def _most_parts(root: m.JsonObject, anchors: Mapping[str, m.JsonObject]) -> int:
    """Return the largest total `_size` of the schema parts that can apply to one place of a value."""
    states = [[root]]
    seen: set[tuple[int, ...]] = set()
    most = work = 0
    while states:
        state = states.pop()
        key = tuple(sorted(map(id, state)))
        if key in seen:
            continue
        seen.add(key)
        applied = _applied(state, root, anchors)
        parts = sum(map(_size, applied))
        below = _below(applied)
        work += parts + sum(map(len, below))
        most = max(most, parts)
        if most > _MOST_PARTS or work > _MOST_WORK:
            raise NotCheckedError(_TOO_MUCH)
        states += below
    return most


def _applied(
    state: list[m.JsonObject], root: m.JsonObject, anchors: Mapping[str, m.JsonObject]
) -> list[m.JsonObject]:
    """Return the parts in `state`, and their subschemas for the same value, such as those in `allOf`."""
    found: list[m.JsonObject] = []
    waiting = [(part, 0) for part in state]
    while waiting:
        part, depth = waiting.pop()
        found.append(part)
        if len(found) > _MOST_PARTS or depth > _DEEPEST:
            raise NotCheckedError(_TOO_MUCH)
        inner = [each for key in _BESIDE for each in _schemas(part.get(key))]
        inner += [each for key in _DEPENDENT for each in _members(part.get(key)).values()]
        inner += [target(part[key], root, anchors) for key in _REFERENCES if isinstance(part.get(key), str)]
        waiting += [(each, depth + 1) for each in inner]
    return found


def _below(applied: list[m.JsonObject]) -> list[list[m.JsonObject]]:
    """Return the lists of schema parts that apply to a value's keys, and to each member or item."""
    named: dict[object, list[m.JsonObject]] = defaultdict(list)
    others: dict[type, list[tuple[list[m.JsonObject], frozenset[object]]]] = {str: [], int: []}
    keys: list[m.JsonObject] = []
    for part in applied:
        members = _members(part.get("properties"))
        first = part.get("prefixItems", part.get("items"))
        items = dict(enumerate(first)) if isinstance(first, list) else {}
        for name, schema in (*members.items(), *items.items()):
            named[name] += _schemas(schema)
        others[str].append((list(_members(part.get("patternProperties")).values()), frozenset()))
        properties = part.get("properties")
        own_names = frozenset[object](properties if isinstance(properties, dict) else ())
        others[str].append((_schemas(part.get("additionalProperties")), own_names))
        rest = part.get("items") if isinstance(part.get("items"), dict) else part.get("additionalItems")
        others[int].append((_schemas(rest), frozenset(items)))
        others[int].append((_schemas(part.get("contains")), frozenset()))
        keys += _schemas(part.get("propertyNames"))
    # `named[""]` stands for the members that no schema part names, `named[-1]` for the items that none names.
    for kind, name in ((str, ""), (int, -1)):
        others[kind] = [(schemas, own) for schemas, own in others[kind] if schemas]
        named.setdefault(name, [])
    if len(named) * max(map(len, others.values())) > _MOST_WORK:
        raise NotCheckedError(_TOO_MUCH)
    states = [keys]
    for name, schemas in named.items():
        rest_of = [each for found, own in others[type(name)] if name not in own for each in found]
        states.append([*schemas, *rest_of])
    return [state for state in states if state]


def _schemas(value: object) -> list[m.JsonObject]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]


def _members(value: object) -> dict[str, m.JsonObject]:
    return {k: v for k, v in value.items() if isinstance(v, dict)} if isinstance(value, dict) else {}


def target(reference: object, root: m.JsonObject, anchors: Mapping[str, m.JsonObject]) -> m.JsonObject:
    """Return the part of `root` that a `$ref` names. Raises `NotCheckedError` if it names no usable one."""
    pointer = unquote(str(reference)).removeprefix("#")
    found: Any = root if not pointer or pointer.startswith("/") else anchors.get(pointer)
    for step in pointer.split("/")[1:] if pointer.startswith("/") else ():
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(step)] if step in map(str, range(len(found))) else None
        else:
            found = found.get(step) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return {}
    if not isinstance(found, dict) or not _UNFORESEEN.isdisjoint(found):
        raise NotCheckedError(f"it refers to nothing: {reference}")
    return found


def _size(part: m.JsonObject) -> int:
    """Return how many keywords and items of a schema part the validator looks at to check one value."""
    return sum(
        len(value) if isinstance(value, list | dict) else 1
        for key, value in part.items()
        if key not in ("$defs", "definitions", "const", "default", "examples", "title", "description")
    )
