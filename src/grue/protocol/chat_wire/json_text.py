"""JSON as endpoints and models write it, which is not always JSON."""

import json
from collections.abc import Iterable

import msgspec

from grue.messages import JsonObject
from grue.protocol.tool_results import json_value

MAX_DEPTH = 100
"""Deepest nesting that is read; whatever is read can thus be walked and written again."""


def to_json(value: object) -> bytes:
    """Encode anything; what JSON cannot say (NaN, lone surrogates) is replaced."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError):
        return msgspec.json.encode(json_value(value))


def from_json(body: bytes) -> object:
    """Decode JSON, and the near-JSON that some endpoints send: NaN, lone surrogates, a byte order mark.

    Raises:
        ValueError: It is not even that, or nested more than `MAX_DEPTH` deep.
    """
    try:
        value = _decode(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return value
    raise ValueError("nested too deeply")


def _decode(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return json_value(json.loads(body.decode("utf-8-sig", "replace")))


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def json_object(text: str) -> JsonObject | None:
    """Return the object that `text` is, by the letter of JSON, or `None`."""
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
