"""Yield to other tasks in a long `while` or `for` loop that may never await anything."""

import math
import time

import anyio
import anyio.lowlevel

STRETCH_S = 0.005
"""Longest time in seconds without a pause."""


class Pace:
    """Pauses a loop when it has worked for `STRETCH_S` without waiting for anything."""

    def __init__(self) -> None:
        self._due = 0.0

    async def pause(self) -> None:
        """Let other tasks run if the time is up. A cancellation is raised here."""
        if time.monotonic() >= self._due:
            await anyio.lowlevel.checkpoint()
            self.paused()

    async def pause_shielded(self) -> None:
        """Let other tasks run if the time is up, without taking a cancellation.

        Once the caller is cancelled there is no pause: the tasks that are cancelled with it would end in it,
        and what the caller still has to say to them would find them gone.
        """
        if time.monotonic() >= self._due and anyio.current_effective_deadline() != -math.inf:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            self.paused()

    def paused(self) -> None:
        """Restart the time, because the caller has just awaited something."""
        self._due = time.monotonic() + STRETCH_S
