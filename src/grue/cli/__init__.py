"""The command `grue`. This module decides what a Ctrl-C does while the command starts and while it exits.

A KeyboardInterrupt during an import would print a traceback, or become another exception. So until a command
has imported its modules, and again after its work, a Ctrl-C ends the process at once, with status 130.
The guard (`grue.runtime.processes.guard`) then kills the servers that still run.
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
