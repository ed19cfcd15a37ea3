"""Read a tool's arguments from the command line, with the types that the tool's schema asks for."""

import json
from collections.abc import Sequence

from grue import messages as m
from grue.config.documents import nearest
from grue.errors import MCPConfigError


def read_arguments(tool: m.ToolDefinition, text: str | None, pairs: Sequence[str]) -> m.JsonObject:
    """Return the arguments of a call; a pair replaces a member of the same name.

    Args:
        tool: The tool's definition from its server.
        text: A JSON object, or `None`.
        pairs: `NAME=VALUE` each. If the schema asks for a string, the value is text, otherwise JSON. If the
            schema gives no type, the value is JSON if it can be parsed, otherwise text.

    Raises:
        MCPConfigError: An argument cannot be read; the text says what is expected.
    """
    arguments = {} if text is None else _object(text)
    properties = tool.input_schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    for pair in pairs:
        name, equals, written = pair.partition("=")
        if not equals or not name:
            raise MCPConfigError(f"--arg {pair}: write NAME=VALUE.")
        if name not in known and tool.input_schema.get("additionalProperties") is False:
            likely = nearest(name, known)
            hint = f" Did you mean {likely!r}?" if likely else ""
            raise MCPConfigError(f"--arg {pair}: {tool.name} takes no argument {name!r}.{hint}")
        arguments[name] = _value(pair, written, _kinds(known.get(name)))
    return arguments


def _object(text: str) -> m.JsonObject:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MCPConfigError(f"The arguments are not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise MCPConfigError("""The arguments are not a JSON object: write '{"name": value}'.""")
    return value


def _value(pair: str, written: str, kinds: frozenset[str]) -> object:
    if kinds == {"string"}:
        return written
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        value = written
    if not kinds or kinds & _kinds_of(value):
        return value
    if "string" in kinds:
        return written
    raise MCPConfigError(f"--arg {pair}: the value should be of type {' or '.join(sorted(kinds))}.")


def _kinds(schema: object) -> frozenset[str]:
    """Return the types that a schema names; empty if it names none."""
    if not isinstance(schema, dict):
        return frozenset()
    if isinstance(schema.get("enum"), list):
        return frozenset[str]().union(*map(_kinds_of, schema["enum"]))
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset([kinds])
    if isinstance(kinds, list):
        return frozenset(map(str, kinds))
    options = schema.get("anyOf") or schema.get("oneOf")
    each = list(map(_kinds, options)) if isinstance(options, list) else []
    return frozenset[str]().union(*each) if all(each) else frozenset()


def _kinds_of(value: object) -> frozenset[str]:
    """Return JSON Schema's names for a value's type."""
    match value:
        case None:
            return frozenset(["null"])
        case bool():
            return frozenset(["boolean"])
        case int():
            return frozenset(["integer", "number"])
        case float():
            return frozenset(["number", "integer"] if value.is_integer() else ["number"])
        case str():
            return frozenset(["string"])
        case list():
            return frozenset(["array"])
        case _:
            return frozenset(["object"])
