"""A function's parameters: their JSON Schema, and the conversion of a call's arguments.

msgspec reads most types: numbers, texts, lists, enums, dates, Structs, dataclasses, TypedDicts, their unions.
pydantic reads a parameter that mentions it (a model, `Annotated[..., Field(...)]`), and one that msgspec
cannot read, such as a union of two dataclasses. It is imported only then, because the import takes a tenth of
a second.
"""

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from types import ModuleType, NoneType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from grue import messages as m
from grue.errors import MCPConfigError
from grue.tool_sessions.invalid_arguments import InvalidArgumentsError
from grue.tool_sessions.tool_context import ToolContext

if TYPE_CHECKING:
    from grue.tool_sessions.pydantic_parameters import PydanticParameter

_PYDANTIC = frozenset(("pydantic", "pydantic_core", "pydantic_settings", "annotated_types"))
_DEEPEST = 20
_REF = "#/$defs/{name}"


class _Omitted:
    """Stands for an argument that pydantic reads and that was not given."""


_OMITTED = _Omitted()


class Parameters:
    """The parameters of one function.

    Attributes:
        schema: The JSON Schema of the arguments.
        context: Name of the parameter that receives the `ToolContext`; `None`: there is none.

    Raises:
        MCPConfigError: A parameter cannot be given by name, or JSON cannot express its type.
    """

    def __init__(self, tool: str, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        self.context: str | None = None
        self._tool = tool
        self._by_pydantic: dict[str, PydanticParameter] = {}
        fields: list[tuple[str, Any, Any]] = []
        texts: dict[str, str] = {}
        for parameter in _signature(tool, function).parameters.values():
            if _is_context(parameter.annotation):
                self._take_context(parameter)
                continue
            fields.append(self._field(parameter))
            text = _own_text(parameter.annotation) or descriptions.get(parameter.name, "")
            if text:
                texts[parameter.name] = text
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self.schema = self._schema(texts)

    def convert(self, arguments: m.JsonObject) -> dict[str, Any]:
        """Return the arguments as the function's annotations want them.

        Raises:
            InvalidArgumentsError: They do not match.
        """
        try:
            given = msgspec.structs.asdict(msgspec.convert(arguments, self._struct))
        except msgspec.ValidationError as error:
            raise InvalidArgumentsError(str(error)) from error
        for name, parameter in self._by_pydantic.items():
            given[name] = parameter.default() if given[name] is _OMITTED else parameter.convert(given[name])
        return given

    def _take_context(self, parameter: inspect.Parameter) -> None:
        if self.context is not None:
            raise MCPConfigError(
                f"The function behind the tool '{self._tool}' has two ToolContext parameters."
            )
        self._require_name(parameter)
        self.context = parameter.name

    def _require_name(self, parameter: inspect.Parameter) -> None:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise MCPConfigError(
                f"The function behind the tool '{self._tool}' has the parameter '{parameter}', which cannot "
                "be given by name. Use plain or keyword-only parameters."
            )

    def _field(self, parameter: inspect.Parameter) -> tuple[str, Any, Any]:
        self._require_name(parameter)
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        required = parameter.default is parameter.empty
        fault = None if _is_field_info(parameter.default) or mentions_pydantic(kind) else _fault(kind)
        if fault is None and not _is_field_info(parameter.default) and not mentions_pydantic(kind):
            return parameter.name, kind, msgspec.NODEFAULT if required else _default(parameter.default)
        reader = self._pydantic(parameter, kind, fault)
        self._by_pydantic[parameter.name] = reader
        omitted = msgspec.field(default_factory=lambda: _OMITTED)
        return parameter.name, Any, msgspec.NODEFAULT if reader.required else omitted

    def _pydantic(
        self, parameter: inspect.Parameter, kind: Any, fault: TypeError | None
    ) -> "PydanticParameter":
        pydantic_parameters = _pydantic_parameters()
        try:
            found: PydanticParameter = pydantic_parameters.PydanticParameter(
                parameter.name, kind, parameter.default
            )
        except TypeError as error:
            raise MCPConfigError(
                f"The tool '{self._tool}' has a parameter that cannot be offered to a model:"
                f" {fault or error}. Annotate it with a type that JSON can express."
            ) from error
        return found

    def _schema(self, texts: Mapping[str, str]) -> m.JsonObject:
        (schema,), components = msgspec.json.schema_components([self._struct], ref_template=_REF)
        key = schema["$ref"].rsplit("/", 1)[-1]
        own: m.JsonObject = {word: value for word, value in components.pop(key).items() if word != "title"}
        properties: dict[str, Any] = own["properties"]  # type: ignore[assignment]  # always an object
        for name, parameter in self._by_pydantic.items():
            properties[name], components = parameter.add_schema(components)
        for name, text in texts.items():
            parameter_read = self._by_pydantic.get(name)
            if parameter_read is not None and not parameter_read.described:
                # pydantic has put the docstring of the model's class here, which says what the model is. What
                # the parameter is for matters more.
                properties[name]["description"] = text
            properties[name].setdefault("description", text)
        if components:
            own["$defs"] = components
        return own


def mentions_pydantic(kind: Any, depth: int = 0) -> bool:
    """Return whether a type is made of anything that pydantic or `annotated_types` defines."""
    if depth > _DEEPEST:
        return False
    if isinstance(kind, type) and any(_is_pydantic(base) for base in kind.__mro__):
        return True
    if hasattr(kind, "__pydantic_core_schema__") or hasattr(kind, "__get_pydantic_core_schema__"):
        return True
    parts = [*getattr(kind, "__metadata__", ()), *typing.get_args(kind)]
    if any(_is_pydantic(type(part)) for part in parts):
        return True
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "_field_defaults"):
        parts += _hints(kind)
    return any(mentions_pydantic(part, depth + 1) for part in parts if part is not kind)


def _is_pydantic(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PYDANTIC


def _is_field_info(default: object) -> bool:
    return _is_pydantic(type(default)) and type(default).__name__ == "FieldInfo"


def _hints(kind: Any) -> list[Any]:
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (NameError, TypeError, SyntaxError):
        return []


def _pydantic_parameters() -> ModuleType:
    from grue.tool_sessions import pydantic_parameters

    return pydantic_parameters


def _signature(tool: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, TypeError, ValueError) as error:
        raise MCPConfigError(f"The signature of the tool '{tool}' cannot be read: {error}.") from error


def _is_context(annotation: Any) -> bool:
    members = [part for part in typing.get_args(annotation) if part is not NoneType] or [annotation]
    return all(isinstance(part, type) and issubclass(part, ToolContext) for part in members)


def _own_text(annotation: Any) -> str:
    """Return the text in `Annotated[T, "text"]`; empty if there is none."""
    if typing.get_origin(annotation) is not Annotated:
        return ""
    return next((part for part in annotation.__metadata__ if isinstance(part, str)), "")


def _fault(kind: Any) -> TypeError | None:
    """Return why msgspec cannot read a type, or `None` if it can."""
    try:
        msgspec.json.Decoder(kind)
        msgspec.json.schema_components([kind])
    except TypeError as error:
        return error
    return None


def _default(value: object) -> object:
    # Python evaluates a default once. Copy a mutable one for each call: a function may modify it, and the
    # next turn must not see that.
    if isinstance(value, list | dict | set | bytearray):
        return msgspec.field(default_factory=functools.partial(copy.deepcopy, value))
    try:
        msgspec.to_builtins(value)
    except TypeError:  # JSON cannot express it: use it, but do not show it in the schema
        return msgspec.field(default_factory=lambda: value)
    return value
