"""The command `grue`, and what a Ctrl-C does while it starts and while it leaves.

Python raises KeyboardInterrupt wherever it happens to be, which while modules are imported means a traceback,
or another exception that it has become there. So until a command has all that it needs, and after it has
done its work, a Ctrl-C ends the process at once, with the status that says so. Servers that are still ending
are killed by the guard then, as they are when the program is killed.

It stands here because this is what the command imports first; what strikes before is Python's own start.
"""

import os
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]

_INTERRUPTED = 130


def _quit(_signum: int, _frame: object) -> None:
    os._exit(_INTERRUPTED)


def quit_at_once() -> None:
    """End the process at a Ctrl-C, from now on. Does nothing where a host has a handler of its own."""
    _swap(default_int_handler, _quit)


def take_interrupts() -> None:
    """Have a Ctrl-C raise KeyboardInterrupt again, from now on: there is something to clean up."""
    _swap(_quit, default_int_handler)


def _swap(expected: object, following: object) -> None:
    if getsignal(SIGINT) is not expected:
        return
    try:  # noqa: SIM105 - contextlib would have to be imported, which a Ctrl-C may strike
        signal(SIGINT, following)
    except ValueError:
        pass  # not in the main thread, where no Ctrl-C is raised
