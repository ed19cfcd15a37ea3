"""Imports that bring much along."""

import gc
import importlib
from types import ModuleType


def load(name: str) -> ModuleType:
    """Import a module, and do without the garbage collector meanwhile, if it runs.

    It would go through all that is imported, again and again, and find nothing: with httpx or the MCP SDK
    that is a tenth of the time (`benchmarks/run.py --only cold`).

    Args:
        name: The whole name.

    Raises:
        ImportError: As any import.
    """
    if not gc.isenabled():
        return importlib.import_module(name)
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.enable()
