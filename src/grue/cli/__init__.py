"""The command `grue`, and the effect of a Ctrl-C while it starts and while it exits.

Python raises KeyboardInterrupt at any instruction. Raised during an import, it would give a traceback, or the
imported module would turn it into another exception. So until a command has imported all that it needs, and
again after its work is done, a Ctrl-C ends the process at once, with status 130. The guard then kills servers
that have not ended yet, as it does when the program is killed.

This code is in `__init__` because the command imports it first. A Ctrl-C before that interrupts Python's own
start.
"""

import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]

_INTERRUPTED = 130


def _quit(_signum: int, _frame: object) -> None:
    os._exit(_INTERRUPTED)


def quit_at_once() -> None:
    """From now on, let a Ctrl-C end the process. Does nothing if a host has its own handler."""
    _swap(default_int_handler, _quit)


def take_interrupts() -> None:
    """From now on, let a Ctrl-C raise KeyboardInterrupt again, so that the command can clean up."""
    _swap(_quit, default_int_handler)


def _swap(expected: object, following: object) -> None:
    if getsignal(SIGINT) is not expected:
        return
    try:  # noqa: SIM105 - not with contextlib: a Ctrl-C could strike its import
        signal(SIGINT, following)
    except ValueError:
        pass  # not the main thread, and only the main thread gets a KeyboardInterrupt
