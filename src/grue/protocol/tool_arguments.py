"""Read the arguments of a tool call, which a model wrote: they may be anything, of any size.

Nothing in here raises, and nothing takes long: arguments that are too large or hold too many values are
refused before they are parsed, because parsing cannot be interrupted and the event loop waits for it.
"""

import json
import math
import re
from itertools import islice

import msgspec

from grue.messages import JsonObject
from grue.protocol import tool_results
from grue.protocol.safe_text import plain_text

MAX_CHARS = 8 * 2**20
"""Longest arguments of one reply, of all its calls together."""

MAX_VALUES = 100_000
"""Most lists, objects, texts and separators in the arguments of one call."""

CUT_MARK = " [cut at the length limit]"
"""Ends arguments of which nobody can tell whether they are whole."""

_MAX_ODD_VALUES = 10_000
"""Of arguments that are not strictly JSON, which take longer to read."""

_STRUCTURE = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]'
_IN_TEXT = re.compile(_STRUCTURE, re.DOTALL)
_IN_BYTES = re.compile(_STRUCTURE.encode(), re.DOTALL)
_WORDS = 300
_DEEP = f"the arguments are nested more than {tool_results.MAX_DEPTH} deep: make a flatter call"
_DIGITS = 40


def is_crowded(text: str | bytes, most: int = MAX_VALUES) -> bool:
    """Say whether JSON text holds more than `most` values, in time that is linear and bounded by them."""
    if len(text) <= most or _marks(text) <= most:
        return False
    found = _IN_TEXT.finditer(text) if isinstance(text, str) else _IN_BYTES.finditer(text)
    # Counted by Python itself, and not by its library: other threads get their turns meanwhile.
    return sum(1 for _ in islice(found, most + 1)) > most


def _marks(text: str | bytes) -> int:
    """Return at least as many as there are values: what begins one or parts two, in its texts, too."""
    if isinstance(text, str):
        return sum(map(text.count, '"[{,'))
    return sum(map(text.count, (b'"', b"[", b"{", b",")))


def read_arguments(text: str, room: int = MAX_CHARS) -> JsonObject | str:
    """Return the arguments, or what is wrong with them, for the model to read.

    Args:
        text: What the model wrote.
        room: Most characters that are read.
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
        # Not the error's own words: they depend on how full the stack was, and a replay has another one.
        return _DEEP
    except ValueError as error:
        if str(error).startswith("Extra data") and text.lstrip().startswith("{"):
            return "the arguments are more than one JSON object: make one call for each"
        return f"the arguments are not valid JSON: {plain_text(str(error))[:_WORDS]}"
    if not isinstance(value, dict):
        return f"the arguments must be a JSON object, not {type(value).__name__}"
    # What is not nested deeper than its brackets are many need not be looked through.
    deep = text.count("{") + text.count("[") > tool_results.MAX_DEPTH and tool_results.is_deep(value)
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
    if isinstance(value, dict) and not tool_results.is_deep(value):
        return tool_results.json_object(value)
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:_DIGITS]} is out of range")
    return number
