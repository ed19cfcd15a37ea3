"""Parse strict JSON: no comments, no duplicate keys, no NaN. Errors name line and column.

Source: R2.3, P5
"""

import json
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from grue.errors import MCPConfigError

T = TypeVar("T")


def parse_json(text: str, source: Path) -> object:
    """Return the parsed document.

    Args:
        text: The document.
        source: The file that contains it, for errors.

    Raises:
        MCPConfigError: `text` is not strict JSON. The error for a syntax error names line and column. It
            never shows the text, which may contain a secret.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_such_number)
    except json.JSONDecodeError as exc:
        raise MCPConfigError(
            f"{source} is not valid JSON: line {exc.lineno}, column {exc.colno}: {exc.msg.rstrip(': ')}."
            f"{_advice(text, exc.pos)}",
            path=str(source),
            line=exc.lineno,
            column=exc.colno,
        ) from exc
    except RecursionError as exc:
        raise MCPConfigError(
            f"{source} is not usable JSON: it is nested too deeply.", path=str(source)
        ) from exc
    except ValueError as exc:
        raise MCPConfigError(f"{source} is not usable JSON: {exc}.", path=str(source)) from exc


def converted(document: object, kind: type[T], source: Path, what: str, remedy: str) -> T:
    """Return the document of a file that grue writes itself as a value of `kind`.

    Args:
        document: The parsed document.
        kind: The type of the whole file.
        source: The file, for errors.
        what: What the file should be, as in "a tool lock".
        remedy: How to write it again, after "remove it and".

    Raises:
        MCPConfigError: The document has another form.
    """
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        # A key with half a surrogate pair raises UnicodeError.
        raise MCPConfigError(
            f"{source} is not {what}: {error}. Restore it, or remove it and {remedy}", path=str(source)
        ) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice in one object")
        found[key] = value
    return found


def _no_such_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _advice(text: str, position: int) -> str:
    rest = text[position:]
    if not text.strip():
        return " The file is empty."
    if rest.startswith(("//", "/*", "#")):
        return " Comments are not part of JSON: remove them."
    if rest[:1] in ("}", "]", ",") and text[:position].rstrip().endswith(","):
        return " There is a superfluous comma before it."
    if _TRAILING_COMMA.match(rest):  # Python 3.13 and later point at the comma itself
        return " There is a superfluous comma."
    return ""


_TRAILING_COMMA = re.compile(r",\s*[}\]]")
