"""The testing kit for users: fake and faulty servers and models, pytest fixtures, and replay of traces."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grue.testing.traces import replay

__all__ = ["replay"]

_HOMES = {"replay": "grue.testing.traces"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'grue.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
