"""`AnswerSpec`: a host's description of a valid answer, with its schema, its check and its fallback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_type_hints, is_typeddict, overload

import msgspec
from msgspec import Struct

from grue import messages as m
from grue.errors import MCPConfigError
from grue.field_checks import WHERE_TO_DEFINE, shown
from grue.protocol.answers import fenced_blocks, json_objects
from grue.protocol.chat_wire.wire_format import UNREADABLE
from grue.protocol.json_text import is_repetitive, json_value, plain_value, strict_value
from grue.runtime.loops.host_code import blame, in_words
from grue.runtime.safe_text import fault_text, well_formed, well_formed_escapes

if TYPE_CHECKING:
    from pydantic import BaseModel
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=str)
else:
    T = TypeVar("T")
V = TypeVar("V")
Model = TypeVar("Model", bound="BaseModel")


class AnswerSpec(Generic[T]):
    """The answer that a host expects from a turn.

    Args:
        parse: Parses the model's final text. Raises `ValueError` with a reason for the model if the text is
            not acceptable. Errors that Python raises for extreme input, such as `RecursionError`, count as a
            `ValueError`. Any other exception ends the turn as a crash.
        schema: JSON Schema for the endpoint's structured output; `None`: free text.
        name: The name under which the endpoint gets the schema.
        fallback: The answer to use if the model gives no acceptable answer; `None`: the turn fails instead.
        told: `True`: the texts of the `TurnRequest` already say what form the answer must have. `False`: in a
            turn that offers tools, grue writes the schema into the prompt, because a request with tools does
            not use the endpoint's structured output.

    Source: R15.3
    """

    def __init__(
        self,
        parse: Callable[[str], T],
        *,
        schema: m.JsonObject | None = None,
        name: str = "answer",
        fallback: T | None = None,
        told: bool = False,
    ) -> None:
        _refuse_unless_plain("parse", parse, "a function that gets the text")
        for argument, value, kind, form in (
            ("schema", schema, Mapping | None, "a JSON schema, schema={'type': 'object', ...}"),
            ("name", name, str, "a text"),
            ("told", told, bool, "True or False"),
        ):
            if not isinstance(value, kind):
                raise MCPConfigError(f"AnswerSpec: {argument}= wants {form}, not {type(value).__name__}.")
        self.parse = parse
        self.told = told
        self.schema = None if schema is None else m.AnswerSchema(name, _as_recorded(schema))
        self.fallback = fallback

    @classmethod
    def text(cls) -> AnswerSpec[str]:
        """Accept any text."""
        return AnswerSpec(str)

    @classmethod
    def from_model(
        cls,
        model: type[Model],
        *,
        check: Callable[[Model], Model] | None = None,
        fallback: Model | None = None,
        told: bool = False,
    ) -> AnswerSpec[Model]:
        """Expect an instance of a pydantic model, as plain JSON, in a code fence, or within prose.

        Args:
            model: The pydantic model. grue sends its JSON Schema to the endpoint.
            check: Gets the parsed answer; returns it, changed or not, or raises `ValueError`.
            fallback: As in `AnswerSpec`.
            told: As in `AnswerSpec`.

        Source: P46
        """
        if not hasattr(model, "model_json_schema"):
            raise MCPConfigError(
                f"from_model wants a pydantic model, not {model!r:.60}; of() takes any type."
            )

        reader = _Reader(model.__name__, model.model_json_schema(), _of_json(model.model_validate_json))
        return reader.spec(check, fallback, told=told)

    @overload
    @classmethod
    def of(
        cls,
        type_: type[V],
        *,
        check: Callable[[V], V] | None = None,
        fallback: V | None = None,
        told: bool = False,
    ) -> AnswerSpec[V]: ...
    @overload
    @classmethod
    def of(
        cls,
        type_: Any,
        *,
        check: Callable[[Any], Any] | None = None,
        fallback: Any = None,
        told: bool = False,
    ) -> AnswerSpec[Any]: ...
    @classmethod
    def of(
        cls,
        type_: Any,
        *,
        check: Callable[[Any], Any] | None = None,
        fallback: Any = None,
        told: bool = False,
    ) -> AnswerSpec[Any]:
        """Expect a value of any type that JSON can express, as `TurnRequest(answer=...)` does.

        A type whose JSON Schema is not that of an object (`int`, `list[int]`, an enum, a union) is requested
        as an object with the only member `value`, because endpoints require an object. A reply with the bare
        value is accepted, too.

        Args:
            type_: A pydantic model, msgspec Struct, dataclass or TypedDict, or a type such as `list[int]`.
            check: Gets the parsed answer; returns it, changed or not, or raises `ValueError`.
            fallback: As in `AnswerSpec`.
            told: As in `AnswerSpec`.

        Raises:
            MCPConfigError: `type_` is no type whose values JSON can express, or another argument is unusable.
        """
        return _reader(type_).spec(check, fallback, told=told)


def _refuse_unless_plain(argument: str, function: object, form: str) -> None:
    if not callable(function) or iscoroutinefunction(function):
        found = "an `async def`" if callable(function) else type(function).__name__
        raise MCPConfigError(f"AnswerSpec: {argument}= wants {form}, not {found}.")


def spec_of(answer: AnswerSpec[T] | type[T] | None) -> AnswerSpec[T]:
    """Return the `AnswerSpec` for the `answer` of a request."""
    if isinstance(answer, AnswerSpec):
        return answer
    spec: AnswerSpec[T] = AnswerSpec.text() if answer in (None, str) else AnswerSpec.of(answer)  # type: ignore[assignment]  # T is str then
    return spec


def recorded_spec(form: m.AnswerSchema, *, fallback: object, told: bool) -> AnswerSpec[Any]:
    """Return an `AnswerSpec` for a recorded schema: it checks an answer, and returns it as a JSON value."""
    properties = form.schema.get("properties")
    value = properties.get("value") if isinstance(properties, dict) else None
    bare = value | {"$defs": form.schema.get("$defs", {})} if isinstance(value, dict) else {}
    was_wrapped = _is_bare(bare) and _wrapped(bare) == {"$defs": {}, **form.schema}
    schema = bare if was_wrapped else form.schema

    def convert(found: object) -> object:
        from grue.protocol.tools.json_schema import fault_of  # imports a validator that few programs need

        fault = fault_of(schema, found)
        if fault is not None:
            raise ValueError(fault)
        return found

    reader = _Reader(form.name, schema, convert)
    return AnswerSpec(reader.read, schema=form.schema, name=form.name, fallback=fallback, told=told)


def unusable_answer(answer: object) -> str:
    """Return advice if `answer` is clearly neither a type nor an `AnswerSpec`; otherwise an empty text."""
    if isinstance(answer, Mapping):
        return "answer= wants a type; for a JSON schema, answer=AnswerSpec(json.loads, schema={...})"
    if isinstance(answer, str | bytes | int | float | list | tuple | set | FunctionType | Struct):
        meant = answer if isinstance(answer, str) and answer.isidentifier() else "int"
        return f"answer= wants a type, answer={meant}, not {shown(answer)}"
    # These modules define the classes of type expressions, such as `None`, `list[int]` and `int | None`.
    of_types = type(answer).__module__ in ("builtins", "types", "typing", "typing_extensions")
    if not isinstance(answer, type | AnswerSpec) and not of_types:
        return f"answer= wants a type, answer={type(answer).__name__}, not an instance of it"
    return ""


class _Reader:
    """Reads a value of one type from a model's text."""

    def __init__(self, name: str, schema: m.JsonObject, convert: Callable[[object], Any]) -> None:
        self.name = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:64] or "answer"
        self._convert = convert
        schema = _inlined(schema)
        self._bare = _is_bare(schema)
        self._members = frozenset(_members(schema, schema.get("$defs")))
        self.schema = _wrapped(schema) if self._bare else schema

    def read(self, text: str) -> Any:
        """Return the first usable one of the `_candidates`, converted; else raise `ValueError`."""
        first_error: ValueError | None = None
        for candidate in self._candidates(text):
            try:
                made = self._convert(candidate)
                if self._has_only_defaults(candidate, made):
                    raise ValueError(f"it has none of these members: {', '.join(sorted(self._members))}")
            except ValueError as error:
                first_error = first_error or error
            else:
                return made
        raise first_error or ValueError("it contains no JSON object")

    def _has_only_defaults(self, found: object, made: object) -> bool:
        # A host's validator may read members that the schema lacks. Then `made` differs from the value that
        # an empty object gives, and is accepted. But if two empty objects give different values, for example
        # because a default is a new id each time, `made` always differs, and is refused.
        if not (isinstance(found, dict) and self._is_foreign(found)):
            return False
        try:
            empty = self._convert({})
            return bool(made == empty or empty != self._convert({}))
        except Exception:  # noqa: BLE001 - {} is no value of the type, or an `__eq__` of the host raises
            return False

    def _is_foreign(self, found: dict[str, object]) -> bool:
        return bool(found and self._members) and self._members.isdisjoint(found)

    def spec(self, check: Callable[[Any], Any] | None, fallback: Any, *, told: bool) -> AnswerSpec[Any]:
        if check is not None:
            _refuse_unless_plain("check", check, "a function that gets the answer and returns it")
        parse = self.read if check is None else lambda text: check(self.read(text))
        return AnswerSpec(parse, schema=self.schema, name=self.name, fallback=fallback, told=told)

    def _candidates(self, text: str) -> Iterator[object]:
        for found in json_objects(text):
            if not self._bare:
                yield found
                if self._is_foreign(found):
                    continue
                # A strict schema makes every property required, so a model writes `null` to omit a property.
                some = {key: value for key, value in found.items() if value is not None}
                yield some
                yield _without_nulls(some)
            elif "value" in found:
                yield found["value"]
        if self._bare:
            for bare in map(str.strip, (text, *reversed([*fenced_blocks(text)]))):
                with suppress(ValueError):
                    yield strict_value(bare)
                yield bare


