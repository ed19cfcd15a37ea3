"""Encode and decode JSON, and what is not quite JSON: NaN, lone surrogates, bytes, Python objects."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import UserString, deque
from collections.abc import Collection, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import islice
from numbers import Integral, Real
from typing import Any

import msgspec

from grue import messages as m
from grue.runtime.large_data import count_of
from grue.runtime.safe_text import well_formed

MAX_DEPTH = 100  # deepest nesting of a JSON value: a very deep one would exhaust the stack
MAX_CHARS = 8 * 2**20  # of a text for `strict_value`, or of the arguments of all calls of a reply together
MAX_VALUES = 100_000  # lists, objects, strings and commas in a call's arguments, or for `strict_value`
_ENCODER = msgspec.json.Encoder()
_STRUCTURE = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]'
_SPACE = re.compile(r"\s+")
_IN_TEXT = re.compile(_STRUCTURE, re.DOTALL)
_IN_BYTES = re.compile(_STRUCTURE.encode(), re.DOTALL)
_LONG_BYTES = 256 * 2**10
# In a text of more than `_LONG_BYTES`, because decoding is one call into C and stops all threads.
_MOST_VALUES = 500_000


def to_json(value: object) -> bytes:
    """Encode a value; what JSON cannot express is replaced. May raise for huge integers or deep nesting."""
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, TypeError):
        return msgspec.json.encode(json_value(value))


def from_json(body: bytes) -> object:
    """Decode JSON, also with NaN, lone surrogates or a BOM; `ValueError`: no JSON, too deep or too large."""
    if len(body) > _LONG_BYTES and is_crowded(body, _MOST_VALUES):
        raise ValueError(f"it holds more than {_MOST_VALUES} values")
    try:
        value = _decode(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    # Count the brackets first, which is fast: a text with few of them cannot be nested too deeply.
    if count_of(body, "{[") > MAX_DEPTH and is_deep(value):
        raise ValueError("nested too deeply")
    return value


def _decode(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Bytes that are not UTF-8 are an error: replacing characters would change the arguments of a call.
        return _readable(json.loads(body.decode("utf-8-sig")))


def _readable(value: object, depth: int = MAX_DEPTH, *, called: bool = False) -> object:
    """Replace what is not JSON in a value from `json.loads`, as `json_value` does: NaN becomes `None`.

    In a tool call's arguments, that would change what the call does. So arguments with NaN or an infinity
    become a string, and the call is refused later. In every wire format, arguments stand beside a key `name`
    in the same object. `called`: `value` is a part of arguments that have neither NaN nor infinity.
    """
    match value:
        case dict() | list() if depth < 1:
            raise ValueError("nested too deeply")
        case dict():
            named = "name" in value and not called
            return {
                well_formed(key): _arguments(item, depth - 1)
                if named and isinstance(item, dict | float)
                else _readable(item, depth - 1, called=called)
                for key, item in value.items()
            }
        case list():
            return [_readable(item, depth - 1, called=called) for item in value]
        case _:
            return json_value(value)


def _arguments(value: object, depth: int) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(value)
    return _readable(value, depth, called=True)


def strict_text(value: object) -> str:
    """Return a value as JSON text; `TypeError`, `ValueError` or `RecursionError` if that is impossible."""
    json.dumps(value, allow_nan=False, default=str, skipkeys=True)
    return msgspec.json.encode(value).decode()


def strict_value(text: str) -> object:
    """Return the value of `text`; `ValueError` if it is too large, nested too deeply, or not strict JSON."""
    if len(text) > MAX_CHARS or is_crowded(text):
        raise ValueError("too large")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if is_deep(value):
        raise ValueError("nested too deeply")
    return value


def strict_object(text: str) -> m.JsonObject | None:
    """Return the JSON object in `text`; `None` if `strict_value` refuses the text or returns no object."""
    try:
        value = strict_value(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def json_value(value: object, *, depth: int = MAX_DEPTH) -> object:
    """Return `value` as a JSON value: for example, NaN becomes `None`, and bytes become base64."""
    match value:
        case None | bool():
            return value
        case int():
            return int(value) if value.bit_length() <= _MAX_INT_BITS else hex(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case str():
            return well_formed(str(value))
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode("ascii")
        case Mapping() | Sequence() | set() | frozenset() if depth < 1:
            return _TOO_DEEP
        case Mapping():
            return json_object(value, depth=depth)
        case Sequence() | set() | frozenset():
            return [json_value(item, depth=depth - 1) for item in value]
        case _:
            return well_formed(str(value))


def plain_value(value: Any) -> object:
    """Return what to encode in place of a value that is not JSON: for example, a pydantic model's fields."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    match value:
        case str() | bytes() | UserString():  # subclasses, such as markupsafe's `Markup`, are sequences, too
            return str(value)
        case Integral():  # of a type of its own, such as numpy's `int64`
            return int(value)
        case Real():
            return float(value)
        case Mapping():
            return dict(value)
        case Sequence() | AbstractSet() | ValuesView():  # such as a `deque`
            return list(value)
        case _:
            return str(value)


