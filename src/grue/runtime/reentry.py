"""Refuse to wait in a signal handler that has interrupted grue itself, or an import.

Python runs a signal handler in the main thread, between two instructions of whatever runs there. What it
interrupted may hold a lock: that of a module that is being imported, of a recorder, of a future. A turn that
the handler begins needs the same locks, in threads of its own, and they are given back only when the handler
returns. It would wait for ever, and no time limit would hold, because what is stuck is the event loop. So it
is refused at once. A handler that interrupts anything else may run turns.

The stack tells: Python calls a handler with the interrupted frame, which is also the caller of its frame.
"""

import inspect
import threading
from types import FrameType

from grue.errors import MCPError

_HOSTS = ("grue.hosts", "grue.cli", "grue.games", "grue.testing")
"""They use grue as any host does: what they wait for has frames of its own."""


def refuse_reentry() -> None:
    """Raise where the caller is in a signal handler that has interrupted grue or an import.

    Raises:
        MCPError: It is.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread runs handlers
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and _is_ours(frame):
        frame = frame.f_back  # of the call that asks
    begun = frame
    # Looking into a frame keeps its values alive: it is done only where something was interrupted at all.
    while frame is not None and not (_is_ours(frame) or _is_import(frame)):
        frame = frame.f_back
    while begun is not None and begun is not frame and frame is not None:
        if _is_handler(begun):
            raise MCPError(
                "grue was called by a signal handler that had interrupted grue, or an import: it could wait "
                "for ever for what it interrupted. Have the handler set a flag; call when it has returned."
            )
        begun = begun.f_back


def _is_ours(frame: FrameType) -> bool:
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