def _without_nulls(value: object) -> object:
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


def _is_bare(schema: m.JsonObject) -> bool:
    return schema.get("type") != "object" and "$ref" not in schema


def _wrapped(schema: m.JsonObject) -> m.JsonObject:
    value = {key: part for key, part in schema.items() if key != "$defs"}
    whole: m.JsonObject = {"type": "object", "properties": {"value": value}, "required": ["value"]}
    whole["additionalProperties"] = False
    return whole | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _members(schema: object, definitions: object, depth: int = 5) -> Iterator[str]:
    """Yield the names of the properties of a schema, and of its alternatives (`anyOf`, `oneOf`)."""
    if not isinstance(schema, dict) or not depth:
        return
    schema = _inlined({**schema, "$defs": definitions})
    properties = schema.get("properties")
    if isinstance(properties, dict):
        yield from properties
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        for choice in choices if isinstance(choices, list) else ():
            yield from _members(choice, definitions, depth - 1)


def _reader(type_: Any) -> _Reader:
    try:
        hash(type_)
    except TypeError:  # the metadata of an `Annotated` can be unhashable, for example a list
        return _new_reader(type_)
    return _known_reader(type_)


def _new_reader(type_: Any) -> _Reader:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    name = getattr(type_, "__name__", "") if isinstance(type_, type) else ""
    # Leave these to msgspec: Structs; types with `msgspec.Meta`, whose constraints pydantic would ignore; and
    # functions. msgspec refuses a function, but pydantic would call it with the answer.
    has_meta, why = _has_meta(type_, []), ""
    is_struct = isinstance(type_, type) and issubclass(type_, Struct)
    if not (has_meta or is_struct or isinstance(type_, FunctionType)):
        try:
            adapter = TypeAdapter(type_)
            return _Reader(name, adapter.json_schema(), _of_json(adapter.validate_json))
        except PydanticUserError as error:  # msgspec may accept the type, for example a list of Structs
            why = f" (pydantic: {error.message.partition('. ')[0].rstrip('.')})"
        except SchemaError as error:  # for example a regular expression with a look-ahead
            why = " ".join(str(error).split())
            raise MCPConfigError(f"The answer's type {type_!r} cannot be used: {why}.") from error
    try:
        schema = msgspec.json.schema(type_, ref_template="#/$defs/{name}")
    except NameError as error:
        raise MCPConfigError(
            f"The answer's type {type_!r} has an annotation that cannot be read: {error}. {WHERE_TO_DEFINE}"
        ) from error
    except (TypeError, RuntimeError) as error:
        if has_meta:
            raise MCPConfigError(
                f"The answer's type {type_!r} has a constraint of msgspec.Meta and a part that msgspec cannot"
                " read. Write the constraint with pydantic's Field instead."
            ) from error
        raise MCPConfigError(
            f"The answer's type {type_!r} cannot be expressed in JSON{why}. Use a pydantic model, a msgspec"
            " Struct, a dataclass, a TypedDict, or a type such as list[int]; or an AnswerSpec with a `parse`"
            " of your own."
        ) from error
    convert = partial(msgspec.convert, type=type_, strict=not has_meta, str_keys=True)
    return _Reader(name, schema, convert)


