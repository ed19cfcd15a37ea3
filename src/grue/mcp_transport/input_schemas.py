"""Check the arguments of a call against the tool's own input schema, before the call is sent.

Some servers hang, crash or misbehave on arguments that their schema refuses, which costs the whole time limit
of a call. The model gets the fault at once instead, and can correct the call.

Most schemas use few keywords. `fits` handles those itself, because importing the validator takes longer than
a whole turn of a quick server. The validator is asked only if `fits` is not certain.
"""

from collections.abc import Callable, Iterable, Mapping
from types import NoneType

from grue.mcp_transport.schema_checks import MAX_CHECK_S, SchemaChecks, check_of
from grue.messages import JsonObject, ToolDefinition
from grue.protocol.tool_results import is_small
from grue.runtime.aside import aside
from grue.tool_sessions.notices import Notify

_DESCRIBING = frozenset(
    ("$schema", "$comment", "title", "description", "default", "examples", "readOnly", "writeOnly", "format")
)
"""Keywords that refuse nothing. As in `schema_checks.py`, a `format` is not checked."""

_MAX_DEPTH = 20


class InputSchemas:
    """The input schemas of one session's tools.

    Args:
        notify: Receives a `bad_schema` notice for a schema, or for arguments, that cannot be checked. Such a
            call is sent.
    """

    def __init__(self, notify: Notify) -> None:
        self._checks = SchemaChecks(notify, schema="input schema", value="arguments")

    def declare(self, tools: Iterable[ToolDefinition]) -> None:
        """Replace the tools by those of a new listing."""
        self._checks.declare({tool.tool: tool.input_schema for tool in tools})

    async def fault(self, tool: str, arguments: JsonObject) -> str | None:
        """Return why the tool's schema refuses the arguments; `None` if it takes them or cannot be used.

        Cancelling stops the check.

        Args:
            tool: Bare name. Any arguments are taken for a tool that is not listed.
            arguments: A JSON object.
        """
        schema = self._checks.schema(tool)
        if schema is None:
            return None
        small = is_small(arguments)
        if fits(schema, arguments) if small else await aside(fits, schema, arguments):
            return None
        return await self._checks.fault(tool, arguments)


def fault_of(schema: JsonObject, arguments: JsonObject) -> str | None:
    """Return why a schema refuses arguments, blocking; `None` if it takes them or cannot be used.

    Without `jsonschema`, which comes with the package mcp, only schemas that `fits` knows are checked.
    """
    if fits(schema, arguments):
        return None
    try:
        return check_of(schema)(arguments, MAX_CHECK_S)
    except Exception:  # noqa: BLE001 - an untrusted schema may make the validator raise anything
        return None


def fits(schema: object, value: object, depth: int = 0) -> bool:
    """Return whether a value certainly fits a schema. `False` means that the validator has to decide."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return schema is True
    return all(
        keyword in _DESCRIBING or (keyword in _KEYWORDS and _KEYWORDS[keyword](schema, value, depth))
        for keyword in schema
    )


def _type(schema: JsonObject, value: object, _: int) -> bool:
    wanted = schema["type"]
    names = _TYPE_NAMES.get(type(value), frozenset())
    if isinstance(wanted, str):
        return wanted in names
    return isinstance(wanted, list) and any(isinstance(name, str) and name in names for name in wanted)


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
    return isinstance(names, list) and isinstance(value, dict) and all(name in value for name in names)


def _items(schema: JsonObject, value: object, depth: int) -> bool:
    return isinstance(value, list) and all(fits(schema["items"], item, depth + 1) for item in value)


def _enum(schema: JsonObject, value: object, _: int) -> bool:
    choices = schema["enum"]
    return isinstance(value, str) and isinstance(choices, list) and value in choices


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
    "type": _type,
    "properties": _properties,
    "additionalProperties": _additional,
    "required": _required,
    "items": _items,
    "enum": _enum,
}
