"""Check the settings that a user makes in Python (limits, policies, servers, models) when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from functools import cache, wraps
from inspect import signature
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, StructMeta

from grue.errors import MCPConfigError

F = TypeVar("F", bound=Callable[..., Any])

_MOST = 2**63
WHERE_TO_DEFINE = "Define that name at the top of the module, outside `if TYPE_CHECKING`."
"""The advice in the error about an annotation with an undefined name."""
_PLAIN = frozenset((str, bool, int, float, NoneType))
_ELSEWHERE = {  # keywords of other frameworks, and grue's names for them
    "prompt": "user",
    "instructions": "system",
    "system_prompt": "system",
    "messages": "history",
    **dict.fromkeys(("output_type", "response_format", "response_model"), "answer"),
    "cmd": "command",
}
_OWNERS: dict[str, Collection[str]] = {}  # the keywords that classes accept, by the class's name


class ByName(StructMeta):
    """Metaclass of Structs. The error about an unknown keyword suggests what may be meant, where it can."""

    if not TYPE_CHECKING:  # type checkers must take a Struct's keywords from its fields, not from `__call__`

        def __call__(self, *args: Any, **keywords: Any) -> Any:
            """Make an instance. A `TypeError` about its arguments says what to write instead, if known."""
            try:
                return super().__call__(*args, **keywords)
            except TypeError as error:
                _refuse_others(self.__name__, keywords, self.__struct_fields__, self)
                named = [
                    each for each in signature(self).parameters.values() if each.kind == each.KEYWORD_ONLY
                ]
                if str(error).startswith("Extra positional") and named:  # msgspec's text names no class
                    form = f"{self.__name__}({named[0].name}=...)"
                    raise TypeError(f"{error}: write them by name, as in {form}.") from None
                raise


def repr_by_fields(settings: Any) -> str:
    """Return the `repr` of an object whose `__rich_repr__` hides secrets. Classes set it as `__repr__`."""
    return f"{type(settings).__name__}({', '.join(f'{k}={v!r}' for k, v in settings.__rich_repr__())})"


class OwnKeywords(ByName):
    """Like `ByName`. If another class is given a keyword of this class, the error can name this class."""

    def __init__(self, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, namespace)
        if not any(isinstance(base, OwnKeywords) for base in bases):
            _OWNERS[name] = self.__struct_fields__


def own_keywords(function: F) -> F:
    """Decorate a method or an `__init__`, to refuse unknown keywords as a class of `OwnKeywords` does."""
    owner, _, kind = function.__qualname__.rpartition(".")
    names = tuple(signature(function).parameters)[1:]
    if kind == "__init__":
        kind, _OWNERS[owner] = owner, names

    @wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        _refuse_others(kind, keywords, names, function)
        return function(*args, **keywords)

    return checked  # type: ignore[return-value]  # it takes and returns what `function` does


def _refuse_others(kind: str, keywords: Collection[str], names: Collection[str], typed: object) -> None:
    for keyword in keywords:
        if keyword not in names:
            hint = _meant(keyword, names, typed)
            raise TypeError(f"{kind}() has no keyword argument {keyword!r}{hint}") from None


def _meant(keyword: str, names: Collection[str], typed: object) -> str:
    """Return the end of the error about an unknown keyword: a similar name or a class that has it, if any."""
    own = [name for name in names if name.endswith(f"_{keyword}") or name == _ELSEWHERE.get(keyword)]
    if own:
        return f". Did you mean {own[0]!r}?"
    owners = [owner for owner, known in _OWNERS.items() if keyword in known]
    if not owners:
        from difflib import get_close_matches  # imported here, because only a mistake needs it

        near = get_close_matches(keyword, names, n=1)
        return f". Did you mean {near[0]!r}?" if near else "."
    takes = {
        member.__name__: f"{name}="
        for name, declared in get_type_hints(typed).items()
        for member in _members(declared)
        if _is_struct(member)
    }
    places = [f"{takes.get(owner, '')}{owner}({keyword}=...)" for owner in owners]
    return f": it belongs to {' or '.join(places)}."


def check_settings(
    settings: Struct,
    *,
    only: Collection[str] = (),
    above_0: Collection[str] = (),
    any_number: Collection[str] = (),
    show_words: bool = True,
) -> None:
    """Check the types of a user's settings, and that their numbers are at least 0 and below 2**63.

    A list becomes a tuple where a tuple is declared, and a path becomes a text; a value of a subclass of
    `float` or `str`, such as numpy's float64, becomes Python's own. Only the fields in `only` are checked
    (empty: all). Numbers of fields in `above_0` may not be 0, and numbers of fields in `any_number` may have
    any value. A wrong value raises `MCPConfigError`, whose text quotes a wrong word only if `show_words`.
    """
    kind = type(settings)
    for name, default in _defaults(kind):
        value = getattr(settings, name)
        if value is default or (only and name not in only):
            continue
        above = None if name in any_number else name in above_0
        fault = _fault(settings, name, value, above, show_words=show_words)
        if fault:
            raise MCPConfigError.of_value(kind.__name__, (name,), f"{name}{fault}.")


@cache
def _defaults(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    return tuple(zip(names, (msgspec.NODEFAULT,) * (len(names) - len(defaults)) + defaults, strict=True))


@cache
def _types(kind: type[Struct]) -> dict[str, tuple[Any, frozenset[type]]]:
    """Return each field's declared type, and the classes whose instances need no conversion."""
    return {field.name: (field.type, _plain(field.type)) for field in msgspec.structs.fields(kind)}


