"""Import modules that import many others.

A fork waits for the imports that grue has under way in other threads. Otherwise the child would have half of
a module, and the lock of an import that nobody ends: its first turn would fail, or wait for ever, whatever
its time limit.
"""

import concurrent.futures.thread  # noqa: F401 - see _wait_for_imports
import contextlib
import importlib
import logging  # noqa: F401 - see _wait_for_imports
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, ModuleType

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
    """Import a module by its whole name.

    Raises:
        ImportError: As any import.
        MCPError: A file could not be read, for instance because too many are open.
    """
    with importing():
        return importlib.import_module(name)


_FORK_WITHIN_S = 10.0
"""How long a fork waits for imports, at most."""


def _wait_for_imports() -> None:
    # The hook that was registered last runs first. Those of logging and of the thread pools take locks that
    # an import may need. So their modules are imported, and their hooks registered, before this one.
    deadline = time.monotonic() + _FORK_WITHIN_S
    here = threading.get_ident()
    while time.monotonic() < deadline:
        frames = sys._current_frames()  # noqa: SLF001 - the documented name
        if not any(_is_importing(frame) for thread, frame in frames.items() if thread != here):
            return
        time.sleep(0.001)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a thread imports a module of grue, or one that grue needs."""
    inner: FrameType | None = None
    while frame is not None:
        if inner is not None and {_kind(frame), _kind(inner)} == {"import", "ours"}:
            return True
        inner, frame = frame, frame.f_back
    return False


def _kind(frame: FrameType) -> str:
    if frame.f_code.co_filename.startswith("<frozen importlib"):
        return "import"
    return "ours" if frame.f_globals.get("__name__", "").partition(".")[0] == "grue" else ""


def _forget_other_threads() -> None:
    """In a forked child, the threads that held the lock do not exist."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()
    _under_way.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_child=_forget_other_threads)
