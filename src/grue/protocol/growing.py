"""Sequences for states that never change: adding to one, or taking from it, does not copy the whole.

A reply with ten thousand calls is settled in ten thousand steps; with plain tuples each of them would copy
what the others have left.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Growing(Struct, Generic[T], frozen=True):
    """A sequence that is added to at its end, at the cost of a few copies of each item in all.

    Attributes:
        parts: The items in order, each part at least twice as long as the next one.
    """

    parts: tuple[tuple[T, ...], ...] = ()

    def __iter__(self) -> Iterator[T]:
        for part in self.parts:
            yield from part

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def add(self, items: Iterable[T]) -> "Growing[T]":
        """Return the same with `items` behind it."""
        last = tuple(items)
        parts = self.parts
        while parts and len(parts[-1]) < 2 * len(last):
            parts, last = parts[:-1], (*parts[-1], *last)
        return Growing((*parts, last)) if last else self


class Remaining(Struct, Generic[T], frozen=True):
    """What is left of a sequence of different items that are taken from it, mostly from its beginning.

    Attributes:
        items: All of them.
        taken: How many of them are taken, from the beginning on.
    """

    items: tuple[T, ...] = ()
    taken: int = 0

    def __iter__(self) -> Iterator[T]:
        for position in range(self.taken, len(self.items)):
            yield self.items[position]

    def __len__(self) -> int:
        return len(self.items) - self.taken

    def __contains__(self, item: object) -> bool:
        return any(other == item for other in self)  # the first one, nearly always

    @property
    def first(self) -> T:
        """The next item; there has to be one."""
        return self.items[self.taken]

    def without(self, item: T) -> "Remaining[T]":
        """Return the others."""
        if self and (self.first is item or self.first == item):
            return Remaining(self.items, self.taken + 1)
        return Remaining(tuple(other for other in self if other != item))
