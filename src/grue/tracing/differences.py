"""Find the differences between two messages, as JSON paths: `2` equals `2.0`, but `true` is not `1`."""

import functools
import re
import types
import typing
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TypeAlias

import msgspec
from msgspec import Struct

ABSENT = msgspec.UNSET  # stands for what only the other side has

SameText: TypeAlias = Callable[[str, str], bool]


class Difference(Struct, frozen=True):
    """Two values that differ, and their path, such as `$.calls[0].arguments`."""

    path: str
    left: object
    right: object


class Comparison:
    """Compare messages, pair after pair."""

    # The fields are named `field`, or `Class.field` for a field of one class only. The fields `ignored` are
    # not compared. Ids in the fields `ids` may differ if each left id always has the same right id.
    # `same_text` returns whether two different texts count as equal.

    def __init__(
        self,
        *,
        ignored: frozenset[str] = frozenset(),
        ids: frozenset[str] = frozenset(),
        same_text: SameText | None = None,
    ) -> None:
        self._special = ignored | ids
        self._ignored = ignored
        self._ids = ids
        self._same_text = same_text
        self._there: dict[tuple[str, object], object] = {}
        self._back: dict[tuple[str, object], object] = {}

    def differences(self, left: object, right: object, path: str = "$") -> Iterator[Difference]:
        """Yield the differences between two values, in the order of the fields, and remember paired ids."""
        if not self._holds_special(left) and _json(left) == _json(right):
            return
        if isinstance(left, Struct) and type(left) is type(right):
            yield from self._of_fields(left, right, path)
        elif isinstance(left, dict) and isinstance(right, dict):
            for key in dict.fromkeys((*left, *right)):
                one, other = left.get(key, ABSENT), right.get(key, ABSENT)
                yield from self.differences(one, other, f"{path}{_step(key)}")
        elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
            for position, (one, other) in enumerate(zip_longest(left, right, fillvalue=ABSENT)):
                yield from self.differences(one, other, f"{path}[{position}]")
        elif not self._same(left, right):
            yield Difference(path, left, right)

    def counterpart(self, name: str, left: object) -> object:
        """Return the right side's id that is paired with `left` in the message field `name`, or `None`."""
        return self._there.get((name, left))

    def paired(self, name: str, right: object) -> object:
        """Return `right` if it is paired with an id of the left side in field `name`; otherwise `None`."""
        return right if (name, right) in self._back else None

    def _of_fields(self, left: Struct, right: object, path: str) -> Iterator[Difference]:
        for name in left.__struct_fields__:
            if is_one_of(self._ignored, left, name):
                continue
            one, other = getattr(left, name), getattr(right, name)
            if name not in self._ids:
                yield from self.differences(one, other, f"{path}.{name}")
            elif not self._same_id(name, one, other):
                yield Difference(f"{path}.{name}", one, other)

    def _same(self, left: object, right: object) -> bool:
        if isinstance(left, str) and isinstance(right, str):
            return left == right or (self._same_text is not None and self._same_text(left, right))
        return type(left) is not bool and type(right) is not bool and left == right

    def _same_id(self, name: str, left: object, right: object) -> bool:
        there = self._there.setdefault((name, left), right)
        back = self._back.setdefault((name, right), left)
        return there == right and back == left

    def _holds_special(self, value: object) -> bool:
        if isinstance(value, Struct):
            return not self._special.isdisjoint(_fields_within(type(value)))
        # In a compared message, only fields and tuples hold Structs; lists and dicts hold plain JSON.
        return isinstance(value, tuple) and any(map(self._holds_special, value))


def is_one_of(names: frozenset[str], value: Struct, field: str) -> bool:
    """Return whether `names` contains a field of the Struct `value`, as `field` or as `Class.field`."""
    return field in names or f"{type(value).__name__}.{field}" in names


@functools.cache
def _fields_within(kind: type[Struct]) -> frozenset[str]:
    """Return all fields of a Struct and of the Structs that it can hold, as `field` and `Class.field`."""
    names: set[str] = set()
    seen: set[object] = set()
    hints: list[object] = [kind]
    while hints:
        hint = hints.pop()
        if isinstance(hint, type) and issubclass(hint, Struct):
            if hint not in seen:
                seen.add(hint)
                names.update(hint.__struct_fields__)
                names.update(f"{hint.__name__}.{name}" for name in hint.__struct_fields__)
                hints.extend(typing.get_type_hints(hint).values())
        elif isinstance(hint, types.UnionType) or typing.get_origin(hint) is not None:
            hints.extend(typing.get_args(hint))
    return frozenset(names)


def _json(value: object) -> bytes | None:
    return None if value is ABSENT else msgspec.json.encode(value)


_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _step(key: object) -> str:
    text = str(key)
    return f".{text}" if _PLAIN_KEY.fullmatch(text) else f"[{msgspec.json.encode(text).decode()}]"
