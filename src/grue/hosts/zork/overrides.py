"""Find out whether a program has overridden or replaced methods of one of our classes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def own_methods(cls: type, names: Iterable[str]) -> Mapping[str, Callable[..., Any]]:
    """Return the current methods of a class, for a later comparison."""
    return {name: vars(cls)[name] for name in names}


def is_overridden(instance: object, methods: Mapping[str, Callable[..., Any]]) -> bool:
    """Return whether any of the methods was overridden in a subclass, or replaced in the class or object."""
    return any(
        getattr(getattr(instance, name, None), "__func__", None) is not method
        for name, method in methods.items()
    )
