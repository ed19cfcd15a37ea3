"""Parse the arguments of a tool call. A model wrote them, so they may be any text of any size.

`read_arguments` does not raise; it returns an error text for the model. Arguments that are too large, or that
contain too many values, are rejected before they are parsed, because parsing cannot be interrupted and blocks
the event loop.
"""

import json
import math

import msgspec

from grue import messages as m
from grue.protocol.json_text import MAX_CHARS, MAX_DEPTH, MAX_VALUES, is_crowded, is_deep, json_object
from grue.runtime.large_data import count_of
from grue.runtime.safe_text import plain_text

CUT_MARK = " [cut at the length limit]"
"""Marks the end of arguments that may be incomplete, because the reply was cut."""

_MAX_ODD_VALUES = 10_000
"""The limit for arguments that are not strict JSON, which take longer to parse."""

_WORDS = 300
_DEEP = f"the arguments are nested more than {MAX_DEPTH} deep: make a flatter call"
_DIGITS = 40


def read_arguments(text: str, room: int = MAX_CHARS) -> m.JsonObject | str:
    """Return the arguments, or an error text for the model.

    Args:
        text: The arguments as the model wrote them.
        room: Most characters to read; longer arguments are an error.
    """
    if text.endswith(CUT_MARK):
        return "the reply was cut at its length limit before its arguments were whole: make the call again"
    if not text.strip():
        return {}
    if len(text) > room:
        return f"the arguments are longer than {MAX_CHARS} characters: make a smaller call"
    if is_crowded(text):
        return f"the arguments hold more than {MAX_VALUES} values: make a smaller call"
    try:
        value = _strict(text)
    except RecursionError:
        # Not the error's own text: it depends on the stack, which differs in a replay.
        return _DEEP
    except ValueError as error:
        if str(error).startswith("Extra data") and text.lstrip().startswith("{"):
            return "the arguments are more than one JSON object: make one call for each"
        return f"the arguments are not valid JSON: {plain_text(str(error))[:_WORDS]}"
    if not isinstance(value, dict):
        return f"the arguments must be a JSON object, not {type(value).__name__}"
    # A value cannot be nested deeper than its number of brackets, so most need no walk.
    deep = count_of(text, "{[") > MAX_DEPTH and is_deep(value)
    return _DEEP if deep else value


def _strict(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _lenient(text)


def _lenient(text: str) -> object:
    if is_crowded(text, _MAX_ODD_VALUES):
        raise ValueError("it cannot be read, and is too long to say why")
    value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    if isinstance(value, dict) and not is_deep(value):
        return json_object(value)
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:_DIGITS]} is out of range")
    return number
