"""The form of a server's question: its fields, and the values that the user has typed.

A form is a JSON Schema with properties of simple types. All of it is the server's and untrusted.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from grue import messages as m
from grue.runtime.safe_text import printable

_LABEL_CHARS = 200
_MOST_FIELDS = 50
_TRUE, _FALSE = frozenset(["y", "yes", "true", "1"]), frozenset(["n", "no", "false", "0"])


class Field(Struct, frozen=True, kw_only=True):
    """One field of a form.

    Attributes:
        kind: JSON Schema's type.
        options: The values to choose from; empty: any.
        default: What an empty input stands for, as text.
    """

    name: str
    label: str
    kind: str = "string"
    options: tuple[str, ...] = ()
    default: str = ""
    required: bool = False

    @property
    def prompt(self) -> str:
        """The words before the input."""
        choice = f" ({' | '.join(self.options)})" if self.options else ""
        may = "" if self.required else ", may be empty"
        kind = "" if self.kind == "string" else f", {self.kind}"
        return printable(f"{self.label}{choice}{kind}{may}: ", _LABEL_CHARS)


def fields_of(schema: m.JsonObject) -> Iterator[Field]:
    """Yield the fields of a form."""
    properties = schema.get("properties")
    required = schema.get("required")
    for name, described in list(properties.items() if isinstance(properties, dict) else ())[:_MOST_FIELDS]:
        about: Mapping[str, Any] = described if isinstance(described, dict) else {}
        default = about.get("default")
        yield Field(
            name=name,
            label=str(about.get("title") or about.get("description") or name),
            kind=str(about.get("type") or "string"),
            options=tuple(str(each) for each in about.get("enum") or ()),
            default="" if default is None else default if isinstance(default, str) else json.dumps(default),
            required=isinstance(required, list) and name in required,
        )


def value_of(field: Field, text: str) -> Any:
    """Return the value that a text stands for.

    Raises:
        ValueError: The field cannot have this value. The text says what is expected.
    """
    if field.options:
        if text not in field.options:
            raise ValueError(f"choose one of {', '.join(field.options)}")
        return text
    match field.kind:
        case "boolean":
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError("write yes or no")
            return text.lower() in _TRUE
        case "integer":
            return int(text)
        case "number":
            return float(text)
        case "string":
            return text
        case _:
            return json.loads(text)
