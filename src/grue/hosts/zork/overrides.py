"""Whether an object of our class still has our methods, or a program has put its own in their place."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def own_methods(cls: type, names: Iterable[str]) -> Mapping[str, Callable[..., Any]]:
    """Return methods of a class as they are now, to compare with later."""
    return {name: vars(cls)[name] for name in names}


def is_overridden(instance: object, methods: Mapping[str, Callable[..., Any]]) -> bool:
    """Say whether any of the methods was overridden in a subclass, or replaced in the class or the object."""
    return any(
        getattr(getattr(instance, name, None), "__func__", None) is not method
        for name, method in methods.items()
    )
