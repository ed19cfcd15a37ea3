"""Check the fields of what a user sets: limits, policies, servers, models.

A Struct of settings calls `check_settings` in `__post_init__`, so that a wrong value is refused where it is
written, and not in the middle of a turn.
"""

import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct

from grue.errors import MCPConfigError


def check_settings(
    settings: Struct,
    *,
    only: Collection[str] = (),
    above_0: Collection[str] = (),
    any_number: Collection[str] = (),
) -> None:
    """Check the fields of a user's settings: their types, and that numbers are finite and not negative.

    A list becomes a tuple where a tuple is declared. Values that are the defaults are not looked at, since
    turns copy settings often.

    Args:
        settings: A Struct that calls this in `__post_init__`.
        only: The fields to check; empty: all.
        above_0: Numbers that may not be 0 either.
        any_number: Numbers that may be negative.

    Raises:
        MCPConfigError: A value cannot be used. Names the class and the field, and shows numbers only: any
            other value may be a secret.
    """
    kind = type(settings)
    for name, default in _defaults(kind):
        value = getattr(settings, name)
        if value is default or (only and name not in only):
            continue
        fault = _fault(settings, name, value, above_0, any_number)
        if fault:
            raise MCPConfigError.of_value(kind.__name__, (name,), f"{name}{fault}.")


@cache
def _defaults(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    return tuple(zip(names, (msgspec.NODEFAULT,) * (len(names) - len(defaults)) + defaults, strict=True))


@cache
def _types(kind: type[Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _fault(
    settings: Struct, name: str, value: object, above_0: Collection[str], any_number: Collection[str]
) -> str:
    declared = _types(type(settings))[name]
    try:
        # A subclass of float, as numpy has one, is a float like any other.
        read = msgspec.convert(float(value) if isinstance(value, float) else value, declared)
    except (msgspec.ValidationError, TypeError) as error:
        fault, _, place = str(error).partition(" - at `")
        words = _words_in(declared)
        if words and isinstance(value, str):
            return f" is one of {', '.join(words)}, not {value!r:.60}"
        wanted = _struct_in(declared)
        if wanted and not place:
            return f"= wants {wanted}, not {type(value).__name__}"
        return f"{place.partition('$')[2].rstrip('`')}: {fault}"
    if isinstance(read, Struct) and read is not value:
        return f"= wants {type(read).__name__}(...), not {type(value).__name__}"
    if isinstance(read, tuple) and read is not value:
        msgspec.structs.force_setattr(settings, name, read)
    numbers = value.values() if isinstance(value, Mapping) else (value,)
    for number in numbers if name not in any_number else ():
        if isinstance(number, int | float) and not _usable(number, above_0=name in above_0):
            limit = " above 0" if name in above_0 else ", 0 or more"
            or_none = ", or None" if type(None) in get_args(declared) else ""
            return f" is {number!r}; it must be a finite number{limit}{or_none}"
    return ""


def _usable(number: float, *, above_0: bool) -> bool:
    return math.isfinite(number) and (number > 0 if above_0 else number >= 0)


def _struct_in(declared: Any) -> str:
    kinds = [each for each in (declared, *get_args(declared)) if isinstance(each, type)]
    return next((f"{each.__name__}(...)" for each in kinds if issubclass(each, Struct)), "")


def _words_in(declared: Any) -> list[str]:
    kinds = (declared, *get_args(declared))
    return [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
