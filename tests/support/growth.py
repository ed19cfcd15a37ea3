"""Assert that the time of some work grows linearly with its size, on a machine of any speed and load."""

import gc
import time
from collections.abc import Callable
from typing import Any

_TIMES = 4
"""How much larger the large work is. A linear algorithm takes four times as long, a quadratic one sixteen."""

_MOST = 9
_TRIES = 5


def assert_linear(
    work: Callable[[Any], object], size: int, prepare: Callable[[int], Any] = lambda size: size
) -> None:
    """Assert that work of `size` takes less than nine times the CPU time of work of a quarter of it.

    Both sizes are timed alternately. The fastest time of each counts, because other load only adds time. Each
    time, `work` gets a new result of `prepare(size)`. The time of `prepare` does not count.
    """
    small, large, ratio = float("inf"), float("inf"), float("inf")
    work(prepare(size // _TIMES))
    for _ in range(_TRIES):
        small = min(small, _cpu_s(work, prepare(size // _TIMES)))
        large = min(large, _cpu_s(work, prepare(size)))
        ratio = large / small
        if ratio < _MOST:
            return
    raise AssertionError(f"four times the work takes {ratio:.1f} times as long: {small:.4f} s, {large:.4f} s")


def _cpu_s(work: Callable[[Any], object], prepared: object) -> float:
    gc.collect()  # so that garbage of earlier work is not collected during the measurement
    begun = time.thread_time()
    work(prepared)
    return time.thread_time() - begun
