"""Import modules that import many others."""

import contextlib
import gc
import importlib
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

from grue.errors import MCPError


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Translate the errors of the imports in the block.

    Raises:
        MCPError: A file of ours could not be read, for instance because too many are open.
    """
    try:
        yield
    except OSError as error:
        raise MCPError(f"A part of grue could not be imported: {error}.") from error


_one_at_a_time = threading.Lock()
_under_way: set[str] = set()


def is_loaded(*names: str) -> bool:
    """Return whether these modules are imported, as a whole."""
    return all(name in sys.modules and name not in _under_way for name in names)


def load_all(*names: str) -> None:
    """Import modules, for a thread beside an event loop.

    Threads that import modules which import each other can meet half of one. So they take turns.

    Raises:
        ImportError: As any import.
        MCPError: A file could not be read.
    """
    with _one_at_a_time:
        missing = {name for name in names if name not in sys.modules}
        _under_way.update(missing)
        try:
            for name in names:
                load(name)
        finally:
            _under_way.difference_update(missing)


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
        # What is imported already makes no objects: there is nothing to keep from the collector.
        if name in sys.modules or not gc.isenabled():
            return importlib.import_module(name)
        gc.disable()
        try:
            return importlib.import_module(name)
        finally:
            _keep_from_the_next_collections()
            gc.enable()


def _keep_from_the_next_collections() -> None:
    """Move all objects to the collector's oldest generation, without looking at them.

    The objects of an import are young, and the next collection would go through all of them: most of the time
    that the import itself has saved. Objects that a program has frozen stay frozen.
    """
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
