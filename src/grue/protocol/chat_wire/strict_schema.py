"""Convert JSON Schemas to OpenAI's strict dialect: the subset that endpoints enforce on a model's answer."""

from typing import TypeVar

from grue import messages as m
from grue.protocol.tools.names import WireNames

T = TypeVar("T")

_UNIONS = ("anyOf", "oneOf")
_UNSAYABLE = {"allOf", "not", "if", "prefixItems", "patternProperties"}
_UNSAYABLE |= {"dependentRequired", "dependentSchemas"}


def strict_format(answer: m.AnswerSchema) -> m.JsonObject:
    """Return an answer's name and schema in OpenAI's format, in the strict dialect if that is possible."""
    # OpenAI allows the same characters in the name of a schema as in the name of a tool.
    name = WireNames("encoded").to_wire(answer.name)
    try:
        return {"name": name, "strict": True, "schema": strict_schema(answer.schema)}
    except ValueError:
        # Without `strict`, endpoints accept any schema, but do not enforce it. The host checks the answer.
        return {"name": name, "schema": answer.schema}


def strict_schema(schema: m.JsonObject) -> m.JsonObject:
    """Translate a schema to OpenAI's strict dialect, which requires all properties, or raise `ValueError`."""
    # OpenAI refuses a schema whose outermost level is an array, a union or a `$ref`.
    if schema.get("type") != "object":
        raise ValueError("the root of a strict schema is an object")
    return _strict(schema)


def _strict(given: object) -> m.JsonObject:
    schema = _of(dict, given)
    # The dialect does not allow a schema that accepts any value.
    if not schema.keys() & {"type", "$ref", "enum", "const", *_UNIONS}:
        raise ValueError("a strict schema names a type")
    if schema.keys() & _UNSAYABLE or (schema.get("type") == "array" and "items" not in schema):
        raise ValueError("a strict schema has no tuples and no conditions")
    rest = {key: value for key, value in schema.items() if key not in {"default", "discriminator"}}
    # OpenAI allows no keyword beside `$ref`, but Pydantic puts a description there.
    if "$ref" in rest and len(rest) > 1:
        rest["anyOf"] = [{"$ref": rest.pop("$ref")}]
    # The dialect has no `oneOf`. `anyOf` accepts more values, but the host checks the answer.
    for union in _UNIONS:
        if union in rest:
            rest["anyOf"] = [_strict(choice) for choice in _of(list, rest.pop(union))]
    if "items" in rest:
        rest["items"] = _strict(rest["items"])
    if "$defs" in rest:
        rest["$defs"] = {name: _strict(definition) for name, definition in _of(dict, rest["$defs"]).items()}
    kind = rest.get("type")
    is_object = kind == "object" or (isinstance(kind, list) and "object" in kind)
    return _closed(rest) if is_object else rest


def _closed(schema: m.JsonObject) -> m.JsonObject:
    properties = _of(dict, schema.get("properties", {}))
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict) or (not properties and extra is not False):
        raise ValueError("a strict schema has no free-form mappings")
    required = _of(list, schema.get("required", []))
    return {
        **schema,
        "properties": {
            name: _strict(value) if name in required else _nullable(_strict(value))
            for name, value in properties.items()
        },
        "required": list(properties),
        "additionalProperties": False,
    }


def _nullable(schema: m.JsonObject) -> m.JsonObject:
    # With `enum` or `const`, "null" in `type` is not enough, because these would still refuse `null`.
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type")
    if isinstance(kinds, list) and "enum" not in schema and "const" not in schema:
        return schema if "null" in kinds else {**schema, "type": [*kinds, "null"]}
    null = {"type": "null"}
    if "anyOf" not in schema:
        return {"anyOf": [schema, null]}
    choices = _of(list, schema["anyOf"])
    return schema if null in choices else {**schema, "anyOf": [*choices, null]}


def _of(kind: type[T], value: object) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"not a strict schema: {kind.__name__} expected")
    return value
