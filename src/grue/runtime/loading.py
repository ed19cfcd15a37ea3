"""Import large modules, and make a fork wait for imports in other threads.

A fork waits, for a limited time, until no other thread is in an import, or in a call of pydantic or OpenSSL
by grue. Otherwise the child could have half of a module, or a lock that nobody ever frees.
"""

import concurrent.futures.thread  # noqa: F401 - see register_at_fork
import contextlib
import importlib
import logging  # noqa: F401 - see register_at_fork
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, ModuleType

from grue.errors import MCPError


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Raise an `OSError` of the imports in the block, such as too many open files, as `MCPError`."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise  # not the system's: a signal handler of the program has raised it, such as a `TimeoutError`
        raise MCPError(f"A part of grue could not be imported: {error}.") from error


_one_at_a_time = threading.Lock()
_under_way: set[str] = set()


def is_loaded(*names: str) -> bool:
    """Return whether these modules are imported, and no `load_all` is still importing them."""
    return all(name in sys.modules and name not in _under_way for name in names)


def load_all(*names: str) -> None:
    """Import modules. Call this in a thread, so that the event loop is not blocked. Raises as `load` does."""
    with _one_at_a_time:
        missing = {name for name in names if name not in sys.modules}
        _under_way.update(missing)
        try:
            for name in names:
                load(name)
        finally:
            _under_way.difference_update(missing)


def load(name: str) -> ModuleType:
    """Import a module by its whole name; raises `ImportError`, or `MCPError` if a file cannot be read."""
    with importing():
        return importlib.import_module(name)


_OURS_WITHIN_S = 60.0  # how long a fork waits for "ours" (see `_work_in`): an import can take many seconds
_OTHERS_WITHIN_S = 5.0  # how long for "others": such an import may run a program's whole main loop
_outlasted: set[int] = set()  # threads in an import of "others" that took too long: no fork waits for them
_SWITCH_S = 0.2  # during a fork: how long a thread keeps the GIL while others wait for the GIL
_usual_switch_s: float | None = None  # the program's own interval, while a fork has set `_SWITCH_S`


def _wait_for_others() -> None:
    global _usual_switch_s
    if not _work_elsewhere():
        return
    # No other thread may begin an import between the last check below and the fork. So make Python's switch
    # interval longer: on a busy machine the usual 5 ms can pass within these few lines.
    if _usual_switch_s is None:
        _usual_switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
    began = time.monotonic()
    while True:
        # A thread that was already waiting for the GIL still gets it after 5 ms, so let that thread run now.
        time.sleep(0.001)
        work = {thread: whose for thread, whose in _work_elsewhere().items() if whose != "idle"}
        if not work:
            return
        waited = time.monotonic() - began
        if waited > _OTHERS_WITHIN_S:
            _outlasted.update(thread for thread, whose in work.items() if whose == "others")
        if waited > _OURS_WITHIN_S:
            return


def _let_others_go_on() -> None:
    global _usual_switch_s
    if _usual_switch_s is not None:
        sys.setswitchinterval(_usual_switch_s)
        _usual_switch_s = None


def _work_elsewhere() -> dict[int, str]:
    """Return the result of `_work_in` for each other thread, without empty ones and those in `_outlasted`."""
    # Find this thread by its frame: under gevent, `threading.get_ident` returns the numbers of greenlets.
    here, frames = sys._getframe(), sys._current_frames()  # noqa: SLF001 - the documented names
    found = {thread: _work_in(frame) for thread, frame in frames.items() if frame is not here}
    # Forget the threads whose imports have ended: the system gives their ids to new threads.
    _outlasted.intersection_update(thread for thread, whose in found.items() if whose == "others")
    return {thread: whose for thread, whose in found.items() if whose and thread not in _outlasted}


def _work_in(frame: FrameType | None) -> str:
    """Return what the thread with this innermost frame is doing.

    - "ours": an import of grue, or one that grue's code causes, for example at the first use of httpx. Also a
      call of pydantic or OpenSSL by grue: they initialise themselves at their first use, and hold locks then.
    - "others": an import that grue's code has not caused, such as one in a thread of the program.
    - "idle": the thread runs grue, but nothing that an `os.fork` has to wait for.
    - "": the thread neither imports nor runs grue.
    """
    inner, importing, runs_grue = "", False, False
    compiled = frame is not None and _package(frame) in ("pydantic", "ssl")
    while frame is not None:
        kind = _kind(frame)
        if (kind == "ours" and (importing or compiled)) or (kind == "import" and inner == "ours"):
            return "ours"
        runs_grue = runs_grue or kind == "ours"
        inner, importing, frame = kind, importing or kind == "import", frame.f_back
    if importing:
        return "others"
    return "idle" if runs_grue else ""


def _kind(frame: FrameType) -> str:
    if frame.f_code.co_filename.startswith("<frozen importlib"):
        return "import"
    return "ours" if _package(frame) == "grue" else ""


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _forget_other_threads() -> None:
    global _one_at_a_time
    _let_others_go_on()
    _one_at_a_time = threading.Lock()
    _under_way.clear()
    _outlasted.clear()


# `_wait_for_others` has to run before the hooks of `logging` and `concurrent.futures.thread`, because those
# take locks that an import in another thread may need. Python runs the hook first that was registered last.
# So this module imports these two modules, to have their hooks registered first.
os.register_at_fork(
    before=_wait_for_others, after_in_parent=_let_others_go_on, after_in_child=_forget_other_threads
)
