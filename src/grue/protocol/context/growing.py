"""Immutable sequences that can be added to or taken from without copying all of their items.

The states of a turn are immutable. A reply with ten thousand calls is settled in ten thousand steps, and with
plain tuples each step would copy all remaining calls, which takes quadratic time.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Growing(Struct, Generic[T], frozen=True):
    """A sequence that grows at its end; each item is copied only a few times in all.

    Attributes:
        parts: The items in order. Each part is at least twice as long as the next one.
    """

    parts: tuple[tuple[T, ...], ...] = ()

    def __iter__(self) -> Iterator[T]:
        for part in self.parts:
            yield from part

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def add(self, items: Iterable[T]) -> "Growing[T]":
        """Return a sequence with `items` added at the end."""
        last = tuple(items)
        parts = self.parts
        while parts and len(parts[-1]) < 2 * len(last):
            parts, last = parts[:-1], (*parts[-1], *last)
        return Growing((*parts, last)) if last else self


class Remaining(Struct, Generic[T], frozen=True):
    """A sequence of distinct items that shrinks, mostly from its beginning.

    Attributes:
        items: All items, including those that have been taken.
        taken: How many items at the beginning have been taken.
    """

    items: tuple[T, ...] = ()
    taken: int = 0

    def __iter__(self) -> Iterator[T]:
        for position in range(self.taken, len(self.items)):
            yield self.items[position]

    def __len__(self) -> int:
        return len(self.items) - self.taken

    def __contains__(self, item: object) -> bool:
        return any(other == item for other in self)  # nearly always the first one

    @property
    def first(self) -> T:
        """The next item; the sequence must not be empty."""
        return self.items[self.taken]

    def without(self, item: T) -> "Remaining[T]":
        """Return the sequence without `item`."""
        if self and (self.first is item or self.first == item):
            return Remaining(self.items, self.taken + 1)
        return Remaining(tuple(other for other in self if other != item))
