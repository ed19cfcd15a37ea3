"""A program that is interrupted during `run_blocking`, and prints which of its parts still ran.

python interrupted_edge.py WHERE, where the call is made: plain | thread | loop | bare loop
"""

import asyncio
import sys
import threading
import warnings

import anyio

from grue.runtime.loops.sync_edge import run_blocking


async def work() -> None:
    print("working", flush=True)
    try:
        await anyio.sleep(1000)
    finally:
        print("cleaned up", flush=True)


def call(function: object = work) -> None:
    run_blocking(function, on_exit=lambda: print("last word", flush=True), twin="twin")  # type: ignore[arg-type]


async def inside() -> None:
    call()


def main(where: str) -> None:
    warnings.simplefilter("ignore")
    if where == "plain":
        call()
    elif where == "loop":
        asyncio.run(inside())
    elif where == "bare loop":
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(inside())
        finally:
            loop.close()
    else:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
        sys.exit(130)