def json_object(value: Mapping[Any, object], *, depth: int = MAX_DEPTH) -> m.JsonObject:
    """Return a mapping as a JSON object. Values that JSON cannot express are replaced as in `json_value`."""
    return {well_formed(str(key)): json_value(item, depth=depth - 1) for key, item in value.items()}


def is_deep(value: object, most: int = MAX_DEPTH) -> bool:
    """Return whether a JSON value, which may contain tuples, is nested more than `most` levels deep."""
    level = [value]
    for _ in range(most):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return any(isinstance(item, dict | list | tuple) for item in level)


def is_repetitive(value: object) -> bool:
    """`True` if a value holds the same parts so often that its JSON would repeat over a million values.

    It may hold itself in two places, for example. With one such place, its JSON would only be very deep.
    """
    level, times, repeated = {id(value): value}, dict[int, int](), 0
    for _ in range(MAX_DEPTH):
        below = dict[int, object]()
        more = dict[int, int]()  # for parts that are repeated: how often
        for at, item in level.items():
            count = times.get(at, 1)
            for child in _parts(item):
                if child.__class__ in _LEAVES:
                    continue
                if not isinstance(child, _CONTAINERS) and not _fields(child.__class__):
                    continue
                key = id(child)
                if count > 1 or key in below:
                    more[key] = more.get(key, int(key in below)) + count
                below[key] = child
        repeated += sum((count - 1) * (1 + len(_parts(below[key]))) for key, count in more.items())
        if repeated > _MOST_REPEATED or not below:
            break
        level, times = below, more
    return repeated > _MOST_REPEATED


def _children(value: object) -> Collection[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _parts(value: Any) -> Collection[Any]:
    if isinstance(value, set | frozenset | deque):
        return value
    return _children(value) or [getattr(value, name, None) for name in _fields(value.__class__)]


@lru_cache
def _fields(kind: type) -> Collection[str]:
    """Return the fields of a type whose values msgspec or pydantic encodes as objects; else `()`."""
    of_kinds = ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__")
    return next(filter(None, (getattr(kind, name, ()) for name in of_kinds)), ())


_MAX_INT_BITS = 14_000  # more are written in hexadecimal: Python writes no more than 4,300 decimal digits
_TOO_DEEP = "[nested too deeply]"
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_LEAVES = frozenset((str, int, float, bool, type(None)))  # the types of most values
_MOST_REPEATED = 1_000_000


def is_crowded(text: str | bytes, most: int = MAX_VALUES) -> bool:
    """Return whether a JSON text has more than `most` lists, objects, strings and commas together."""
    # Count these characters first, which is fast: a text with few of them has few values.
    if len(text) <= most or count_of(text, '"[{,') <= most:
        return False
    found = _IN_TEXT.finditer(text) if isinstance(text, str) else _IN_BYTES.finditer(text)
    # Count in Python code, not in one call into C, so that other threads can run meanwhile.
    return sum(1 for _ in islice(found, most + 1)) > most


def past_space(text: str, at: int) -> int:
    """Return the position of the next character, from `at` on, that is not white space, or the text's end."""
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def digest(value: object) -> str:
    """Return `sha256:` and the hash of a value's JSON: ASCII, with sorted keys and without white space."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode('ascii')).hexdigest()}"
