"""Import modules that import many others.

A fork waits for the imports that grue has under way in other threads, and for its calls of pydantic.
Otherwise the child would have half of a module, and a lock that nobody ever frees: its first turn would fail,
or wait for ever, whatever its time limit.
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

    Only one thread imports at a time. Two threads that import modules which import each other could each find
    the other's module only half loaded.

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


_OURS_WITHIN_S = 60.0
"""How long a fork waits for imports that grue needs. On a busy machine they take many seconds."""

_OTHERS_WITHIN_S = 5.0
"""How long a fork waits for imports of other code: a program may run its main loop within one."""

_outlasted: set[int] = set()
"""Threads whose imports took longer than `_OTHERS_WITHIN_S`. Later forks do not wait for them again."""


def _wait_for_imports() -> None:
    # The hook that was registered last runs first. Those of logging and of the thread pools take locks that
    # an import may need. So their modules are imported, and their hooks registered, before this one.
    began = time.monotonic()
    while imports := _imports_elsewhere():
        waited = time.monotonic() - began
        if waited > _OTHERS_WITHIN_S:
            _outlasted.update(thread for thread, whose in imports.items() if whose == "others")
        if waited > _OURS_WITHIN_S:
            return
        time.sleep(0.001)


def _imports_elsewhere() -> dict[int, str]:
    """Return which other threads import something, and for whom: "ours" or "others"."""
    frames = sys._current_frames()  # noqa: SLF001 - the documented name
    del frames[threading.get_ident()]
    found = {thread: _import_in(frame) for thread, frame in frames.items()}
    return {
        thread: whose
        for thread, whose in found.items()
        if whose == "ours" or (whose and thread not in _outlasted)
    }


def _import_in(frame: FrameType | None) -> str:
    """Return for whom a thread imports something, if it does.

    "ours" is an import of a module of grue, and each one that began within a call of grue: also those that
    httpx and anyio put off until they are used. A thread that looks up a host for an event loop imports a
    codec and has no frame of grue, so it is one of the "others".

    A call of pydantic by grue counts as one of "ours". The compiled part of pydantic sets itself up at its
    first use, and holds locks of its own meanwhile.
    """
    inner, importing = "", False
    compiled = frame is not None and _package(frame) == "pydantic"
    while frame is not None:
        kind = _kind(frame)
        if (kind == "ours" and (importing or compiled)) or (kind == "import" and inner == "ours"):
            return "ours"
        inner, importing, frame = kind, importing or kind == "import", frame.f_back
    return "others" if importing else ""


def _kind(frame: FrameType) -> str:
    if frame.f_code.co_filename.startswith("<frozen importlib"):
        return "import"
    return "ours" if _package(frame) == "grue" else ""


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _forget_other_threads() -> None:
    """In a forked child, the threads that held the lock do not exist."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()
    _under_way.clear()
    _outlasted.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_child=_forget_other_threads)
