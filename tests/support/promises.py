"""Hold code to a promise in seconds, on a machine that may have more to do than it can.

Linux counts the time in which some task waited for a processor. Three quarters of that time are not counted
here: code may take up to four times as long where the processors are busy all the time, and no longer than
promised where they are not.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")
_NOT_COUNTED = 0.75


class Stopwatch:
    """Measures from when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._waited_before_s = _waited_for_processors_s()

    def seconds(self) -> float:
        """Return the seconds since the beginning, less what the busy machine took."""
        waited_s = _waited_for_processors_s() - self._waited_before_s
        return time.monotonic() - self._began - _NOT_COUNTED * waited_s


@contextlib.contextmanager
def within(seconds: float, otherwise: str = "") -> Iterator[None]:
    """Assert that the block takes less than `seconds`; `otherwise` says what would take longer."""
    watch = Stopwatch()
    yield
    took_s = watch.seconds()
    assert took_s < seconds, f"{took_s:.2f} s; {otherwise}"


def _waited_for_processors_s() -> float:
    try:
        line = _PRESSURE.read_text()
    except OSError:  # not Linux, or an old one
        return 0.0
    return int(line.partition("total=")[2].split()[0]) / 1e6
