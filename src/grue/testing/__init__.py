"""The testing kit for users.

Servers and models: `mock_server`, `faulty_server`, `fake_tools`, `llm_server`, and pytest fixtures for them
(`plugin`). One actor alone: `actor_harness`, `fake_channel`, `virtual_time`. Traces: `trace_watch`, `replay`.
"""

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
