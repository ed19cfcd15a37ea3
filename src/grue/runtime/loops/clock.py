"""The clock of the running event loop."""

from asyncio import get_running_loop


def now() -> float:
    """Return the seconds of the loop's clock, which is monotonic; in tests it may be a virtual one.

    `anyio.current_time` returns the same. It first finds out which library runs the loop, at several
    times the cost.
    """
    return get_running_loop().time()