def _of_json(validate: Callable[[str], Any]) -> Callable[[object], Any]:
    # A strict pydantic model refuses a Python string for a date or an enum, but accepts a string in JSON.
    return lambda found: validate(json.dumps(found))


def _has_meta(type_: Any, seen: list[object]) -> bool:
    """Return whether `msgspec.Meta` annotates a type, a part of it, or a dataclass's or TypedDict's field."""
    if isinstance(type_, msgspec.Meta):
        return True
    if any(type_ is each for each in seen):
        return False
    seen.append(type_)
    parts = [*get_args(type_)]
    if isinstance(type_, type) and (is_dataclass(type_) or is_typeddict(type_)):
        with suppress(NameError, TypeError):  # an annotation may contain a name that is not defined here
            parts += get_type_hints(type_, include_extras=True).values()
    return any(_has_meta(part, seen) for part in parts)


_known_reader = lru_cache(256)(_new_reader)


def _inlined(schema: m.JsonObject) -> m.JsonObject:
    """Resolve a `$ref` at the root of a schema, if possible, because some endpoints refuse a `$ref` there."""
    reference, definitions = schema.get("$ref"), schema.get("$defs")
    if not isinstance(reference, str) or not isinstance(definitions, dict):
        return schema
    root = definitions.get(reference.removeprefix("#/$defs/"))
    if not isinstance(root, dict):
        return schema
    referred = b"#/$defs/" in msgspec.json.encode(root)
    return {**root, "$defs": definitions} if referred else dict(root)


