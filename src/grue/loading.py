"""Imports that bring much along."""

import contextlib
import gc
import importlib
from collections.abc import Iterator
from types import ModuleType

from grue.errors import MCPError


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Around imports that a call makes when it is first used.

    Raises:
        MCPError: A file of ours could not be read, for instance because too many are open.
    """
    try:
        yield
    except OSError as error:
        raise MCPError(f"A part of grue could not be imported: {error}.") from error


def load(name: str) -> ModuleType:
    """Import a module, and do without the garbage collector meanwhile, if it runs.

    It would go through all that is imported, again and again, and find nothing: with httpx or the MCP SDK
    that is a tenth of the time (`benchmarks/run.py --only cold`).

    Args:
        name: The whole name.

    Raises:
        ImportError: As any import.
        MCPError: A file could not be read, for instance because too many are open.
    """
    with importing():
        if not gc.isenabled():
            return importlib.import_module(name)
        gc.disable()
        try:
            return importlib.import_module(name)
        finally:
            gc.enable()
