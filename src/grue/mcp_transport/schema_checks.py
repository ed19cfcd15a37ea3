"""Check a JSON value against a JSON Schema that a server wrote: a result, or the arguments of a call.

Schema and value are untrusted. References are resolved only within the schema; nothing is fetched. Keywords
that use regular expressions are ignored, since those can run for ever, and so are keywords that compare every
item with every other. A value that is too large is not checked, and a check that takes too long is stopped. A
value that cannot be checked passes, with a notice.

`jsonschema` comes with the package mcp; it is imported when the first value is checked.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

import msgspec

from grue.mcp_transport.schema_fits import NOT_CHECKED
from grue.messages import JsonObject
from grue.protocol.safe_text import printable
from grue.runtime.aside import aside
from grue.tool_sessions.notices import Notify

MAX_SCHEMA_BYTES = 30_000
MAX_CONTENT_BYTES = 1_000_000
MAX_CHECK_S = 0.5
_CHECK_IN_LOOP_S = 0.003
"""A check that takes longer is repeated in a thread."""

_MOST_COMPILED = 64
_FAULT_CHARS = 300
_IGNORED_KEYWORDS = NOT_CHECKED | {"patternProperties"}

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_check_until: ContextVar[float] = ContextVar("check_until")

Check: TypeAlias = Callable[[object, float], str | None]
"""Returns the fault of a value, or `None`. The second argument is its time limit in seconds."""


class _NotCheckedError(Exception):
    """A schema or a value is not checked. The text says why."""


class _OutOfTimeError(_NotCheckedError):
    """The check exceeded its time limit."""


class SchemaChecks:
    """One schema for each of a session's tools, compiled when it is used for the first time.

    A schema that cannot be compiled or used is ignored for the rest of the session.

    Args:
        notify: Receives a `bad_schema` notice for a schema or a value that cannot be checked.
        schema: What the schemas are called in notices, such as "output schema".
        value: What the checked values are called, such as "result".
    """

    def __init__(self, notify: Notify, *, schema: str, value: str) -> None:
        self._notify = notify
        self._schema = schema
        self._value = value
        self._schemas: Mapping[str, JsonObject] = {}
        self._checks: dict[str, Check | None] = {}

    def declare(self, schemas: Mapping[str, JsonObject]) -> None:
        """Replace the schemas by those of a new listing, by bare tool name."""
        before, self._schemas = self._schemas, schemas
        for name in [name for name in self._checks if schemas.get(name) != before[name]]:
            del self._checks[name]

    def schema(self, tool: str) -> JsonObject | None:
        """Return the schema of a tool, or `None` if it has none."""
        return self._schemas.get(tool)

    async def usable(self, tool: str) -> bool:
        """Return whether the tool has a schema that values can be checked against; compile it if need be."""
        if tool not in self._schemas:
            return False
        if tool not in self._checks:
            self._checks[tool] = await self._compiled(tool)
        return self._checks[tool] is not None

    async def fault(self, tool: str, value: object) -> str | None:
        """Return the first fault of a value; `None` if it has none or cannot be checked.

        Cancelling stops the check.
        """
        check = self._checks[tool] if await self.usable(tool) else None
        if check is None:
            return None
        if len(msgspec.json.encode(value)) > MAX_CONTENT_BYTES:
            self.too_large(tool)
            return None
        try:
            try:
                return check(value, _CHECK_IN_LOOP_S)
            except _OutOfTimeError:
                return await aside(check, value, MAX_CHECK_S)
        except Exception as error:  # noqa: BLE001 - some faults of a schema show only when it is used
            self._stop_checking(tool, error)
            return None

    def too_large(self, tool: str) -> None:
        """Record that a value is not checked because of its size."""
        self._notify(
            "bad_schema", f"{tool}: {self._value} of more than {MAX_CONTENT_BYTES} bytes: not checked"
        )

    async def _compiled(self, tool: str) -> Check | None:
        try:
            # In a thread, because importing the validator and compiling a schema takes up to a second.
            return await aside(check_of, self._schemas[tool])
        except Exception as error:  # noqa: BLE001 - an untrusted schema may make the compiler raise anything
            self._stop_checking(tool, error)
            return None

    def _stop_checking(self, tool: str, error: Exception) -> None:
        self._checks[tool] = None
        self._notify("bad_schema", f"{tool}: its {self._schema} is not used: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    # Only the first line of the validator's text; the others repeat the schema.
    return printable(str(error).strip().partition("\n")[0] or type(error).__name__, _FAULT_CHARS)


def check_of(schema: JsonObject) -> Check:
    """Compile a schema, once for all sessions: each turn has a new one, with the same tools.

    Raises:
        Exception: The schema is too large or not valid. The validator chooses the type.
    """
    written = msgspec.json.encode(schema)
    if len(written) > MAX_SCHEMA_BYTES:
        raise _NotCheckedError(f"it is larger than {MAX_SCHEMA_BYTES} bytes")
    return _check_of(written)


@functools.lru_cache(maxsize=_MOST_COMPILED)
def _check_of(written: bytes) -> Check:
    import jsonschema  # type: ignore[import-untyped]  # it ships no types
    from referencing import Registry

    schema: JsonObject = msgspec.json.decode(written)
    dialect = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    if dialect in (jsonschema.Draft3Validator, jsonschema.Draft4Validator):
        raise _NotCheckedError("its dialect of JSON Schema is too old")
    own = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    if _has_outside_reference(own):
        # The validator would follow it with its plain class, without our limits.
        raise _NotCheckedError("it refers to something outside, or is made of several schemas")
    dialect.check_schema(own, format_checker=jsonschema.FormatChecker(()))
    validator = _bounded(dialect)(own, registry=Registry())

    def check(content: object, limit_s: float) -> str | None:
        token = _check_until.set(time.monotonic() + limit_s)
        try:
            error = next(validator.iter_errors(content), None)
        finally:
            _check_until.reset(token)
        return None if error is None else _fault_text(error)

    return check


def _fault_text(error: Any) -> str:
    place = "" if error.json_path == "$" else f"{error.json_path}: "
    return printable(f"{place}{error.message}", _FAULT_CHARS)


def _has_outside_reference(value: object) -> bool:
    match value:
        case {"$schema": str()} | {"$id": str()}:
            return True
        case dict():
            outside = any(_is_outside_reference(value.get(name)) for name in _REFERENCES)
            return outside or any(map(_has_outside_reference, value.values()))
        case list():
            return any(map(_has_outside_reference, value))
        case _:
            return False


def _is_outside_reference(reference: object) -> bool:
    return isinstance(reference, str) and not reference.startswith("#")


@functools.cache
def _bounded(dialect: Any) -> Any:
    """Return a validator class of the same dialect that applies our limits."""
    from jsonschema import validators

    keywords = {name: _timed(keyword) for name, keyword in dialect.VALIDATORS.items()}
    keywords |= {name: _always_valid for name in _IGNORED_KEYWORDS if name in keywords}
    keywords["additionalProperties"] = _without_patterns(keywords["additionalProperties"])
    return validators.extend(dialect, keywords)


def _timed(keyword: Any) -> Any:
    def timed(validator: Any, value: Any, content: Any, schema: Any) -> Any:
        if time.monotonic() > _check_until.get():
            raise _OutOfTimeError(f"the check takes longer than {MAX_CHECK_S} s")
        return keyword(validator, value, content, schema)

    return timed


def _always_valid(validator: Any, value: Any, content: Any, schema: Any) -> Iterator[Any]:
    del validator, value, content, schema
    return iter(())


def _without_patterns(keyword: Any) -> Any:
    def additional(validator: Any, value: Any, content: Any, schema: Mapping[str, Any]) -> Any:
        chosen = _always_valid if "patternProperties" in schema else keyword
        return chosen(validator, value, content, schema)

    return additional