class AnswerCheck(Generic[T]):
    """Runs the host's check for one turn and stores the accepted answer."""

    def __init__(self, spec: AnswerSpec[T]) -> None:
        self._spec = spec
        self.accepted: T | None = None

    def __call__(self, text: str) -> m.AnswerAccepted | m.AnswerRefused:
        """Run the host's check on a final text."""
        try:
            # Some parsers refuse the escape of a lone surrogate, although JSON allows it.
            valid = text if self._spec.schema is None else well_formed_escapes(text)
            self.accepted = self._spec.parse(valid)
        except UNREADABLE as error:
            return m.AnswerRefused(reason=_reason(error))
        except BaseException as error:
            blame(error, "the check of the answer")
            raise
        try:
            return m.AnswerAccepted(answer=as_json(self.accepted))
        except Exception as error:  # noqa: BLE001 - such as one of its `__repr__`; the answer itself is good
            return m.AnswerAccepted(answer=f"[no JSON: {in_words(error)}]")


def as_json(answer: object) -> object:
    """Return an answer as a JSON value, for messages and traces."""
    if is_repetitive(answer):
        return "[holds itself, or the same parts too often]"
    if isinstance(answer, str | dict) or answer is None:
        return json_value(answer)
    try:
        return json_value(msgspec.to_builtins(answer, str_keys=True, enc_hook=plain_value))
    except (TypeError, ValueError, RecursionError):
        return json_value(answer)


def _as_recorded(schema: m.JsonObject) -> m.JsonObject:
    """Return a schema as a trace has it, without tuples and NaN: a resumption or fork compares them."""
    try:
        return msgspec.json.decode(msgspec.json.encode(dict(schema)))  # type: ignore[no-any-return]
    except (TypeError, ValueError, OverflowError, RecursionError):
        return schema  # the turn's error says what is wrong


def recorded_fallback(spec: AnswerSpec[Any]) -> object:
    """Return the fallback as a JSON value; `None` only if the spec has none: a NaN becomes a text."""
    recorded = as_json(spec.fallback)
    return str(spec.fallback) if recorded is None and spec.fallback is not None else recorded


def _reason(error: Exception) -> str:
    said = f"it cannot be read ({type(error).__name__})"
    if isinstance(error, ValueError):
        with suppress(Exception):  # its `__str__` may be the host's own
            said = str(error)
    errors: Any = getattr(error, "errors", list)
    try:
        faults = [
            ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault_text(fault["msg"]))))
            for fault in errors()
        ]
    except Exception:  # noqa: BLE001 - `errors` may be the host's own, and anything
        faults = []
    return well_formed("; ".join(faults) or said)
