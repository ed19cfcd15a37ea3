"""`PydanticParameter`: a parameter of a function tool whose type pydantic reads.

Import this module inside functions only: importing pydantic takes long.
"""

import contextlib
import copy
import inspect
import json
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaError

from grue.runtime.safe_text import fault_text
from grue.tool_sessions.host_tools import InvalidArgumentsError, is_mutable

_MAX_FAULTS = 5
_UNREADABLE = (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError)


class _WithoutFieldTitles(GenerateJsonSchema):
    """Makes schemas without the titles that pydantic derives from field names, because titles cost tokens."""

    def field_title_should_be_set(self, schema: object) -> bool:
        del schema
        return False


class PydanticParameter:
    """One parameter: its schema, its default, and the conversion of arguments for it."""

    # `default` is the default in `inspect.Parameter`, possibly a `Field(...)`. Raises `TypeError` if pydantic
    # cannot read the type, or JSON cannot express it.

    def __init__(self, name: str, annotation: Any, default: Any) -> None:
        self._name = name
        self._default = default
        if isinstance(default, FieldInfo):
            annotation = Annotated[annotation, default]
            self.required = default.is_required()
        else:
            self.required = default is inspect.Parameter.empty
        metadata = getattr(annotation, "__metadata__", ())
        self.described = any(isinstance(part, FieldInfo) and part.description for part in metadata)
        try:
            self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
            self._adapter.json_schema()
        except _UNREADABLE as error:
            raise TypeError(str(error).partition("\n")[0]) from error
        except SchemaError as error:  # for example a regular expression with a look-ahead
            raise TypeError(" ".join(str(error).split())) from error

    def default(self) -> Any:
        """Return the default for one call: a copy if it is unhashable, as a list is, and can be copied."""
        if isinstance(self._default, FieldInfo):
            return self._default.get_default(call_default_factory=True, validated_data={})
        return copy.deepcopy(self._default) if is_mutable(self._default) else self._default

    def convert(self, value: Any) -> Any:
        """Convert an argument to the type of the annotation; raises `InvalidArgumentsError`."""
        try:
            # Give pydantic JSON text: a strict model accepts a string for a date or an enum only in JSON.
            return self._adapter.validate_json(json.dumps(value))
        except pydantic.ValidationError as error:
            default = self._default.default if isinstance(self._default, FieldInfo) else self._default
            if value is None and default is None:  # as in `x: int = None`
                return None
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            shown = [self._fault_text(fault["loc"], fault["msg"]) for fault in faults[:_MAX_FAULTS]]
            more = [f"and {len(faults) - _MAX_FAULTS} more"] if len(faults) > _MAX_FAULTS else []
            raise InvalidArgumentsError("; ".join([*shown, *more])) from error

    def add_schema(self, components: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameter's schema, and `components` extended by definitions that the schema needs."""
        schema, own = self._schema("")
        if any(components.get(name, definition) != definition for name, definition in own.items()):
            schema, own = self._schema(f"{self._name}.")
        return schema, {**components, **own}

    def _schema(self, prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
        schema = self._adapter.json_schema(
            ref_template=f"#/$defs/{prefix}{{model}}", schema_generator=_WithoutFieldTitles
        )
        own = {f"{prefix}{name}": definition for name, definition in schema.pop("$defs", {}).items()}
        if not self.required and not isinstance(self._default, FieldInfo):
            # If JSON cannot express the default, leave it out of the schema. Calls still use it.
            with contextlib.suppress(PydanticSerializationError, ValueError):
                shown = self._adapter.dump_python(self._default, mode="json", warnings=False)
                json.dumps(shown, allow_nan=False)
                schema.setdefault("default", shown)
        return schema, own

    def _fault_text(self, place: tuple[int | str, ...], message: str) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
        return f"{fault_text(message)} - at `$.{self._name}{steps}`"
