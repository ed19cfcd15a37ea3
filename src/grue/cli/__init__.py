"""The command `grue`. This module decides what a Ctrl-C does while the command starts and while it exits.

After a Ctrl-C, Python raises KeyboardInterrupt at whatever instruction it executes. During an import, the
user would then see a traceback, or the imported module would turn the KeyboardInterrupt into another
exception. So until a command has imported all that it needs, and again after its work is done, a Ctrl-C ends
the process at once, with status 130. The guard (`grue.runtime.processes.guard`) then kills the servers that
still run.

This code is in `__init__`, which Python runs before `main.py`.
"""

import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]

_INTERRUPTED = 130


def _quit(_signum: int, _frame: object) -> None:
    os._exit(_INTERRUPTED)


def quit_at_once() -> None:
    """From now on, let a Ctrl-C end the process. Does nothing if SIGINT has a handler other than Python's."""
    _swap(default_int_handler, _quit)


def take_interrupts() -> None:
    """Undo `quit_at_once`: a Ctrl-C raises KeyboardInterrupt again, so that the command can clean up."""
    _swap(_quit, default_int_handler)


def _swap(expected: object, following: object) -> None:
    if getsignal(SIGINT) is not expected:
        return
    try:  # noqa: SIM105 - not with contextlib: a Ctrl-C could strike its import
        signal(SIGINT, following)
    except ValueError:
        pass  # this is not the main thread, so it gets no KeyboardInterrupt
