"""The command `grue`, and what a Ctrl-C does while it starts and while it leaves.

Python raises KeyboardInterrupt at any instruction. During an import that gives a traceback, or the imported
module turns it into another exception. So a Ctrl-C ends the process at once, with status 130, until a command
has imported all that it needs and again after it has done its work. The guard then kills servers that are
still ending, as it does when the program is killed.

This is in `__init__` because the command imports it first. A Ctrl-C before that interrupts Python's own
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
    try:  # noqa: SIM105 - contextlib would have to be imported, which a Ctrl-C may strike
        signal(SIGINT, following)
    except ValueError:
        pass  # not in the main thread, where no Ctrl-C is raised
