"""Run a function in a temporary thread, so that the event loop is not blocked.

Use it for work in pure Python, where the interpreter switches threads every few milliseconds. A single long
call into a C library that keeps the GIL blocks the event loop all the same.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def aside(work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
    """Run `work(*args)` in a new thread and return its result.

    Cancellation returns at once. The thread finishes its work, and the result is dropped.

    Raises:
        Exception: `work` raised it.
    """
    executor = ThreadPoolExecutor(1, thread_name_prefix="grue aside")
    try:
        return await asyncio.wrap_future(executor.submit(work, *args))
    finally:
        executor.shutdown(wait=False)
