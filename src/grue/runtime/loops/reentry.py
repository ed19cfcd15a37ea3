"""Refuse to wait in a signal handler that has interrupted grue itself, or an import.

Python runs a signal handler in the main thread, between two instructions of the code that runs there. The
interrupted code may hold a lock: of a module that is being imported, of a recorder, or of a future. A turn
that the handler starts needs the same locks, in other threads. The locks are released only after the handler
has returned, so the turn would wait forever. No time limit would end it, because the event loop itself is
blocked. So such a call raises at once. A handler that interrupts any other code may run turns.

How a handler is recognised: Python calls it with the interrupted frame as an argument, and that frame is also
the caller of the handler's own frame.
"""

import inspect
import threading
from types import FrameType

from grue.errors import MCPError

_HOSTS = ("grue.hosts", "grue.cli", "grue.hosts.zork.games", "grue.testing")
"""Packages of grue that count as host code: a handler may interrupt them."""


def refuse_reentry() -> None:
    """Raise if the caller is in a signal handler that has interrupted grue or an import.

    Raises:
        MCPError: The caller is in such a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread runs handlers
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and is_ours(frame):
        frame = frame.f_back  # skip the frames of the call that checks
    begun = frame
    # Reading a frame's locals keeps their values alive, so first look for a frame that may be interrupted.
    while frame is not None and not (is_ours(frame) or _is_import(frame)):
        frame = frame.f_back
    while begun is not None and begun is not frame and frame is not None:
        if _is_handler(begun):
            raise MCPError(
                "grue was called by a signal handler that had interrupted grue, or an import: it could wait "
                "for ever for what it interrupted. Have the handler set a flag; call when it has returned."
            )
        begun = begun.f_back


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame runs code of grue, its hosts and its testing kit excepted."""
    name = frame.f_globals.get("__name__", "")
    return name.startswith("grue.") and not name.startswith(_HOSTS)


def _is_import(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def _is_handler(frame: FrameType) -> bool:
    code = frame.f_code
    given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        given += rest if isinstance(rest, tuple) else ()
    return frame.f_back is not None and any(value is frame.f_back for value in given)
