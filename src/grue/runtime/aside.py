"""Do a piece of work beside the event loop, in a thread that ends with it.

For work that is Python for the most part: it then lets the event loop run every few milliseconds. One call
into a library in C holds up all threads for as long as it takes.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def aside(work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
    """Return `work(*args)`, done in a thread of its own.

    Cancelling returns at once; the thread goes on to the end of its work, and what comes of it is dropped.

    Raises:
        Exception: What `work` raises.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="grue aside")
    try:
        return await asyncio.wrap_future(executor.submit(work, *args))
    finally:
        executor.shutdown(wait=False)
