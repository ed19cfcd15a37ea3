"""Encode and decode JSON, with tolerance for what endpoints and models write in its place."""

import msgspec

from grue import messages as m
from grue.protocol.tools.arguments import MAX_CHARS, is_crowded
from grue.protocol.tools.results import MAX_DEPTH, is_deep, json_value
from grue.runtime.large_data import count_of, encode
from grue.runtime.safe_text import well_formed

_ENCODER = msgspec.json.Encoder()
_ARGUMENTS = frozenset({"arguments", "input"})
_LONG_BYTES = 256 * 2**10
_MOST_VALUES = 500_000
"""Most values in what is long: decoding cannot be interrupted, and nothing else runs meanwhile."""


def to_json(value: object) -> bytes:
    """Encode any value; what JSON cannot express (NaN, lone surrogates) is replaced."""
    try:
        return encode(_ENCODER, value)
    except (UnicodeEncodeError, TypeError):
        return msgspec.json.encode(json_value(value))


def from_json(body: bytes) -> object:
    """Decode JSON, and the near-JSON that some endpoints send: NaN, lone surrogates, a byte order mark.

    Raises:
        ValueError: It is not even that, or nested more than `MAX_DEPTH` deep, or holds too many values.
    """
    if len(body) > _LONG_BYTES and is_crowded(body, _MOST_VALUES):
        raise ValueError(f"it holds more than {_MOST_VALUES} values")
    try:
        value = _decode(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    # What has few brackets need not be looked through.
    if count_of(body, "{[") > MAX_DEPTH and is_deep(value):
        raise ValueError("nested too deeply")
    return value


def _decode(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Bytes that are not UTF-8 are an error: with replaced characters, a call would have other arguments.
        import json

        return _readable(json.loads(body.decode("utf-8-sig")))


def _readable(value: object, depth: int = MAX_DEPTH, *, exact: bool = False) -> object:
    """Return a value that Python's lenient reader gave as a JSON value.

    `NaN` and infinities become `null`, except in the arguments of a call: with `null` it would be another
    call. There the number is kept, so that the code that reads the arguments refuses it.
    """
    match value:
        case dict() | list() if depth < 1:
            raise ValueError("nested too deeply")
        case dict():
            return {
                well_formed(key): _readable(item, depth - 1, exact=exact or key in _ARGUMENTS)
                for key, item in value.items()
            }
        case list():
            return [_readable(item, depth - 1, exact=exact) for item in value]
        case float() if exact:
            return value
        case _:
            return json_value(value)


def strict_value(text: str) -> object:
    """Return the value of `text`, read as strict JSON.

    Raises:
        ValueError: It is not JSON, is too large, or is nested more than `MAX_DEPTH` deep.
    """
    if len(text) > MAX_CHARS or is_crowded(text):
        raise ValueError("too large")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if is_deep(value):
        raise ValueError("nested too deeply")
    return value


def json_object(text: str) -> m.JsonObject | None:
    """Return the object in `text`, read as strict JSON; `None` if it is not an object, or is too large."""
    try:
        value = strict_value(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