def _members(declared: Any) -> tuple[Any, ...]:
    return get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)


def _plain(declared: Any) -> frozenset[type]:
    kinds = {each for each in _members(declared) if each in _PLAIN or _is_struct(each)}
    return frozenset(kinds | {int} if float in kinds else kinds)


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _fault(settings: Struct, name: str, value: object, above_0: bool | None, *, show_words: bool) -> str:
    """Return what is wrong with a field's `value`, as the end of an error text; empty: nothing is wrong.

    A value that fits only after a conversion, such as a list for a tuple, is replaced in `settings`.
    """
    declared, plain = _types(type(settings))[name]
    if type(value) in plain:
        return _number_fault(value, declared, above_0)
    try:
        # msgspec refuses values of a subclass of float, such as `numpy.float64`, and paths.
        known = float(value) if isinstance(value, float) else value
        as_text = getattr(type(known), "__fspath__", None)  # `protocol/` may not import `os`, even indirectly
        read = msgspec.convert(known if as_text is None else as_text(known), declared)
    except (msgspec.ValidationError, TypeError) as error:
        fault, _, place = str(error).partition(" - at `")
        members = _members(declared)
        words = [word for kind in members if get_origin(kind) is Literal for word in get_args(kind)]
        if words and isinstance(value, str):
            known = f"one of {', '.join(words)}"
            return f" is {known}, not {shown(value)}" if show_words else f" should be {known}"
        wanted = next((f"{each.__name__}(...)" for each in members if _is_struct(each)), "")
        wanted = "a list or a tuple" if fault.startswith("Expected `array") else wanted
        if wanted and not place:
            return f"= wants {wanted}, not {type(value).__name__}"
        return f"{place.partition('$')[2].rstrip('`')}: {fault}"
    if isinstance(read, Struct) and read is not value:
        return f"= wants {type(read).__name__}(...), not {type(value).__name__}"
    if isinstance(read, str):
        read = str.__str__(read)  # msgspec cannot encode a text of another class, such as numpy's str_
    if isinstance(read, tuple | int | float | str) and read is not value:
        msgspec.structs.force_setattr(settings, name, read)
    if isinstance(value, Mapping):
        for given, converted in zip(value.values(), read.values(), strict=True):
            if isinstance(converted, Struct) and converted is not given:
                return f"= wants {type(converted).__name__}(...) as its values, not {type(given).__name__}"
    numbers = value.values() if isinstance(value, Mapping) else (read,)
    return next(filter(None, (_number_fault(number, declared, above_0) for number in numbers)), "")


def _number_fault(value: object, declared: Any, above_0: bool | None) -> str:
    """Return what is wrong with a number; empty: nothing. With `above_0=None`, every number is usable."""
    if not isinstance(value, int | float) or above_0 is None or is_usable(value, above_0=above_0):
        return ""
    limit = " above 0" if above_0 else ", 0 or more"
    or_none = ", or None" if NoneType in _members(declared) else ""
    wanted = "less than 2**63" if _MOST <= value < math.inf else f"a finite number{limit}"
    return f" is {shown(value)}; it must be {wanted}{or_none}"


def fault_of(error: Exception) -> str:
    """Return the text of msgspec's error, field first, such as ``max_steps: Expected `int`, got `str```."""
    words, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    return f"{field}: {words}" if field else words


def shown(value: object) -> str:
    """Return the beginning of a value's `repr`, or a description if it has a number too long to print."""
    try:
        return f"{value!r:.60}"
    except ValueError:
        if isinstance(value, int):
            return f"an integer of {value.bit_length():,} bits"
        return f"a {type(value).__name__} with a number too long to show"


def is_usable(number: float, *, above_0: bool) -> bool:
    """Return whether a number is at least 0 (with `above_0`: above 0) and small enough for a trace."""
    return number < _MOST and (number > 0 if above_0 else number >= 0)
